//! The layout of one chart, before it is written as SVG.

use super::Loaded;
use super::figure::{Figure, Values};
use crate::protocol::metrics::LOSS;
use crate::series::scale::{Scale, above_zero, range_top};
use crate::series::{Column, Metric};

/// The plot's options.
pub struct ChartOptions {
    /// Logarithmic scale.
    pub log: bool,
    /// Smoothing weight.
    pub smoothing: f64,
    /// First and last step; `None` = those of the run.
    pub window: (Option<u64>, Option<u64>),
}

/// A point in a chart: the fraction of its width from the left, and a value.
pub type Dot = (f64, f64);

/// One run's data in a chart.
#[derive(Default)]
pub struct Trace {
    /// Contiguous segments of (position, minimum, maximum) of the measured values.
    pub band: Vec<Vec<(f64, f64, f64)>>,
    /// Contiguous segments of the smoothed line.
    pub line: Vec<Vec<Dot>>,
    /// Evaluations.
    pub evals: Vec<Dot>,
    /// The best evaluation whose weights are on disk: its point and its step.
    pub best: Option<(Dot, u64)>,
    /// The lowest measured loss, if there is no best evaluation.
    pub lowest: Option<(Dot, u64)>,
    /// Positions of skipped steps.
    pub skips: Vec<f64>,
}

/// A chart.
pub struct Panel {
    /// The quantity it shows.
    pub figure: Figure,
    /// Maps values to heights.
    pub scale: Scale,
    /// The smallest and the largest value of the scale.
    range: (f64, f64),
    /// The largest value, if the range ends below it.
    pub cut: Option<f64>,
    /// One trace per run.
    pub traces: Vec<Trace>,
}

/// Returns the step range shared by all charts.
pub fn shared_window(runs: &[Loaded], options: &ChartOptions) -> Option<(f64, f64)> {
    let ends = || runs.iter().filter_map(|run| run.series.ends());
    let first = options.window.0.or_else(|| ends().map(|(first, _)| first).min())?;
    let last = options.window.1.or_else(|| ends().map(|(_, last)| last).max())?;
    Some((first as f64, (last.max(first + 1)) as f64))
}

/// Lays out a chart `pixels` wide; returns none if there are no values.
pub fn lay_out_panel(
    runs: &[Loaded],
    figure: &Figure,
    window: (f64, f64),
    pixels: usize,
    options: &ChartOptions,
) -> Option<Panel> {
    let traces: Vec<Trace> = runs.iter().map(|run| lay_out_trace(run, figure, window, pixels, options)).collect();
    let bands = || traces.iter().flat_map(|trace| trace.band.iter().flatten());
    let others = || traces.iter().flat_map(|trace| trace.evals.iter().map(|(_, value)| *value));
    let lows = bands().map(|(_, low, _)| *low).chain(others());
    // A loss of 0 is one that was printed with too few digits.
    let above_zero = above_zero(lows.clone()).filter(|_| options.log);
    let low = above_zero.or_else(|| lows.reduce(f64::min))?;
    let bands = traces.iter().map(|trace| trace.band.iter().flatten().map(|(.., high)| *high).collect::<Vec<f64>>());
    let evals = traces.iter().map(|trace| trace.evals.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
    let lines: Vec<Vec<f64>> = bands.chain(evals).collect();
    let (high, cut) = range_top(low, lines.iter().map(Vec::as_slice))?;
    let log = options.log && low > 0.0;
    // A margin above and below.
    let (low, high) = if log {
        let air = (high / low).powf(0.04);
        (low / air, high * air)
    } else {
        let air = (high - low) * 0.05;
        (if low >= 0.0 { (low - air).max(0.0) } else { low - air }, high + air)
    };
    Some(Panel { figure: figure.clone(), scale: Scale::new(low, high, log)?, range: (low, high), cut, traces })
}

impl Panel {
    /// Returns the height of a value: 0 at the bottom, 1 at the top, outside 0..1 if it is out of range.
    pub fn height(&self, value: f64) -> f64 {
        let share = self.scale.share(value);
        if value <= self.range.1 || self.range.1 <= self.range.0 {
            return share;
        }
        // Far enough that the line leaves the chart at its own angle.
        1.0 + ((value - self.range.1) / (self.range.1 - self.range.0)).min(20.0)
    }
}

fn lay_out_trace(
    run: &Loaded,
    figure: &Figure,
    (start, end): (f64, f64),
    pixels: usize,
    options: &ChartOptions,
) -> Trace {
    let share = |step: f64| (step - start) / (end - start);
    let measured = |name: &str| {
        let values = run.evals.iter().filter_map(|row| Some((row.eval.step as f64, row.eval.value(name)?)));
        let within = values.filter(|(step, value)| (start..=end).contains(step) && value.is_finite());
        within.map(|(step, value)| (share(step), value)).collect::<Vec<Dot>>()
    };
    let metric = match figure.find_in(run) {
        None => return Trace::default(),
        Some(Values::Steps(metric)) => metric,
        Some(Values::Evals(name)) => {
            let evals = measured(name);
            return Trace { line: vec![evals.clone()], evals, ..Trace::default() };
        }
    };
    let columns = run.series.columns(metric, start..end, pixels);
    let at = |place: usize| place as f64 / (pixels.max(2) - 1) as f64;
    let mut band = vec![Vec::new()];
    let mut skips = Vec::new();
    for (place, column) in columns.iter().enumerate() {
        match column.extent {
            Some(extent) => {
                if let Some(part) = band.last_mut() {
                    part.push((at(place), extent.min.into(), extent.max.into()));
                }
            }
            None if column.skipped > 0 => band.push(Vec::new()),
            None => {}
        }
        if column.skipped > 0 {
            skips.push(at(place));
        }
    }
    band.retain(|part| !part.is_empty());
    let weight = if figure.is_noisy() { options.smoothing } else { 0.0 };
    let least = run.series.best(metric).map(|(step, value)| (step, f64::from(value)));
    let seen = |(step, _): &(u64, f64)| metric == Metric::Loss && (start..=end).contains(&(*step as f64));
    let dot = |(step, value): (u64, f64)| ((share(step as f64), value), step);
    let best = run.best.filter(seen).map(dot);
    Trace {
        band,
        line: smooth(&columns, weight, at),
        evals: if metric == Metric::Loss { measured(LOSS) } else { Vec::new() },
        best,
        lowest: least.filter(|least| best.is_none() && seen(least)).map(dot),
        skips: if matches!(metric, Metric::Loss | Metric::GradNorm) { skips } else { Vec::new() },
    }
}

/// Computes the exponential moving average as TensorBoard defines it (the weight applies to the past,
/// with bias correction). A column counts as its mean for each step its values stand for; skipped steps break the line
/// and do not change the average.
fn smooth(columns: &[Column], weight: f64, at: impl Fn(usize) -> f64) -> Vec<Vec<Dot>> {
    let (mut sum, mut norm) = (0.0, 0.0);
    let mut line = vec![Vec::new()];
    for (place, column) in columns.iter().enumerate() {
        let Some(extent) = column.extent else {
            if column.skipped > 0 {
                line.push(Vec::new());
            }
            continue;
        };
        let kept = weight.powi(i32::try_from(column.steps.max(extent.count)).unwrap_or(i32::MAX));
        sum = kept * sum + (1.0 - kept) * f64::from(extent.mean);
        norm = kept * norm + (1.0 - kept);
        if let Some(part) = line.last_mut() {
            part.push((at(place), sum / norm));
        }
    }
    line.retain(|part| !part.is_empty());
    line
}

#[cfg(test)]
mod tests {
    use super::{range_top, smooth};
    use crate::series::{Column, Extent};

    #[test]
    fn a_spike_does_not_flatten_the_chart_and_is_reported() {
        let mut values: Vec<f64> = (0..100).map(|step| 1.0 + f64::from(step) / 100.0).collect();
        assert_eq!(range_top(1.0, [&values[..]]), Some((1.99, None)));
        values[50] = 400.0;
        // A second run that begins higher extends the range.
        let other: Vec<f64> = (0..100).map(|step| 1.0 + 1.7 * (-f64::from(step) / 10.0).exp()).collect();
        assert_eq!(range_top(1.0, [&other[..]]), Some((2.7, None)));
        let (high, cut) = range_top(1.0, [&values[..], &other[..]]).unwrap();
        assert!(high < 4.0 && cut == Some(400.0), "{high} {cut:?}");
    }

    #[test]
    fn smoothing_begins_at_the_first_value_and_skips_break_the_line() {
        let column = |value: Option<f32>| Column {
            extent: value.and_then(Extent::one),
            skipped: u32::from(value.is_none()),
            ..Column::default()
        };
        let columns = [Some(2.0), None, Some(2.0), Some(4.0)].map(column);
        let line = smooth(&columns, 0.5, |place| place as f64);
        assert_eq!(line.len(), 2);
        assert_eq!(line[0], [(0.0, 2.0)]);
        assert!((line[1][0].1 - 2.0).abs() < 1e-9);
        // By hand: 2, 2, 4 weighted by 0.5³, 0.5², 0.5, over the bias correction 1 − 0.5³.
        assert!((line[1][1].1 - (0.125 * 2.0 + 0.25 * 2.0 + 0.5 * 4.0) / 0.875).abs() < 1e-9);
    }
}
