//! The rungs of a run, as the cockpit shows them.

use crate::config::knobs::Relief;

/// A rung of the ladder, as resolved from the run file.
#[derive(Debug, Clone, PartialEq)]
pub struct RungView {
    /// Whether a shift to it may load only the weights that fit.
    pub warm_start: bool,
    /// Name.
    pub name: String,
    /// Problems it relieves.
    pub relieves: Vec<Relief>,
    /// Knobs, as JSON.
    pub preset: serde_json::Value,
}
