//! The steps that every rank takes, and the lines in which it reports them.

use serde::Deserialize;
use std::fmt;

/// The steps of a rank, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Imports PyTorch and chooses the device.
    Start,
    /// Joins the group.
    Init,
    /// Sums one number.
    AllReduce,
    /// Waits for the others.
    Barrier,
    /// Sums 16 MiB several times.
    Bandwidth,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 5] = [Self::Start, Self::Init, Self::AllReduce, Self::Barrier, Self::Bandwidth];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Init => "init",
            Self::AllReduce => "all_reduce",
            Self::Barrier => "barrier",
            Self::Bandwidth => "bandwidth",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The result of a step on one rank.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StepReport {
    /// The time it took.
    pub seconds: f64,
    /// Version of PyTorch.
    pub torch: Option<String>,
    /// Version of Python.
    pub python: Option<String>,
    /// The backend: gloo or nccl.
    pub backend: Option<String>,
    /// The name of its device.
    pub device: Option<String>,
    /// Bytes per second over each link.
    pub bytes_per_s: Option<f64>,
}

/// A line of a rank.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A step that failed.
    Failed {
        /// The step.
        failed: Step,
        /// Its error.
        message: String,
    },
    /// A step that ended well.
    Done {
        /// The step.
        done: Step,
        /// What it found.
        #[serde(flatten)]
        found: StepReport,
    },
}
