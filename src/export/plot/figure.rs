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

/// A name that is not that of a figure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown metric `{0}`; choose from eval, {}", Metric::ALL.map(Metric::name).join(", "))]
pub struct UnknownFigure(String);

impl FromStr for Figure {
    type Err = UnknownFigure;

    fn from_str(text: &str) -> Result<Self, UnknownFigure> {
        let steps = Metric::ALL.map(|metric| (metric.name(), Self::Step(metric)));
        let mut known = steps.into_iter().chain([("eval", Self::Eval)]);
        let found = known.find(|(name, _)| *name == text);
        found.map(|(_, figure)| figure).ok_or_else(|| UnknownFigure(text.to_owned()))
    }
}
