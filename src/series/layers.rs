//! The state of the model's layers over the run's evaluations.

use super::scale::Scale;
use crate::format::{figure, percent};
use crate::protocol::control::LayerRow;
use crate::protocol::samples::{Layer, NonFiniteParameter};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Evaluations kept in memory: more than the columns of any screen.
const EVALUATIONS: usize = 1024;
/// Below this ratio of the largest to the smallest value, the scale is linear.
const LOG_FROM: f64 = 30.0;

/// The values of a measure, as far as a scale needs them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// The smallest above zero; infinite if there is none.
    pub low: f64,
    /// The largest; 0 if there is none.
    pub high: f64,
}

impl Extent {
    const NONE: Self = Self { low: f64::INFINITY, high: 0.0 };

    fn join(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// A value of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Measure {
    /// Norm of a step's change relative to the weights.
    #[default]
    UpdateRatio,
    /// Norm of the gradient.
    GradNorm,
    /// Norm of the weights.
    WeightNorm,
    /// Share of units without a gradient.
    Dead,
}

impl Measure {
    /// All of them, in the order of the view.
    pub const ALL: [Self; 4] = [Self::UpdateRatio, Self::GradNorm, Self::WeightNorm, Self::Dead];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UpdateRatio => "update ratio",
            Self::GradNorm => "gradient norm",
            Self::WeightNorm => "weight norm",
            Self::Dead => "dead units",
        }
    }

    fn place(self) -> usize {
        Self::ALL.iter().position(|measure| *measure == self).unwrap_or(0)
    }

    /// Returns the measure `by` places further in the cycle.
    #[must_use]
    pub fn cycle(self, by: isize) -> Self {
        Self::ALL[(self.place().cast_signed() + by).rem_euclid(Self::ALL.len().cast_signed()).cast_unsigned()]
    }

    /// Returns the value of a layer.
    #[must_use]
    pub fn value(self, layer: &Layer) -> Option<f64> {
        match self {
            Self::UpdateRatio => layer.update_ratio,
            Self::GradNorm => layer.grad_norm,
            Self::WeightNorm => Some(layer.weight_norm),
            Self::Dead => layer.dead.map(f64::from),
        }
        .filter(|value| value.is_finite())
    }

    /// Formats a value.
    #[must_use]
    pub fn format_value(self, value: f64) -> String {
        if self == Self::Dead { percent(value) } else { figure(value) }
    }

    /// Returns the extent over some layers.
    #[must_use]
    pub fn extent<'a>(self, layers: impl Iterator<Item = &'a Layer>) -> Extent {
        layers.filter_map(|layer| self.value(layer)).fold(Extent::NONE, |extent, value| {
            let low = if value > 0.0 { value } else { f64::INFINITY };
            extent.join(Extent { low, high: value })
        })
    }

    /// Returns the scale over an extent and its ends: that of shares is fixed, others span their values.
    #[must_use]
    pub fn scale(self, Extent { low, high }: Extent) -> Option<(Scale, f64, f64)> {
        if self == Self::Dead {
            return Scale::new(0.0, 1.0, false).map(|scale| (scale, 0.0, 1.0));
        }
        let log = low.is_finite() && high / low >= LOG_FROM;
        let low = if log { low } else { 0.0 };
        Scale::new(low, high, log).map(|scale| (scale, low, high))
    }
}

/// The layers at an evaluation. All draws share the extents.
#[derive(Debug, PartialEq)]
struct Evaluation {
    row: LayerRow,
    /// By measure, in the order of [`Measure::ALL`].
    extents: [Extent; 4],
}

impl Evaluation {
    fn new(row: LayerRow) -> Self {
        let extents = Measure::ALL.map(|measure| measure.extent(row.stats.layers.iter()));
        Self { row, extents }
    }
}

/// The layers at the evaluations of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerHistory {
    /// The evaluations by step; of a redone one, the last.
    evaluations: BTreeMap<u64, Arc<Evaluation>>,
    /// The names of the layers, in the model's order.
    names: Vec<String>,
    /// The first parameter whose gradient was not finite.
    pub first_non_finite: Option<NonFiniteParameter>,
}

impl LayerHistory {
    /// Collects the rows of a store, which are in order of attempt and step.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = LayerRow>, first_non_finite: Option<NonFiniteParameter>) -> Self {
        let mut history = Self { first_non_finite, ..Self::default() };
        rows.into_iter().for_each(|row| history.push(row));
        history
    }

    /// Adds an evaluation.
    pub fn push(&mut self, row: LayerRow) {
        // An attempt that went back redoes what came after.
        let redone = self.evaluations.split_off(&row.stats.step);
        self.evaluations.extend(redone.into_iter().filter(|(_, later)| later.row.attempt >= row.attempt));
        for (place, layer) in row.stats.layers.iter().enumerate() {
            if self.names.get(place) != Some(&layer.name) && !self.names.contains(&layer.name) {
                self.names.push(layer.name.clone());
            }
        }
        self.evaluations.insert(row.stats.step, Arc::new(Evaluation::new(row)));
        if self.evaluations.len() > EVALUATIONS {
            self.evaluations.pop_first();
        }
    }

    /// Adds the evaluations of another history that are later than all in this one.
    pub fn add_later(&mut self, other: &Self) {
        let newest = self.evaluations.values().map(|evaluation| evaluation.row.time_ms).max();
        let later = other.evaluations.values().filter(|evaluation| Some(evaluation.row.time_ms) > newest);
        later.for_each(|evaluation| self.push(evaluation.row.clone()));
    }

    fn until(&self, moment: Option<i64>) -> impl DoubleEndedIterator<Item = &Evaluation> {
        let by_then = move |row: &LayerRow| moment.is_none_or(|moment| row.time_ms <= moment);
        self.evaluations.values().map(Arc::as_ref).filter(move |evaluation| by_then(&evaluation.row))
    }

    /// Returns the evaluations until a moment, Unix milliseconds, oldest first.
    pub fn rows_until(&self, moment: Option<i64>) -> impl DoubleEndedIterator<Item = &LayerRow> {
        self.until(moment).map(|evaluation| &evaluation.row)
    }

    /// Returns the extent of a measure over the evaluations until a moment.
    #[must_use]
    pub fn extent_until(&self, moment: Option<i64>, measure: Measure) -> Extent {
        let place = measure.place();
        self.until(moment).fold(Extent::NONE, |extent, evaluation| extent.join(evaluation.extents[place]))
    }

    /// Returns the layer of this place in [`Self::names`] at an evaluation, if it was measured.
    #[must_use]
    pub fn layer_in<'a>(&self, row: &'a LayerRow, place: usize) -> Option<&'a Layer> {
        let name = self.names.get(place)?;
        let layers = &row.stats.layers;
        // Almost always, an evaluation measures the layers in the order of the names.
        layers
            .get(place)
            .filter(|layer| layer.name == *name)
            .or_else(|| layers.iter().find(|layer| layer.name == *name))
    }

    /// Returns the names of the layers, in the model's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

#[cfg(test)]
mod tests;
