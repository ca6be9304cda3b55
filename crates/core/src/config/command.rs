//! `task: command`: a run file that starts any program instead of a built-in trainer.
//!
//! ```text
//! command: [python, train.py, "--batch={training.micro_batch}"]      one argument each, no shell
//!                                └── placeholder ── rung's knobs ──▶ "--batch=4"
//! ```
//! The knobs of such a run are those that its file writes, and no others: a script has none of the defaults
//! of a built-in trainer. [`resolve_launch`] turns the file, a rung and an attempt into what is started.

pub mod check;
pub mod constants;
pub mod deepspeed;
pub mod environment;
pub mod files;
pub mod invocation;
pub mod knobs;
pub mod launch;
pub mod nodes;
pub mod ranks;
pub mod reach;
pub mod signal;
pub mod template;
#[cfg(test)]
mod tests;
mod typed;

pub use launch::{
    AttemptContext, CommandLaunch, EarlierPattern, earlier_pattern, first_launch, names_checkpoint, names_rest,
    names_run_folder, resolve_launch, resolve_pattern, started_words,
};
pub use typed::run_file;

use super::units::Every;
use files::FileSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use signal::SignalName;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The task of a run that starts a command.
pub const TASK: &str = "command";
/// The folder for the outputs of each run, by convention. It exists before the command starts.
pub const OUTPUTS: &str = "{run_dir}/out";
/// The file in the attempt's directory that tells a companion about the run; no run file may write one of this name.
pub const SETUP_FILE: &str = "companion.json";

/// Everything about a command that is the same on all rungs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommandSpec {
    /// The program and its arguments, with placeholders; never empty.
    pub command: Vec<String>,
    /// Arguments that are passed only where their knob has another value than the script's own default: a text with one knob,
    /// and that default; null if it is unknown.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub defaults: Map<String, Value>,
    /// Knobs that the script has as constants, and that its companion sets in the process where a rung changes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<String>,
    /// The working directory; absolute.
    pub directory: PathBuf,
    /// Files to write for each start, by their names in the attempt's directory.
    pub files: BTreeMap<String, FileSpec>,
    /// How the script continues from its own checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// The checkpoints that the script writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<ScriptCheckpoints>,
    /// How the script is asked to save.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save: Option<SaveRequest>,
    /// Where steps and metrics are read, besides the formats that are always recognised.
    pub metrics: MetricSources,
    /// A file pattern of the sample pictures that the script writes.
    #[serde(with = "samples", skip_serializing_if = "Option::is_none")]
    pub samples: Option<String>,
    /// Whether the command may be started again from its beginning.
    pub restart: RestartPolicy,
    /// Whether the command gets a terminal; without one, most programs buffer their output.
    pub terminal: bool,
    /// Whether the next process may import ahead, beside the one that trains.
    #[serde(skip_serializing_if = "is_true")]
    pub standby: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_true(value: &bool) -> bool {
    *value
}

/// How a script continues from its own checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Arguments appended to the command, with placeholders; `{checkpoint}` is the path of the checkpoint.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Variables added to the environment, with placeholders.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The steps that it prints after a resume; none if that is to be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<StepCount>,
}

/// The steps that a script prints after a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepCount {
    /// They go on from those of the checkpoint.
    Continues,
    /// They begin again, and so do the numbers in the names of its checkpoints.
    Restarts,
}

/// The checkpoints that a script writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptCheckpoints {
    /// A file pattern, with placeholders, relative to the command's directory.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The file that the script writes last into a checkpoint folder; without it, the checkpoint is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<String>,
    /// Copy checkpoints into the run directory instead of recording them in place.
    #[serde(default)]
    pub copy: bool,
    /// Delete all but the newest N, the proven one and the best; if absent, the script's files are never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u64>,
}

/// How a script is asked to save: by a signal or by a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveRequest {
    /// The signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalName>,
    /// The file whose appearance makes the script save, with placeholders, relative to the command's directory. Its folder may be
    /// a pattern: then it appears in the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touch: Option<String>,
    /// The time the script gets to write a complete checkpoint.
    #[serde(default = "default_within")]
    pub within: Every,
}

impl SaveRequest {
    /// Returns the time the script gets.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.within.duration().unwrap_or_default()
    }
}

/// Where steps and metrics are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSources {
    /// Regular expressions for lines of the output; each named group is a metric, `step` the step.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// File patterns, with placeholders, of metric files, relative to the command's directory.
    #[serde(default)]
    pub files: Vec<String>,
}

/// Whether a command may be started again from its beginning, where it may overwrite its own outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// Never: after a failure the run needs attention.
    #[default]
    Never,
    /// Yes: everything since the start is lost, and the script starts over.
    FromStart,
}

impl CommandSpec {
    /// Reports whether the script resumes: it has checkpoints, and arguments to resume from them.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.checkpoints.is_some() && self.resume.is_some()
    }

    /// Reports whether the script is said to count from its beginning again after a resume.
    #[must_use]
    pub fn counts_anew(&self) -> bool {
        self.resume.as_ref().is_some_and(|resume| resume.count == Some(StepCount::Restarts))
    }
}

fn default_within() -> Every {
    Every::Seconds(60.0)
}

/// Writes the pattern of sample pictures as a section.
mod samples {
    use serde::{Serialize, Serializer};

    #[derive(Serialize)]
    struct Samples<'a> {
        #[serde(rename = "match")]
        pattern: &'a str,
    }

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub fn serialize<S: Serializer>(pattern: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        pattern.as_deref().map(|pattern| Samples { pattern }).serialize(serializer)
    }
}
