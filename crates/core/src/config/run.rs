//! A run file: from text to a validated [`Run`], and back to the run.yaml of a run directory.

mod file;
mod validate;
use super::command::CommandSpec;
use super::integrations::{Notify, Probe};
use super::knobs::{Preset, Section, Watch};
use super::ladder::{self, FULL, Rung, RungSpec};
use super::problem::{Problem, max_listed};
use super::quality::Quality;
use super::{climb, typed, variants, yaml};
use crate::recipe::class;
use crate::untrusted::text;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;
use validate::validate_run;

/// A validated run: what to train, and every rung of its ladder.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The name of the run.
    pub name: String,
    /// The name of its task.
    pub task: String,
    /// The command, for `task: command`.
    pub command: Option<CommandSpec>,
    /// The keeper's thresholds and responses.
    pub watch: Watch,
    /// Settings of the probe.
    pub probe: Probe,
    /// The measurements beside the training, if there are any.
    pub quality: Option<Quality>,
    /// Alert settings; `None` if the run file has none, and then the user's own file applies.
    pub notify: Option<Notify>,
    /// Knobs that no rung may change.
    pub pinned: Vec<String>,
    /// The rungs of the climb plan, in order; empty if the run begins on `full`.
    pub plan: Vec<climb::Stage>,
    /// The rungs, fastest first; never empty.
    pub rungs: Vec<Rung>,
}

/// The sections that a task owns, and the folder that paths in them start from.
#[derive(Debug, Clone, Copy)]
pub struct OwnedSections<'a> {
    /// The section `data`.
    pub data: &'a Section,
    /// The section `model`.
    pub model: &'a Section,
    /// The folder.
    pub base: &'a Path,
}

/// The sections `data` and `model` with every default and absolute paths, as far as they can be read, and every error
/// in them.
pub type ResolvedSections = (Option<(Section, Section)>, Vec<Problem>);

/// Validates the sections that tasks own. Implemented by the trainer's registry.
pub trait TaskSections {
    /// Returns the names of all tasks.
    fn names(&self) -> Vec<String>;

    /// Reports whether a task of this name exists.
    fn knows(&self, task: &str) -> bool {
        self.names().iter().any(|name| name == task)
    }

    /// Resolves the sections of a task.
    fn resolve(&self, task: &str, sections: OwnedSections<'_>) -> ResolvedSections;

    /// Returns the metrics that evaluations of a task report beside the loss; `None` if any name is possible.
    fn eval_metrics(&self, _task: &str) -> Option<&'static [&'static str]> {
        None
    }

    /// Returns the metrics of a task that can be measured beside the training; `None` if any name is possible.
    fn quality_metrics(&self, _task: &str) -> Option<&'static [&'static str]> {
        None
    }

    /// Returns the reasons why a rung cannot be trained on the target: the device, the amount of data.
    fn misfits(&self, _task: &str, _preset: &Preset) -> Vec<Problem> {
        Vec::new()
    }
}

/// Accepts task sections unchecked: those of a run.yaml, which were checked when it was written, and
/// those of an external trainer.
#[derive(Debug, Default)]
pub struct AsWritten;

impl TaskSections for AsWritten {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn knows(&self, _: &str) -> bool {
        true
    }

    fn resolve(&self, _: &str, OwnedSections { data, model, .. }: OwnedSections<'_>) -> ResolvedSections {
        (Some((data.clone(), model.clone())), Vec::new())
    }
}

/// The origin of a run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Written by the user, for a run that has not begun.
    Written,
    /// The run.yaml of a run that has begun.
    Kept,
}

/// The errors in a run file, formatted for display.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .lines.join("\n"))]
pub struct Refusal {
    /// One line per error: `FILE:LINE:COL: path.of.key: what is wrong; what would work`.
    pub lines: Vec<String>,
    /// All of them are errors of `--set`; the file is valid.
    pub is_of_overrides: bool,
}

impl Refusal {
    /// Creates the refusal of a text that is not a run file at all.
    fn of_text(file: &str, (line, column): yaml::Place, wrong: &str) -> Self {
        Self { lines: vec![format!("{file}:{line}:{column}: {wrong}")], is_of_overrides: false }
    }

    /// Names what is invalid.
    #[must_use]
    pub fn subject(&self) -> &'static str {
        if self.is_of_overrides { "invalid --set" } else { "invalid run file" }
    }
}

/// The text of a run file and its origin.
pub struct Source<'a> {
    /// The file name for messages.
    pub file: &'a str,
    /// Its text.
    pub text: &'a str,
    /// The folder that relative paths start from.
    pub base: &'a Path,
    /// `--set` overrides: dotted path and value.
    pub overrides: &'a [(String, String)],
}

impl Run {
    /// Reads and validates a run file.
    ///
    /// # Errors
    /// Returns an error when the file is invalid: every mistake at once.
    pub fn read(source: &Source<'_>, tasks: &dyn TaskSections) -> Result<Self, Refusal> {
        Self::read_as(source, tasks, Origin::Written)
    }

    /// Reads the run.yaml of a run that has begun. Applies no checks to its ladder that did not apply
    /// when the run began.
    ///
    /// # Errors
    /// Returns an error when the file is invalid: every mistake at once.
    pub fn reopen(source: &Source<'_>) -> Result<Self, Refusal> {
        Self::read_as(source, &AsWritten, Origin::Kept)
    }

    fn read_as(source: &Source<'_>, tasks: &dyn TaskSections, origin: Origin) -> Result<Self, Refusal> {
        let (mut tree, mut problems) =
            yaml::parse(source.text).map_err(|error| Refusal::of_text(source.file, error.place, &error.message))?;
        if !tree.is_object() {
            let wrong = "a run file consists of `key: value` lines, such as `name:` and `task:`";
            return Err(Refusal::of_text(source.file, (1, 1), wrong));
        }
        let (places, wrong) = variants::apply_variant(&mut tree, source.overrides);
        problems.extend(wrong);
        settle_length(&mut tree, &places);
        let written = tree.clone();
        // Problems with overridden knobs are reported under their path in the file.
        let mut set = Vec::new();
        for (path, value) in source.overrides {
            let put = if path == variants::CHOICE {
                Ok(path.clone())
            } else {
                variants::set_knob(&mut tree, path, yaml::parse_scalar(value))
            };
            let reported = put.unwrap_or_else(|problem| {
                problems.push(problem.clone());
                problem.path
            });
            set.push(Override { path: reported, text: format!("--set {path}={value}") });
        }
        settle_length(&mut tree, source.overrides);
        problems.extend(ladder::truncate_lists(&mut tree));
        let names = tasks.names();
        let knows = |task: &str| names.iter().any(|name| name == task);
        problems.extend(file::misplaced_keys(&tree, knows));
        let (file, wrong) = file::read(&tree, knows);
        problems.extend(wrong);
        let run = file.map(|file| validate_run(file, tasks, source.base, origin, &mut problems));
        let sound = set.iter().map(|set| set.path.as_str()).filter(|path| problems.iter().all(|it| it.path != *path));
        let unreached: Vec<Problem> = run.iter().flat_map(|run| run.unreached_knobs(sound.clone())).collect();
        problems.extend(unreached);
        match run {
            Some(run) if problems.is_empty() => Ok(run),
            _ => Err(refuse(source, &problems, &places, &mut Overridden { set, written })),
        }
    }

    /// Converts the run back to a run file, with every knob and rung written out and paths absolute.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let full = self.preset_tree(0);
        let ladder: Vec<RungSpec> = (1..self.rungs.len())
            .map(|index| RungSpec {
                name: self.rungs[index].name.clone(),
                relieves: self.rungs[index].relieves.clone(),
                from: Some(FULL.to_owned()),
                warm_start: self.rungs[index].warm_start,
                set: class::compare_presets(&full, &self.preset_tree(index))
                    .into_iter()
                    .map(|change| (change.path, change.to))
                    .collect(),
            })
            .collect();
        let mut tree = json!({ "name": self.name, "task": self.task });
        let command = self.command.as_ref().and_then(|command| serde_json::to_value(command).ok());
        let tail = json!({ "watch": self.watch, "probe": self.probe, "notify": self.notify, "pinned": self.pinned, "ladder": ladder });
        let names: Vec<&str> = self.rungs.iter().map(|rung| rung.name.as_str()).collect();
        let climb = (!self.plan.is_empty()).then(|| climb::Section::from_stages(&self.plan, &names));
        if let (Value::Object(tree), Value::Object(body), Value::Object(tail)) = (&mut tree, full, tail) {
            tree.extend(command.as_ref().and_then(Value::as_object).cloned().into_iter().flatten());
            tree.extend(body);
            tree.extend(self.quality.as_ref().map(|quality| ("quality".to_owned(), json!(quality))));
            tree.extend(tail);
            tree.extend(climb.map(|climb| ("climb".to_owned(), json!(climb))));
        }
        yaml::write(&tree)
    }

    /// Returns the rung that the run begins on by default.
    #[must_use]
    pub fn first_rung(&self) -> usize {
        self.plan.first().map_or(0, |stage| stage.rung)
    }

    /// Returns one rung's knobs as a tree.
    #[must_use]
    pub fn preset_tree(&self, rung: usize) -> Value {
        self.rungs[rung].preset.tree()
    }

    /// Finds a rung by name or number.
    #[must_use]
    pub fn rung_named(&self, name: &str) -> Option<usize> {
        let by_name = self.rungs.iter().position(|rung| rung.name == name);
        by_name.or_else(|| name.parse().ok().filter(|number| *number < self.rungs.len()))
    }
}

/// Makes `--set training.steps=…` replace the file's epochs and vice versa; also for a variant.
fn settle_length(tree: &mut Value, overrides: &[(String, String)]) {
    let given = |path: &str| overrides.iter().any(|(set, _)| set == path);
    let (replaced, by) = match (given("training.steps"), given("training.epochs")) {
        (true, false) => ("epochs", "steps"),
        (false, true) => ("steps", "epochs"),
        _ => return,
    };
    if let Some(Value::Object(training)) = tree.get_mut("training") {
        training.shift_remove(replaced);
    }
    // A pinned length stays pinned under its other name.
    for pin in tree.get_mut("pinned").and_then(Value::as_array_mut).into_iter().flatten() {
        if pin.as_str() == Some(&format!("training.{replaced}")) {
            *pin = format!("training.{by}").into();
        }
    }
}

/// An override, and the path under which its problems are reported.
struct Override {
    path: String,
    text: String,
}

/// The overrides, and the tree that the file gives without them.
struct Overridden {
    set: Vec<Override>,
    written: Value,
}

impl Overridden {
    /// Returns the override that caused a problem: the one of its path, one whose value contains it, or one that
    /// created a section that the file does not have.
    fn blamed(&mut self, problem: &Problem) -> Option<String> {
        let is_below = |path: &str, above: &str| {
            path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let is_written = typed::value_at(&mut self.written, &problem.path).is_some();
        let is_cause =
            |set: &&Override| is_below(&problem.path, &set.path) || !is_written && is_below(&set.path, &problem.path);
        self.set.iter().rev().find(is_cause).map(|set| set.text.clone())
    }
}

/// Formats the problems, those of overrides first and the others in file order, one per key; consequences of another
/// error are dropped.
fn refuse(
    source: &Source<'_>,
    problems: &[Problem],
    chosen: &variants::Places,
    overridden: &mut Overridden,
) -> Refusal {
    let mut seen = HashSet::new();
    let listed: Vec<&Problem> = problems.iter().filter(|problem| seen.insert((&problem.path, problem.part))).collect();
    let most = max_listed(source.text);
    let mut is_of_overrides = listed.len() <= most;
    let mut placed: Vec<(yaml::Place, String)> = listed
        .iter()
        .take(most)
        .map(|problem| {
            if let Some(set) = overridden.blamed(problem) {
                return ((0, 0), format!("{set}: {problem}"));
            }
            is_of_overrides = false;
            let written = chosen.iter().find(|(path, _)| problem.path == *path).map(|(_, place)| place);
            let place = yaml::locate(source.text, written.unwrap_or(&problem.path), problem.part);
            (place, format!("{}:{}:{}: {problem}", source.file, place.0, place.1))
        })
        .collect();
    placed.sort();
    let more = listed.len().saturating_sub(most);
    let rest = (more > 0).then(|| format!("{}: and {more} more errors", source.file));
    let lines = placed.into_iter().map(|(_, line)| line).chain(rest);
    Refusal { lines: lines.map(|line| text::escape_line(&line).into_owned()).collect(), is_of_overrides }
}
