//! Quantities that can be charted: every value of a step, of an evaluation and of the probe, each in
//! its display unit, and the metrics that a run reports by name. Their values are read in `chart_data`.

use super::state::chart::ValueScale;
use super::state::metrics::RunMetrics;
use super::state::readings::{GIB, Gauge};
use crate::format::{UNKNOWN, bytes, figure, learning_rate, percent, rate};
use crate::protocol::metrics::LOSS;
use crate::series::{Extent, Metric, Series};
use crate::store::summary::MetricId;

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
    /// A metric that steps report by name.
    Named(MetricId),
    /// A metric that evaluations report by name.
    EvalNamed(MetricId),
}

/// Source of a quantity's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A metric that every step has.
    Steps(Metric),
    /// A metric of the steps, by its id among [`RunMetrics`].
    Named(MetricId),
    /// The skipped steps.
    Skips,
    /// The loss of the evaluations.
    Evaluations,
    /// A metric of the evaluations, by its id among [`RunMetrics`].
    EvalNamed(MetricId),
    /// A metric of the probe.
    Probe(Gauge),
}

impl Quantity {
    /// The quantities of every run, in chart order.
    pub const ALL: [Self; 14] = [
        Self::Loss,
        Self::Evaluation,
        Self::GradNorm,
        Self::LearningRate,
        Self::SkipRate,
        Self::Throughput,
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
    pub fn title(self, metrics: &RunMetrics) -> String {
        let title = match self {
            Self::Named(id) => metrics.steps.name(id).unwrap_or(UNKNOWN),
            Self::EvalNamed(id) => return format!("evaluation {}", metrics.evals.name(id).unwrap_or(UNKNOWN)),
            Self::Loss => "loss",
            Self::GradNorm => "gradient norm",
            Self::Throughput => "speed without pauses",
            Self::SkipRate => "steps not finite",
            Self::LearningRate => "learning rate",
            Self::Evaluation => "validation loss",
            Self::StepTime => "step time",
            Self::DataWait => "waiting for data",
            Self::Vram => "VRAM",
            Self::Temperature => "GPU temperature",
            Self::Utilisation => "GPU load",
            Self::Power => "GPU power",
            Self::Ram => "worker RAM",
            Self::Cpu => "CPU",
        };
        title.to_owned()
    }

    /// Reports whether a logarithmic scale makes sense.
    #[must_use]
    pub fn may_be_log(self) -> bool {
        use Quantity::{EvalNamed, Evaluation, GradNorm, LearningRate, Loss, Named};
        matches!(self, Loss | GradNorm | LearningRate | Evaluation | Named(_) | EvalNamed(_))
    }

    /// Returns the scale of its values, given the one chosen for all charts.
    #[must_use]
    pub fn scale(self, chosen: ValueScale) -> ValueScale {
        match chosen {
            // A schedule of the learning rate is a shape that its user knows on a linear scale.
            ValueScale::Automatic if !matches!(self, Self::Loss | Self::Evaluation) => ValueScale::Linear,
            ValueScale::Log if !self.may_be_log() => ValueScale::Linear,
            chosen => chosen,
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
    pub fn format_value(self, value: f64) -> String {
        match self {
            Self::Loss | Self::GradNorm | Self::Evaluation | Self::Named(_) | Self::EvalNamed(_) => figure(value),
            Self::LearningRate => learning_rate(value),
            Self::Throughput => format!("{} steps/s", rate(value)),
            Self::StepTime => format!("{} ms", figure(value)),
            Self::SkipRate | Self::DataWait | Self::Utilisation | Self::Cpu => percent(value / 100.0),
            Self::Vram | Self::Ram => bytes((value.max(0.0) * GIB) as u64),
            Self::Temperature => format!("{value:.0} °C"),
            Self::Power => format!("{value:.0} W"),
        }
    }

    /// Formats a value for the end of its curve, where the unit does not fit.
    #[must_use]
    pub fn format_bare(self, value: f64, unit: &str) -> String {
        match self {
            Self::Vram | Self::Ram if unit == "MiB" => format!("{value:.1}"),
            Self::Throughput => rate(value),
            Self::Vram | Self::Ram => format!("{value:.2}"),
            Self::StepTime => figure(value),
            _ => self.format_value(value),
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

    /// Returns where its values come from.
    #[must_use]
    pub fn source(self) -> Source {
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
            Self::Named(id) => Source::Named(id),
            Self::EvalNamed(id) => Source::EvalNamed(id),
        }
    }

    /// Returns the metric of a curve that holds the values; `None` if that curve has none of this name.
    #[must_use]
    pub fn step_metric(self, metrics: &RunMetrics, series: &Series) -> Option<Metric> {
        match self.source() {
            Source::Steps(metric) => Some(metric),
            Source::Named(id) => series.names().find(metrics.steps.name(id)?).map(Metric::Named),
            _ => None,
        }
    }

    /// Returns the name of the metric of evaluations that holds the values.
    #[must_use]
    pub fn eval_metric(self, metrics: &RunMetrics) -> Option<&str> {
        match self.source() {
            Source::Evaluations => Some(LOSS),
            Source::EvalNamed(id) => metrics.evals.name(id),
            _ => None,
        }
    }

    /// Reports whether smoothing makes sense: for measurements of steps, not for a schedule.
    #[must_use]
    pub fn is_noisy(self) -> bool {
        self != Self::LearningRate && matches!(self.source(), Source::Steps(_) | Source::Named(_))
    }

    /// Converts a stored extent to the unit of the chart.
    #[must_use]
    pub fn in_chart_unit(self, extent: Extent) -> Extent {
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
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn speed_is_the_turned_step_time() {
        let extent = crate::series::Extent { min: 10.0, max: 50.0, mean: 20.0, count: 3 };
        let speed = Quantity::Throughput.in_chart_unit(extent);
        assert_eq!([speed.min, speed.max, speed.mean].map(|value| value.round() as i32), [20, 100, 50]);
    }
}
