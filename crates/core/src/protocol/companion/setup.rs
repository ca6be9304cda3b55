//! The file that a companion reads at its start.

use crate::protocol::inject::Inject;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The content of `companion.json`, written before each start of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// [`PROTOCOL`] of the harness.
    pub protocol: u32,
    /// The harness's socket.
    pub socket: PathBuf,
    /// The run directory.
    pub run_dir: PathBuf,
    /// The attempt's folder.
    pub attempt_dir: PathBuf,
    /// The number of the node that reads this.
    #[serde(default)]
    pub node: u32,
    /// The number of nodes of the run.
    #[serde(default = "one")]
    pub nodes: u32,
    /// The attempt.
    pub attempt: u64,
    /// The rung's name.
    pub rung: String,
    /// The run's seed, the same in all attempts.
    pub seed: u64,
    /// The rung's knobs, as written in the run file.
    pub knobs: Value,
    /// Knobs to set in the process, by their dotted names: the script has them as constants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constants: BTreeMap<String, Value>,
    /// Drop steps with a NaN or infinite loss or gradient.
    pub skip_non_finite: bool,
    /// When to save.
    pub checkpoint: SaveRhythm,
    /// The best evaluation whose weights are kept: a plain loop saves the weights of each better one. None if the best is not
    /// to be kept.
    pub best: Option<BestSoFar>,
    /// Faults to cause.
    pub inject: Vec<Inject>,
    /// The checkpoint to resume from; none for a fresh start.
    pub resume: Option<ResumeFrom>,
    /// The folder for staged checkpoints.
    pub staging: PathBuf,
    /// The list of imported modules, which a standby imports ahead.
    pub modules: PathBuf,
    /// The pipe at which a standby waits; none for a normal start.
    pub gate: Option<PathBuf>,
    /// Where a companion writes the state of a loop whose framework does not say: a path, in which `*` is the step.
    #[serde(default)]
    pub states: String,
    /// The last step of the run, if it is known.
    #[serde(default)]
    pub length: Option<u64>,
    /// The script counts steps and epochs from its beginning after a resume.
    #[serde(default)]
    pub counts_anew: bool,
    /// Send a fingerprint of each step.
    pub trial: bool,
}

fn one() -> u32 {
    1
}

/// When the companion of a plain loop saves on its own.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SaveRhythm {
    /// Every N steps.
    pub every_steps: Option<u64>,
    /// Every N seconds.
    pub every_seconds: Option<f64>,
}

/// How evaluations are ranked, and the best value so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestSoFar {
    /// The metric: `loss`, or another that evaluations report.
    pub metric: String,
    /// Whether lower is better.
    pub lower_is_better: bool,
    /// The value; none before the first evaluation with a checkpoint.
    pub value: Option<f64>,
}

/// The checkpoint to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResumeFrom {
    /// A container that a companion wrote.
    Container(ResumePoint),
    /// A checkpoint that the script's framework wrote.
    Script(ResumePoint),
}

impl ResumeFrom {
    /// Returns where the checkpoint is and what it holds.
    #[must_use]
    pub fn point(&self) -> &ResumePoint {
        let (Self::Container(point) | Self::Script(point)) = self;
        point
    }
}

/// Where a checkpoint is and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Its folder, or its only file.
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
}
