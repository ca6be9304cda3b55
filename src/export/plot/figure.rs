//! Figures that can be plotted, by name.

use crate::series::Metric;
use std::str::FromStr;

/// A quantity shown in a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// A metric recorded for every step.
    Step(Metric),
    /// The validation loss.
    Eval,
}

impl Figure {
    /// Returns its title, with the unit.
    pub fn title(self) -> &'static str {
        match self {
            Self::Step(Metric::Loss) => "Loss",
            Self::Step(Metric::GradNorm) => "Gradient norm",
            Self::Step(Metric::StepMs) => "Step time, ms",
            Self::Step(Metric::Lr) => "Learning rate",
            Self::Step(Metric::DataWaitMs) => "Waiting for data, ms",
            Self::Step(Metric::ComputeMs) => "Computing, ms",
            Self::Step(Metric::Waiting) => "Waiting for data, share of the step",
            Self::Eval => "Evaluation loss",
        }
    }

    /// Reports whether smoothing makes sense: not for a schedule.
    pub fn is_noisy(self) -> bool {
        !matches!(self, Self::Eval | Self::Step(Metric::Lr))
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let steps = Metric::ALL.map(|metric| (metric.name(), Self::Step(metric)));
        let mut known = steps.into_iter().chain([("eval", Self::Eval)]);
        known.find(|(name, _)| *name == text).map(|(_, figure)| figure).ok_or_else(|| {
            let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
            format!("unknown metric `{text}`; choose from eval, {}", names.join(", "))
        })
    }
}
