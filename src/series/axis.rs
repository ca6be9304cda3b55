//! The x axes of charts.

use crate::store::summary::Spot;

/// X axis of a chart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Optimizer steps.
    #[default]
    Steps,
    /// The run's clock: samples or tokens.
    Samples,
    /// The time of day.
    Time,
}

impl Axis {
    /// Returns the next axis.
    #[must_use]
    pub fn next(self) -> Self {
        match self {
            Self::Steps => Self::Samples,
            Self::Samples => Self::Time,
            Self::Time => Self::Steps,
        }
    }

    /// Returns what its numbers count; nothing for times of day, which explain themselves.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Samples => "samples",
            Self::Time => "",
        }
    }

    /// Returns where a position of the run lies on this axis.
    #[must_use]
    pub fn place(self, spot: Spot) -> f64 {
        match self {
            Self::Steps => spot.step as f64,
            Self::Samples => spot.samples as f64,
            Self::Time => spot.time_ms as f64,
        }
    }
}
