//! Saves that failed, as the status of a run shows them.

use crate::format::{count, counted};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Saves that failed in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedSaves {
    /// The step of the first of them.
    pub step: u64,
    /// How many there are.
    pub count: u64,
    /// Why the last one failed.
    pub why: String,
}

impl fmt::Display for FailedSaves {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, saves) = (count(self.step), counted(self.count, "save"));
        write!(formatter, "saves have failed since step {step} ({saves}): {}", self.why)
    }
}
