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
}

impl Spot {
    /// Returns the position on an axis.
    #[must_use]
    pub fn on(self, axis: Axis) -> f64 {
        match axis {
            Axis::Steps => self.step as f64,
            Axis::Samples => self.samples as f64,
            Axis::Time => self.time_ms as f64,
        }
    }

    /// Returns the midpoint between this and a later position.
    #[must_use]
    pub fn middle(self, later: Self) -> Self {
        Self {
            step: self.step + later.step.saturating_sub(self.step) / 2,
            samples: self.samples + later.samples.saturating_sub(self.samples) / 2,
            time_ms: self.time_ms + later.time_ms.saturating_sub(self.time_ms) / 2,
        }
    }
}
