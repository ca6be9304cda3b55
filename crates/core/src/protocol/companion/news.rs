//! News of the companion.

use super::{Framework, Grade};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// News of the companion, for the keeper.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompanionNews {
    /// The training loop.
    pub framework: Framework,
    /// The framework's version.
    pub version: Option<String>,
    /// Version of Python.
    pub python: Option<String>,
    /// Version of PyTorch.
    pub torch: Option<String>,
    /// How well a resume restores the training.
    pub grade: Grade,
    /// The difference to an exact resume, a short clause.
    pub reason: Option<String>,
    /// It can save when asked.
    pub saves: bool,
    /// It drops steps that are not finite.
    pub guards: bool,
    /// It sees every update that is left out.
    #[serde(default)]
    pub counts_skips: bool,
    /// Trainable parameters.
    pub parameters: Option<u64>,
    /// Units in an epoch.
    pub epoch_units: Option<u64>,
    /// Name of a unit.
    pub unit: Option<String>,
    /// The number of ranks.
    pub world: u32,
    /// Its weights are spread over the ranks: they resume on as many only.
    #[serde(default)]
    pub sharded: bool,
    /// Values in force, by the dotted names of run files.
    pub knobs: BTreeMap<String, Value>,
    /// The knobs of the rung that the script does not follow.
    pub ignored: Vec<IgnoredKnob>,
    /// The newest value in force of each knob that the run file writes, in this attempt or an earlier one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, SeenKnob>,
    /// Its process is the one that the command started, a Python interpreter: it can import ahead before the script runs.
    #[serde(default)]
    pub imports_ahead: bool,
}

/// A knob of a rung that the script does not follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredKnob {
    /// Its dotted name.
    pub name: String,
    /// The value of the rung.
    pub rung: Value,
    /// The value in force.
    pub in_force: Value,
}

/// A knob's value in force on a rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenKnob {
    /// The value of the rung.
    pub rung: Value,
    /// The value in force.
    pub in_force: Value,
    /// It was in force on a rung with another value too.
    pub is_stuck: bool,
}
