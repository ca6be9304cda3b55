//! Quantities that can be charted: every value of a step, of an evaluation and of the probe, each in
//! its display unit.

use super::series::{Axis, Column, Extent, Metric};
use super::state::State;
use super::state::gauged::Gauge;
use super::verdict::SKIP_WINDOW;
use crate::format::{figure, percent, rate};
use crate::protocol::probe::Gpu;
use std::collections::VecDeque;
use std::ops::Range;

/// A quantity measured over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantity {
    /// Training loss, overlaid with evaluations.
    Loss,
    /// Norm of the gradient before clipping.
    GradNorm,
    /// Steps per second of step time: excludes evaluations and saves between steps.
    Throughput,
    /// Percent of the last 200 steps that were skipped.
    SkipRate,
    /// Learning rate.
    LearningRate,
    /// Loss on the validation set.
    Evaluation,
    /// Milliseconds per step.
    StepTime,
    /// Percent of a step spent waiting for data.
    DataWait,
    /// Device memory in use, GiB.
    Vram,
    /// GPU temperature in °C.
    Temperature,
    /// Percent of the time with a kernel running.
    Utilisation,
    /// GPU power in W.
    Power,
    /// Host memory of the worker, GiB.
    Ram,
    /// CPU use in percent of all cores.
    Cpu,
}

/// Source of a quantity's columns.
enum Source {
    Steps(Metric),
    Skips,
    Evaluations,
    Probe(Gauge),
}

impl Quantity {
    /// All quantities, in chart order.
    pub const ALL: [Self; 14] = [
        Self::Loss,
        Self::GradNorm,
        Self::Throughput,
        Self::SkipRate,
        Self::LearningRate,
        Self::Evaluation,
        Self::StepTime,
        Self::DataWait,
        Self::Vram,
        Self::Temperature,
        Self::Utilisation,
        Self::Power,
        Self::Ram,
        Self::Cpu,
    ];

    /// Returns the name.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::GradNorm => "gradient norm",
            Self::Throughput => "speed without pauses",
            Self::SkipRate => "skipped steps",
            Self::LearningRate => "learning rate",
            Self::Evaluation => "evaluation loss",
            Self::StepTime => "step time",
            Self::DataWait => "waiting for data",
            Self::Vram => "VRAM",
            Self::Temperature => "GPU temperature",
            Self::Utilisation => "GPU load",
            Self::Power => "GPU power",
            Self::Ram => "RAM of the worker",
            Self::Cpu => "CPU",
        }
    }

    /// Reports whether the newest value is written beside the curve. Throughput is not: the screen
    /// shows a single speed for the run, and that one includes pauses.
    #[must_use]
    pub fn names_newest(self) -> bool {
        self != Self::Throughput
    }

    /// Formats a value with its unit.
    #[must_use]
    pub fn words(self, value: f64) -> String {
        match self {
            Self::Loss | Self::GradNorm | Self::LearningRate | Self::Evaluation => figure(value),
            Self::Throughput => format!("{} steps/s", rate(value)),
            Self::StepTime => format!("{} ms", figure(value)),
            Self::SkipRate | Self::DataWait | Self::Utilisation | Self::Cpu => percent(value / 100.0),
            Self::Vram | Self::Ram => crate::format::bytes((value.max(0.0) * super::state::gauged::GIB) as u64),
            Self::Temperature => format!("{value:.0} °C"),
            Self::Power => format!("{value:.0} W"),
        }
    }

    /// Returns the unit for a memory chart that reaches up to the given GiB, and the number of those units per GiB.
    #[must_use]
    pub fn memory_unit(self, high: f64) -> (&'static str, f64) {
        match self {
            Self::Vram | Self::Ram if high < 1.0 => ("MiB", 1024.0),
            Self::Vram | Self::Ram => ("GiB", 1.0),
            _ => ("", 1.0),
        }
    }

    fn source(self) -> Source {
        match self {
            Self::Loss => Source::Steps(Metric::Loss),
            Self::GradNorm => Source::Steps(Metric::GradNorm),
            Self::Throughput | Self::StepTime => Source::Steps(Metric::StepMs),
            Self::LearningRate => Source::Steps(Metric::Lr),
            Self::DataWait => Source::Steps(Metric::Waiting),
            Self::SkipRate => Source::Skips,
            Self::Evaluation => Source::Evaluations,
            Self::Vram => Source::Probe(Gauge::Vram),
            Self::Temperature => Source::Probe(Gauge::Temperature),
            Self::Utilisation => Source::Probe(Gauge::Utilisation),
            Self::Power => Source::Probe(Gauge::Power),
            Self::Ram => Source::Probe(Gauge::WorkerRam),
            Self::Cpu => Source::Probe(Gauge::Cpu),
        }
    }

    /// Returns the per-step metric, for quantities where smoothing makes sense.
    #[must_use]
    pub fn smoothed(self) -> Option<Metric> {
        match (self, self.source()) {
            (Self::LearningRate, _) => None,
            (_, Source::Steps(metric)) => Some(metric),
            _ => None,
        }
    }

    /// Converts a stored extent to the unit of the chart.
    #[must_use]
    pub fn shown(self, extent: Extent) -> Extent {
        let each = |value: fn(f32) -> f32| Extent {
            min: value(extent.min),
            max: value(extent.max),
            mean: value(extent.mean),
            count: extent.count,
        };
        match self {
            // The slowest step has the lowest speed.
            Self::Throughput => {
                let turned = each(|ms| if ms > 0.0 { 1e3 / ms } else { 0.0 });
                Extent { min: turned.max, max: turned.min, ..turned }
            }
            Self::DataWait => each(|share| share * 100.0),
            _ => extent,
        }
    }

    /// Returns a window of an axis in `width` columns.
    #[must_use]
    pub fn columns(self, state: &State, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        let facts = &state.facts;
        match self.source() {
            Source::Steps(metric) => {
                let mut columns = facts.series.columns_on(metric, axis, window, width);
                for column in &mut columns {
                    column.extent = column.extent.map(|extent| self.shown(extent));
                }
                columns
            }
            Source::Skips => skip_rate(facts.series.columns_on(Metric::Lr, axis, window, width)),
            Source::Evaluations => evaluations(state, axis, window, width),
            Source::Probe(gauge) => facts.gauged.columns(gauge, axis, window, width),
        }
    }

    /// Returns the value nearest to a position, in the unit of the chart.
    #[must_use]
    pub fn at(self, state: &State, axis: Axis, place: f64) -> Option<Extent> {
        match self.source() {
            Source::Steps(metric) => Some(self.shown(state.facts.series.at(axis, place)?.extent(metric)?)),
            Source::Probe(gauge) => state.facts.gauged.at(gauge, axis, place),
            Source::Skips => {
                let end = state.facts.series.at(axis, place)?.spot().step as f64;
                let start = end - (SKIP_WINDOW as f64 - 1.0);
                let columns = state.facts.series.columns(Metric::Lr, start..end, 1);
                skip_rate(columns).pop()?.extent
            }
            Source::Evaluations => {
                let spots = state.facts.evals.values().map(|row| (spot_of(row).on(axis), row.eval.loss));
                let near = spots.min_by(|a, b| (a.0 - place).abs().total_cmp(&(b.0 - place).abs()));
                Extent::one(near?.1 as f32)
            }
        }
    }

    /// Returns values the range of the chart must include: none where the shape of the curve matters, 0
    /// and the limit where the quantity fills a capacity.
    #[must_use]
    pub fn hold(self, state: &State) -> Option<(f64, f64)> {
        let gpu = || state.facts.samples.back().and_then(|row| row.reading.gpu.as_ref().ok());
        let top = |value: fn(&Gpu) -> Option<f64>| (0.0, gpu().and_then(value).unwrap_or(0.0));
        match self {
            Self::SkipRate => Some((0.0, state.watch.skip_rate * 200.0)),
            Self::Vram => Some(top(|gpu| gpu.vram_total_bytes.get().map(|bytes| bytes as f64 / (1u64 << 30) as f64))),
            Self::Temperature => Some(top(|gpu| gpu.slowdown_c.get())),
            Self::Power => Some(top(|gpu| gpu.power_limit_w.get())),
            Self::Utilisation | Self::Cpu | Self::DataWait => Some((0.0, 100.0)),
            Self::Ram | Self::Throughput | Self::StepTime => Some((0.0, 0.0)),
            Self::Loss | Self::GradNorm | Self::LearningRate | Self::Evaluation => None,
        }
    }

    /// Returns the warning threshold.
    #[must_use]
    pub fn limit(self, state: &State) -> Option<f64> {
        let total = || {
            let gpu = state.facts.samples.back()?.reading.gpu.as_ref().ok()?;
            gpu.vram_total_bytes.get().map(|bytes| bytes as f64 / (1u64 << 30) as f64)
        };
        match self {
            Self::SkipRate => Some(state.watch.skip_rate * 100.0),
            Self::Temperature => Some(state.watch.temperature_c),
            Self::Vram => Some(total()? * state.watch.vram),
            _ => None,
        }
    }

    /// Explains why there is nothing to draw.
    #[must_use]
    pub fn why_nothing(self, state: &State) -> String {
        let gpu = match state.facts.samples.back().map(|row| &row.reading.gpu) {
            Some(Err(why)) => why.clone(),
            Some(Ok(_)) => "the card does not tell".to_owned(),
            None => "no reading of the probe yet".to_owned(),
        };
        match (self.source(), &state.facts.history_error) {
            (_, Some(reason)) if state.facts.series.is_empty() => {
                format!("the run's history could not be read: {reason}")
            }
            (Source::Probe(Gauge::WorkerRam | Gauge::Cpu), _) => "no reading of the probe yet".to_owned(),
            (Source::Probe(Gauge::Vram), _) => gpu,
            // Explained once: four charts need not repeat the same sentence.
            (Source::Probe(_), _) if state.facts.samples.back().is_some_and(|row| row.reading.gpu.is_err()) => {
                format!("no reading of a GPU; the chart of {} says why", Self::Vram.title())
            }
            (Source::Probe(_), _) => gpu,
            (Source::Evaluations, _) => "no evaluation yet".to_owned(),
            _ if state.facts.series.is_empty() && state.is_over() => "the run ended before its first step".to_owned(),
            _ if state.facts.series.is_empty() => "no step yet; the curve begins with the first one".to_owned(),
            _ => "no finite value yet".to_owned(),
        }
    }
}

/// Returns the position of an evaluation.
#[must_use]
pub fn spot_of(row: &crate::protocol::control::EvalRow) -> crate::store::summary::Spot {
    crate::store::summary::Spot { step: row.eval.step, samples: row.eval.samples, time_ms: row.time_ms }
}

/// Computes the percentage of skipped steps over each column and as many columns before it as it takes
/// to cover 200 steps.
fn skip_rate(mut columns: Vec<Column>) -> Vec<Column> {
    let (mut near, mut skipped, mut rows) = (VecDeque::new(), 0u64, 0u64);
    for column in &mut columns {
        column.extent = None;
        if column.rows == 0 {
            continue;
        }
        near.push_back((u64::from(column.skipped), u64::from(column.rows)));
        (skipped, rows) = (skipped + u64::from(column.skipped), rows + u64::from(column.rows));
        while let Some((old, of)) = near.front().copied().filter(|(_, of)| rows - of >= SKIP_WINDOW as u64) {
            near.pop_front();
            (skipped, rows) = (skipped - old, rows - of);
        }
        column.extent = Extent::one((skipped as f64 * 100.0 / rows as f64) as f32);
    }
    columns
}

fn evaluations(state: &State, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
    let mut columns = vec![Column::default(); width];
    let span = window.end - window.start;
    for row in state.facts.evals.values() {
        let place = spot_of(row).on(axis);
        if !(window.start..=window.end).contains(&place) || width == 0 {
            continue;
        }
        let share = if span > 0.0 { (place - window.start) / span } else { 0.0 };
        let column = &mut columns[((share * (width - 1) as f64).round().max(0.0) as usize).min(width - 1)];
        let one = Extent::one(row.eval.loss as f32);
        column.rows += 1;
        column.extent = match (column.extent, one) {
            (Some(a), Some(b)) => Some(a.with(b)),
            (a, b) => a.or(b),
        };
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::Quantity;
    use crate::cockpit::fixture;
    use crate::cockpit::series::Axis;

    #[test]
    fn every_quantity_has_a_curve_on_a_gpu() {
        let state = fixture::on_gpu((120, 40));
        let (first, last) = state.facts.series.spots().unwrap();
        for axis in [Axis::Steps, Axis::Samples, Axis::Time] {
            for quantity in Quantity::ALL {
                let columns = quantity.columns(&state, axis, first.on(axis)..last.on(axis), 100);
                assert!(columns.iter().any(|column| column.extent.is_some()), "{quantity:?} over {axis:?}");
                assert!(quantity.at(&state, axis, last.on(axis)).is_some(), "{quantity:?} over {axis:?}");
            }
        }
    }

    #[test]
    fn the_skip_rate_is_taken_over_200_steps() {
        let state = fixture::training((120, 40));
        let columns = Quantity::SkipRate.columns(&state, Axis::Steps, 1.0..700.0, 700);
        let at = |step: usize| columns[step - 1].extent.unwrap().mean;
        assert!((at(300) - 0.5).abs() < 0.01 && (at(400) - 1.0).abs() < 0.01 && at(600) < 0.01);
        assert!((Quantity::SkipRate.at(&state, Axis::Steps, 400.0).unwrap().mean - 1.0).abs() < 0.01);
    }

    #[test]
    fn speed_is_the_turned_step_time() {
        let extent = crate::cockpit::series::Extent { min: 10.0, max: 50.0, mean: 20.0, count: 3 };
        let speed = Quantity::Throughput.shown(extent);
        assert_eq!([speed.min, speed.max, speed.mean].map(|value| value.round() as i32), [20, 100, 50]);
    }
}
