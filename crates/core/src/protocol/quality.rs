//! The report of a process that measured the quality of a checkpoint: one line of JSON on its stdout.

use super::metrics::{self, Metrics};
use serde::{Deserialize, Serialize};

/// The outcome of a measurement. Parts that failed leave out their numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct QualityReport {
    /// The numbers, without the prefix of quality metrics.
    #[serde(default, deserialize_with = "metrics::read_finite")]
    pub metrics: Metrics,
    /// Why parts of it failed, a sentence each.
    #[serde(default)]
    pub failures: Vec<String>,
    /// The checkpoint is damaged or gone, so another one has to be measured.
    #[serde(default)]
    pub unusable: bool,
}

impl QualityReport {
    /// A measurement without numbers.
    #[must_use]
    pub fn failed(why: impl Into<String>) -> Self {
        Self { failures: vec![why.into()], ..Self::default() }
    }

    /// A checkpoint that cannot be measured.
    #[must_use]
    pub fn unusable(why: impl Into<String>) -> Self {
        Self { unusable: true, ..Self::failed(why) }
    }
}
