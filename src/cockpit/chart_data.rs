//! Values of a quantity over the run: the columns that its chart draws, the value under the cursor, the
//! range and the limit that the chart shows.

use super::action::Action;
use super::quantity::{Quantity, Source};
use super::state::State;
use super::state::facts::{Facts, SKIP_WINDOW};
use super::state::readings::{GIB, Gauge};
use crate::protocol::control::EvalRow;
use crate::protocol::probe::Gpu;
use crate::series::{Axis, Column, Extent, Metric};
use crate::store::summary::Spot;
use std::collections::VecDeque;
use std::ops::Range;

impl Quantity {
    /// Returns a window of an axis in `width` columns.
    #[must_use]
    pub fn columns(self, state: &State, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        let facts = &state.facts;
        match self.source() {
            Source::Steps(_) | Source::Named(_) => {
                let Some(metric) = self.step_metric(&facts.metrics, &facts.series) else {
                    return vec![Column::default(); width];
                };
                let mut columns = facts.series.columns_on(metric, axis, window, width);
                for column in &mut columns {
                    column.extent = column.extent.map(|extent| self.in_chart_unit(extent));
                }
                columns
            }
            Source::Skips if rows_tell_skips(facts) => {
                skip_rate_columns(facts.series.columns_on(Metric::Lr, axis, window, width))
            }
            Source::Skips => vec![Column::default(); width],
            Source::Evaluations | Source::EvalNamed(_) => {
                let name = self.eval_metric(&facts.metrics).unwrap_or_default();
                evaluation_columns(facts.evals.values(), name, axis, window, width)
            }
            Source::Probe(gauge) => facts.readings.columns(gauge, axis, window, width),
        }
    }

    /// Returns the value nearest to a position, in the unit of the chart.
    #[must_use]
    pub fn value_at(self, state: &State, axis: Axis, place: f64) -> Option<Extent> {
        match self.source() {
            Source::Steps(_) | Source::Named(_) => {
                let metric = self.step_metric(&state.facts.metrics, &state.facts.series)?;
                Some(self.in_chart_unit(state.facts.series.at(axis, place)?.extent(metric)?))
            }
            Source::Probe(gauge) => state.facts.readings.at(gauge, axis, place),
            Source::Skips => {
                if !rows_tell_skips(&state.facts) {
                    return None;
                }
                let end = state.facts.series.at(axis, place)?.spot().step as f64;
                let start = end - (SKIP_WINDOW as f64 - 1.0);
                let columns = state.facts.series.columns(Metric::Lr, start..end, 1);
                skip_rate_columns(columns).pop()?.extent
            }
            Source::Evaluations | Source::EvalNamed(_) => Extent::one(self.evaluation_at(state, axis, place)?.1 as f32),
        }
    }

    /// Returns the nearest evaluation that has the quantity: where it is, and the value.
    #[must_use]
    pub fn evaluation_at(self, state: &State, axis: Axis, place: f64) -> Option<(f64, f64)> {
        let name = self.eval_metric(&state.facts.metrics)?;
        let spot = |row: &EvalRow| axis.place(evaluation_spot(row));
        let spots = state.facts.evals.values().filter_map(|row| Some((spot(row), row.eval.value(name)?)));
        spots.min_by(|a, b| (a.0 - place).abs().total_cmp(&(b.0 - place).abs()))
    }

    /// Returns values the range of the chart must include: none where the shape of the curve matters, 0
    /// and the limit where the quantity fills a capacity.
    #[must_use]
    pub fn held_range(self, state: &State) -> Option<(f64, f64)> {
        let gpu = || state.facts.samples.back().and_then(|row| row.reading.gpu.as_ref().ok());
        let top = |value: fn(&Gpu) -> Option<f64>| (0.0, gpu().and_then(value).unwrap_or(0.0));
        match self {
            Self::SkipRate => Some((0.0, state.watch.skip_rate * 200.0)),
            Self::Vram => Some(top(|gpu| gpu.vram_total_bytes.get().map(|bytes| bytes as f64 / GIB))),
            Self::Temperature => Some(top(|gpu| gpu.slowdown_c.get())),
            Self::Power => Some(top(|gpu| gpu.power_limit_w.get())),
            Self::Utilisation | Self::Cpu | Self::DataWait => Some((0.0, 100.0)),
            Self::Ram | Self::Throughput | Self::StepTime => Some((0.0, 0.0)),
            Self::Loss
            | Self::GradNorm
            | Self::LearningRate
            | Self::Evaluation
            | Self::Named(_)
            | Self::EvalNamed(_) => None,
        }
    }

    /// Returns the warning threshold.
    #[must_use]
    pub fn limit(self, state: &State) -> Option<f64> {
        let total = || {
            let gpu = state.facts.samples.back()?.reading.gpu.as_ref().ok()?;
            gpu.vram_total_bytes.get().map(|bytes| bytes as f64 / GIB)
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
    pub fn why_empty(self, state: &State) -> String {
        let gpu = match state.facts.samples.back().map(|row| &row.reading.gpu) {
            Some(Err(error)) => error.to_string(),
            Some(Ok(_)) => "the GPU does not report it".to_owned(),
            None => "no reading yet: one follows each second".to_owned(),
        };
        let unread = state.facts.status.as_ref().and_then(|status| status.unread.as_ref());
        let is_command = state.command.is_some();
        match (self.source(), &state.facts.history_error) {
            (_, Some(reason)) if state.facts.series.is_empty() => {
                format!("cannot read the history: {reason}")
            }
            (Source::Probe(Gauge::WorkerRam | Gauge::Cpu), _) => "no reading yet: one follows each second".to_owned(),
            (Source::Probe(_), _) => gpu,
            (Source::Evaluations | Source::EvalNamed(_), _) if is_command => {
                "no evaluations yet: print one as `val_loss 0.5`".to_owned()
            }
            (Source::Evaluations | Source::EvalNamed(_), _) => "no evaluations yet".to_owned(),
            _ if state.facts.series.is_empty() && unread.is_some() => {
                unread.map_or_else(String::new, ToString::to_string)
            }
            _ if state.facts.series.is_empty() && state.is_over() => {
                "the run ended before its first step: `downshift triage` says why".to_owned()
            }
            _ if state.facts.series.is_empty() && is_command => {
                "no steps yet: they come with lines such as `step 10 loss 0.5`".to_owned()
            }
            _ if state.facts.series.is_empty() => "no steps yet".to_owned(),
            (Source::Skips, _) => "unknown: print a line for each step that the script skips".to_owned(),
            _ if state.facts.series.skips().first.is_some() => {
                format!("every value so far is NaN: {} previews a safer rung", state.keys.key_of(Action::ShiftDown))
            }
            (Source::Steps(Metric::Loss), _) => "no loss printed yet: print it beside the step".to_owned(),
            _ => "no value printed yet".to_owned(),
        }
    }
}

/// Reports whether the rows of the steps tell which of them were skipped. A command may be silent about that, or count the
/// skipped ones without naming them.
fn rows_tell_skips(facts: &Facts) -> bool {
    let Some(status) = &facts.status else { return true };
    let skipped = facts.series.skipped_among(usize::MAX, 0).0;
    let is_told = |known: u64| status.updates.is_none() || known <= skipped;
    (skipped > 0 && status.updates.is_none()) || status.skipped.is_some_and(is_told)
}

/// Returns the position of an evaluation.
#[must_use]
pub fn evaluation_spot(row: &EvalRow) -> Spot {
    Spot { step: row.eval.step, samples: row.eval.samples, time_ms: row.time_ms }
}

/// Computes the percentage of skipped steps over each column and as many columns before it as it takes
/// to cover 200 steps.
fn skip_rate_columns(mut columns: Vec<Column>) -> Vec<Column> {
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

/// Returns a metric of evaluations, within a window of an axis, in `width` columns.
pub fn evaluation_columns<'a>(
    evals: impl Iterator<Item = &'a EvalRow>,
    name: &str,
    axis: Axis,
    window: Range<f64>,
    width: usize,
) -> Vec<Column> {
    let mut columns = vec![Column::default(); width];
    let span = window.end - window.start;
    for row in evals {
        let place = axis.place(evaluation_spot(row));
        if !(window.start..=window.end).contains(&place) || width == 0 {
            continue;
        }
        let share = if span > 0.0 { (place - window.start) / span } else { 0.0 };
        let column = &mut columns[((share * (width - 1) as f64).round().max(0.0) as usize).min(width - 1)];
        let one = row.eval.value(name).and_then(|value| Extent::one(value as f32));
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
    use crate::cockpit::fixture;
    use crate::cockpit::quantity::Quantity;
    use crate::series::Axis;

    #[test]
    fn every_quantity_has_a_curve_on_a_gpu() {
        let state = fixture::on_gpu((120, 40));
        let (first, last) = state.facts.series.spots().unwrap();
        for axis in [Axis::Steps, Axis::Samples, Axis::Time] {
            for quantity in Quantity::ALL {
                let columns = quantity.columns(&state, axis, axis.place(first)..axis.place(last), 100);
                assert!(columns.iter().any(|column| column.extent.is_some()), "{quantity:?} over {axis:?}");
                assert!(quantity.value_at(&state, axis, axis.place(last)).is_some(), "{quantity:?} over {axis:?}");
            }
        }
    }

    #[test]
    fn the_skip_rate_is_taken_over_200_steps() {
        let state = fixture::training((120, 40));
        let columns = Quantity::SkipRate.columns(&state, Axis::Steps, 1.0..700.0, 700);
        let at = |step: usize| columns[step - 1].extent.unwrap().mean;
        assert!((at(300) - 0.5).abs() < 0.01 && (at(400) - 1.0).abs() < 0.01 && at(600) < 0.01);
        assert!((Quantity::SkipRate.value_at(&state, Axis::Steps, 400.0).unwrap().mean - 1.0).abs() < 0.01);
    }
}
