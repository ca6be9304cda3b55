//! A run file as written: every key of every task.

use crate::config::command::files::FileSpec;
use crate::config::command::{
    self, CommandSpec, MetricSources, RestartPolicy, Resume, SaveRequest, ScriptCheckpoints, StepCount, environment,
    knobs as command_knobs,
};
use crate::config::integrations::{Notify, Probe};
use crate::config::knobs::{Checkpoint, Evaluation, Optimizer, Preset, Section, Training, Watch};
use crate::config::ladder::RungSpec;
use crate::config::problem::Problem;
use crate::config::quality::Quality;
use crate::config::{climb, typed};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Keys that only a command has.
const OF_COMMAND: [&str; 16] = [
    "command",
    "defaults",
    "constants",
    "directory",
    "environment",
    "ranks",
    "files",
    "knobs",
    "resume",
    "checkpoints",
    "save",
    "metrics",
    "samples",
    "restart",
    "terminal",
    "standby",
];
/// Keys that a command does not have, and where its own settings belong.
const NOT_OF_COMMAND: [(&str, &str, &str); 3] = [
    ("data", "a command has no `data`, its script reads its own", "write it below `knobs`, or as an argument"),
    ("model", "a command has no `model`, its script builds its own", "write it below `knobs`, or as an argument"),
    ("evaluation", "the script decides when it evaluates", "remove it"),
];

/// A run file as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    pub name: String,
    pub task: String,
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    defaults: Section,
    #[serde(default)]
    constants: Vec<String>,
    #[serde(default)]
    directory: String,
    #[serde(default, deserialize_with = "environment::read")]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    ranks: Option<u32>,
    #[serde(default)]
    files: BTreeMap<String, FileSpec>,
    #[serde(default)]
    knobs: Section,
    #[serde(default)]
    resume: Option<Resume>,
    #[serde(default)]
    checkpoints: Option<ScriptCheckpoints>,
    #[serde(default)]
    save: Option<SaveRequest>,
    #[serde(default)]
    metrics: MetricSources,
    #[serde(default)]
    samples: Option<Samples>,
    #[serde(default)]
    restart: RestartPolicy,
    #[serde(default = "default_true")]
    terminal: bool,
    #[serde(default = "default_true")]
    standby: bool,
    #[serde(default)]
    pub data: Section,
    #[serde(default)]
    pub model: Section,
    training: Training,
    optimizer: Optimizer,
    #[serde(default)]
    evaluation: Evaluation,
    #[serde(default)]
    checkpoint: Checkpoint,
    #[serde(default)]
    pub quality: Option<Quality>,
    #[serde(default)]
    pub watch: Watch,
    #[serde(default)]
    pub probe: Probe,
    #[serde(default)]
    pub notify: Option<Notify>,
    #[serde(default)]
    pub pinned: Vec<String>,
    #[serde(default, deserialize_with = "climb::null_as_default")]
    pub climb: climb::Section,
    #[serde(default)]
    pub ladder: Vec<RungSpec>,
    /// The knobs that the file of a command writes.
    #[serde(skip)]
    written: Option<Section>,
}

/// The sample pictures that a script writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Samples {
    #[serde(rename = "match")]
    pattern: String,
}

fn default_true() -> bool {
    true
}

/// Reads a file's tree, and returns every error in it; `knows` reports whether the trainer has a task.
pub fn read(tree: &Value, knows: impl Fn(&str) -> bool) -> (Option<RunFile>, Vec<Problem>) {
    if !is_command(tree, knows) {
        return typed::read_tree(tree);
    }
    let mut whole = tree.clone();
    command_knobs::fill_in_required(&mut whole);
    let (file, problems) = typed::read_tree::<RunFile>(&whole);
    let file = file.map(|file| {
        let written = command_knobs::written_knobs(tree, &file.environment);
        RunFile { written: Some(written), ..file }
    });
    (file, problems)
}

/// Returns the keys that belong to another kind of task.
pub fn misplaced_keys(tree: &Value, knows: impl Fn(&str) -> bool) -> Vec<Problem> {
    if is_command(tree, &knows) {
        let there = NOT_OF_COMMAND.iter().filter(|(key, ..)| tree.get(key).is_some());
        return there.map(|(key, wrong, fix)| Problem::of_key(*key, *wrong, *fix)).collect();
    }
    let there = OF_COMMAND.iter().filter(|key| tree.get(key).is_some());
    there.map(|key| Problem::of_key(*key, "only `task: command` has this key", "remove it")).collect()
}

/// Reports whether a file is that of a command, even if the name of its task is misspelt.
fn is_command(tree: &Value, knows: impl Fn(&str) -> bool) -> bool {
    let task = tree.get("task").and_then(Value::as_str).unwrap_or_default();
    task == command::TASK || tree.get("command").is_some() && !knows(task)
}

impl RunFile {
    /// Returns the knobs of the body: rung 0.
    pub fn preset(&self) -> Preset {
        Preset {
            data: self.data.clone(),
            model: self.model.clone(),
            training: self.training.clone(),
            optimizer: self.optimizer.clone(),
            evaluation: self.evaluation,
            checkpoint: self.checkpoint.clone(),
            environment: self.environment.clone(),
            ranks: self.ranks,
            knobs: self.knobs.clone(),
            written: self.written.clone(),
        }
    }

    /// Returns the command, if the task is one, with its directory made absolute from `base`.
    pub fn command_spec(&self, base: &Path) -> Option<CommandSpec> {
        self.written.as_ref()?;
        // Its next checkpoints have the names of those before.
        let replaces = self.resume.as_ref().is_some_and(|resume| resume.count == Some(StepCount::Restarts));
        let copied = |spec: &ScriptCheckpoints| ScriptCheckpoints { copy: spec.copy || replaces, ..spec.clone() };
        Some(CommandSpec {
            command: self.command.clone(),
            defaults: self.defaults.clone(),
            constants: self.constants.clone(),
            directory: base.join(&self.directory).components().collect(),
            files: self.files.clone(),
            resume: self.resume.clone(),
            checkpoints: self.checkpoints.as_ref().map(copied),
            save: self.save.clone(),
            metrics: self.metrics.clone(),
            samples: self.samples.as_ref().map(|samples| samples.pattern.clone()),
            restart: self.restart,
            terminal: self.terminal,
            standby: self.standby,
        })
    }
}
