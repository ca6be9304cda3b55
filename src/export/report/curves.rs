//! The curves of a run as data for the browser: one value per column of steps, or its mean, smallest and largest.

use super::facts::Facts;
use super::marks::{self, Mark};
use crate::export::ExportError;
use crate::export::plot::Figure;
use crate::protocol::control::EvalRow;
use crate::protocol::metrics::LOSS;
use crate::series::axis::Axis;
use crate::series::{Column, Metric, Series};
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::store::summary::LEAF;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;

/// Largest number of columns of a chart, and of all charts together.
const COLUMNS: usize = 4096;
const BUDGET: usize = 160_000;
/// Largest number of evaluations in a chart, and of checkpoints marked.
const EVALS: usize = 2000;
const CHECKPOINTS: usize = 1000;
/// The values span more than this factor: the scale is logarithmic unless the reader chooses another one.
const WIDE: f64 = 100.0;

/// The curves of a run.
#[derive(Debug, Serialize)]
pub struct Curves {
    first: u64,
    last: u64,
    /// Number of columns from the first to the last step.
    columns: usize,
    /// Columns with skipped steps.
    skipped: Vec<usize>,
    charts: Vec<Chart>,
    marks: Vec<Mark>,
    checkpoints: Vec<u64>,
}

/// One chart.
#[derive(Debug, Serialize)]
struct Chart {
    /// The metric's name on the command line.
    name: String,
    title: String,
    /// Whether smoothing makes sense.
    noisy: bool,
    /// Whether the scale is logarithmic at first.
    log: bool,
    /// Whether skipped steps are marked.
    skips: bool,
    /// Mean number of values in a column.
    each: f64,
    mean: Vec<Option<f64>>,
    /// The smallest and the largest value of each column, if columns hold several.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<Vec<Option<f64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<Vec<Option<f64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evals: Option<Evals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<Value>,
}

/// Evaluations in a chart.
#[derive(Debug, Serialize)]
struct Evals {
    steps: Vec<u64>,
    values: Vec<f64>,
}

impl Curves {
    /// Reduces the curves of a run to what a page can hold; reads single steps where they are few.
    pub fn of(facts: &mut Facts, run: &RunDir) -> Result<Self, ExportError> {
        let eval_steps = facts.loaded.evals.iter().map(|row| row.eval.step);
        let ends = facts.loaded.series.ends();
        let first = ends.map(|(first, _)| first).into_iter().chain(eval_steps.clone()).min().unwrap_or(0);
        let last = ends.map(|(_, last)| last).into_iter().chain(eval_steps).max().unwrap_or(0);
        let window = first as f64..last as f64;
        let metrics = metrics_of(&facts.loaded.series);
        let columns = columns_of(last - first + 1, metrics.len());
        if let Some(steps) = facts.loaded.series.missing(Axis::Steps, &window, columns) {
            let rows = Reader::open_begun(run)?.curve_rows(&steps);
            facts.loaded.series.fill(&rows.map_err(|source| ExportError::query(run, source))?);
        }
        let loss = facts.loaded.series.columns(Metric::Loss, window.clone(), columns);
        let skipped = |(place, column): (usize, &Column)| (column.skipped > 0).then_some(place);
        Ok(Self {
            first,
            last,
            columns,
            skipped: loss.iter().enumerate().filter_map(skipped).collect(),
            charts: charts_of(facts, &metrics, &window, columns),
            marks: marks::of(facts),
            checkpoints: thin(&facts.loaded.checkpoints, CHECKPOINTS),
        })
    }

    /// Reports whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.charts.is_empty()
    }

    /// Returns how many steps a column covers, if it is more than one.
    pub fn steps_per_point(&self) -> Option<String> {
        let steps = (self.last - self.first) as f64 / self.columns.max(2).saturating_sub(1) as f64;
        (steps > 1.0).then(|| format!("{steps:.1}").trim_end_matches(".0").to_owned())
    }

    /// Returns the data of the page's script: null without curves.
    pub fn as_json(&self) -> Value {
        if self.is_empty() { Value::Null } else { json!(self) }
    }
}

/// Returns the metrics of steps that have a curve worth drawing, in the order of the charts.
fn metrics_of(series: &Series) -> Vec<Metric> {
    let whole = series.aggregate();
    let has_values = |metric: &Metric| {
        let extent = whole.as_ref().and_then(|whole| whole.extent(*metric));
        // A loop that never waits for data has nothing to show there.
        extent.is_some_and(|extent| *metric != Metric::Waiting || extent.max > 0.0)
    };
    let fixed = [Metric::Loss, Metric::Lr, Metric::GradNorm, Metric::StepMs, Metric::Waiting].into_iter();
    fixed.chain(series.names().iter().map(|(id, _)| Metric::Named(id))).filter(has_values).collect()
}

/// Returns the number of columns: one per step if they fit, else as many as leaves can fill.
fn columns_of(steps: u64, metrics: usize) -> usize {
    let most = (BUDGET / metrics.max(1)).min(COLUMNS);
    let steps = usize::try_from(steps).unwrap_or(usize::MAX);
    let leaves = steps / LEAF as usize;
    // Above this number of leaves the series keeps no single steps.
    if leaves < Series::EXACT_LEAVES { steps.min(most) } else { leaves.min(most) }
}

fn charts_of(facts: &Facts, metrics: &[Metric], window: &Range<f64>, columns: usize) -> Vec<Chart> {
    let loaded = &facts.loaded;
    let of_steps = metrics.iter().map(|metric| {
        let mut chart = chart_of(&loaded.series, *metric, window, columns);
        if *metric == Metric::Loss {
            chart.evals = evals_of(&loaded.evals, LOSS);
            chart.best = best_of(facts, LOSS);
        }
        chart
    });
    let mut charts: Vec<Chart> = of_steps.collect();
    let names: BTreeSet<&String> = loaded.evals.iter().flat_map(|row| row.eval.metrics.keys()).collect();
    let mut of_evals: Vec<Chart> = Vec::new();
    if charts.first().is_none_or(|chart| chart.name != "loss") {
        of_evals.extend(eval_chart(facts, LOSS, "eval".to_owned(), Figure::Eval.title().to_owned()));
    }
    let chart_of = |name: &&String| eval_chart(facts, name, format!("eval/{name}"), format!("Evaluation: {name}"));
    of_evals.extend(names.iter().filter_map(chart_of));
    // Evaluations say most about the learning: they come right after the loss.
    let place = charts.iter().take_while(|chart| chart.name == "loss").count();
    charts.splice(place..place, of_evals);
    charts
}

fn chart_of(series: &Series, metric: Metric, window: &Range<f64>, width: usize) -> Chart {
    let columns = series.columns(metric, window.clone(), width);
    let extents = || columns.iter().filter_map(|column| column.extent);
    let (filled, values) =
        extents().fold((0u64, 0u64), |(filled, values), extent| (filled + 1, values + u64::from(extent.count)));
    let (low, high) = extents().fold((f64::MAX, f64::MIN), |(low, high), extent| {
        (low.min(f64::from(extent.min)), high.max(f64::from(extent.max)))
    });
    let column = |value: fn(&crate::series::Extent) -> f32| -> Vec<Option<f64>> {
        columns.iter().map(|column| column.extent.as_ref().map(|extent| shorten(value(extent)))).collect()
    };
    let several = values > filled;
    let figure = Figure::Step(metric);
    let name = metric.name(series.names()).to_owned();
    Chart {
        title: if matches!(metric, Metric::Named(_)) { name.clone() } else { figure.title().to_owned() },
        name,
        noisy: figure.is_noisy(),
        log: figure.is_noisy() && low > 0.0 && high / low > WIDE,
        skips: matches!(metric, Metric::Loss | Metric::GradNorm),
        each: values as f64 / filled.max(1) as f64,
        mean: column(|extent| extent.mean),
        low: several.then(|| column(|extent| extent.min)),
        high: several.then(|| column(|extent| extent.max)),
        evals: None,
        best: None,
    }
}

/// Returns a chart of evaluations alone, if there are any.
fn eval_chart(facts: &Facts, metric: &str, name: String, title: String) -> Option<Chart> {
    let evals = evals_of(&facts.loaded.evals, metric)?;
    let best = best_of(facts, metric);
    let (noisy, log, skips, each, mean, low, high) = (false, false, false, 1.0, Vec::new(), None, None);
    Some(Chart { name, title, noisy, log, skips, each, mean, low, high, evals: Some(evals), best })
}

fn evals_of(rows: &[EvalRow], name: &str) -> Option<Evals> {
    let value = |row: &EvalRow| Some((row.eval.step, row.eval.value(name).filter(|value| value.is_finite())?));
    let mut values: Vec<(u64, f64)> = rows.iter().filter_map(value).collect();
    values.sort_by_key(|(step, _)| *step);
    let (steps, values) = thin_extremes(values).into_iter().unzip();
    let evals = Evals { steps, values };
    (!evals.steps.is_empty()).then_some(evals)
}

/// Keeps the smallest and the largest of neighbouring values, if there are too many.
fn thin_extremes(values: Vec<(u64, f64)>) -> Vec<(u64, f64)> {
    if values.len() <= EVALS {
        return values;
    }
    let group = values.len().div_ceil(EVALS / 2);
    let extremes = |part: &[(u64, f64)]| {
        let by_value = |a: &&(u64, f64), b: &&(u64, f64)| a.1.total_cmp(&b.1);
        let ends: BTreeSet<u64> =
            part.iter().min_by(by_value).into_iter().chain(part.iter().max_by(by_value)).map(|end| end.0).collect();
        part.iter().filter(move |value| ends.contains(&value.0)).copied().collect::<Vec<_>>()
    };
    values.chunks(group).flat_map(extremes).collect()
}

fn best_of(facts: &Facts, metric: &str) -> Option<Value> {
    let best = facts.status.as_ref()?.best.as_ref()?;
    (best.metric == metric).then(|| json!({ "step": best.step, "value": best.value }))
}

/// Keeps evenly spaced items, and the last one, if there are too many.
fn thin(steps: &[u64], most: usize) -> Vec<u64> {
    let stride = steps.len().div_ceil(most).max(1);
    steps.iter().rev().step_by(stride).rev().copied().collect()
}

/// Rounds to five significant digits, which a screen cannot show any more.
fn shorten(value: f32) -> f64 {
    format!("{value:.4e}").parse().unwrap_or_else(|_| f64::from(value))
}

#[cfg(test)]
mod tests;
