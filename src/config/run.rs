//! A run file: from text to a validated [`Run`], and back to the run.yaml of a run directory.

mod file;
use super::best::Best;
use super::command::{self, CommandSpec};
use super::integrations::{Notify, Probe};
use super::knobs::{Preset, Section, Watch};
use super::ladder::{self, FULL, Resolved, Rung, RungSpec, resolve_ladder};
use super::problem::{Problem, max_listed};
use super::{check, climb, typed, variants, watch, yaml};
use crate::recipe::class;
use crate::recipe::metrics::LOSS;
use crate::untrusted::text;
use file::RunFile;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;

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
        let (mut tree, mut problems) = yaml::parse(source.text).map_err(|error| {
            let (line, column) = error.place;
            Refusal { lines: vec![format!("{}:{line}:{column}: {}", source.file, error.message)] }
        })?;
        if !tree.is_object() {
            let wrong = "a run file consists of `key: value` lines, such as `name:` and `task:`";
            return Err(Refusal { lines: vec![format!("{}:1:1: {wrong}", source.file)] });
        }
        let (places, wrong) = variants::apply_variant(&mut tree, source.overrides);
        problems.extend(wrong);
        settle_length(&mut tree, &places);
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
            set.push((reported, format!("--set {path}={value}")));
        }
        settle_length(&mut tree, source.overrides);
        problems.extend(ladder::truncate_lists(&mut tree));
        let knows = |task: &str| tasks.knows(task);
        problems.extend(file::misplaced_keys(&tree, knows));
        let (file, wrong) = file::read(&tree, knows);
        problems.extend(wrong);
        let run = file.map(|file| validate_run(file, tasks, source.base, origin, &mut problems));
        problems.extend(run.iter().flat_map(|run| run.unreached_knobs(set.iter().map(|(path, _)| path.as_str()))));
        match run {
            Some(run) if problems.is_empty() => Ok(run),
            _ => Err(Refusal { lines: format_problems(source, &problems, &places, &set) }),
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

fn validate_run(
    mut file: RunFile,
    tasks: &dyn TaskSections,
    base: &Path,
    origin: Origin,
    problems: &mut Vec<Problem>,
) -> Run {
    problems.extend(check::check_name("name", &file.name));
    problems.extend(watch::check_watch(&file.watch));
    problems.extend(file.notify.iter().flat_map(|notify| notify.check("notify")));
    // Relative to the file, like all paths in it; run.yaml stores it absolute.
    file.probe.nvml = file.probe.nvml.take().map(|path| base.join(path));
    if let Some(notify) = &mut file.notify {
        notify.settle_paths(base);
    }
    for (index, spec) in file.ladder.iter().enumerate() {
        problems.extend(check::check_name(&format!("ladder[{index}].name"), &spec.name));
    }
    let trained = settle_task(&mut file, tasks, base, problems);
    let full = file.preset();
    let (rungs, wrong) = resolve_ladder(full, &file.ladder, &file.pinned);
    problems.extend(wrong);
    problems.extend(check_pinned(&file.pinned, &rungs[0].tree));
    check_rungs(&rungs, trained.then_some((tasks, file.task.as_str(), base)), problems);
    let command = file.command_spec(base);
    problems.extend(command.iter().flat_map(|command| command::check::check_command(command, &rungs)));
    let names: Vec<&str> = [FULL].into_iter().chain(file.ladder.iter().map(|spec| spec.name.as_str())).collect();
    let (plan, wrong) = file.climb.resolve(&names);
    problems.extend(wrong);
    let ladder = rungs.iter().map(|resolved| resolved.rung.clone()).collect();
    let (watch, probe, notify) = (file.watch, file.probe, file.notify);
    let run = Run {
        name: file.name,
        task: file.task,
        command,
        watch,
        probe,
        notify,
        pinned: file.pinned,
        plan,
        rungs: ladder,
    };
    // Reachability is undefined while the ladder has errors.
    if problems.is_empty() {
        problems.extend(run.broken_stages());
        if origin == Origin::Written {
            problems.extend(run.unusable(&rungs));
            problems.extend(run.command.iter().flat_map(|command| command::reach::useless_rungs(command, &rungs)));
        }
    }
    run
}

/// Resolves the sections that the task owns. Returns whether a trainer knows the task.
fn settle_task(file: &mut RunFile, tasks: &dyn TaskSections, base: &Path, problems: &mut Vec<Problem>) -> bool {
    if file.task == command::TASK {
        return false;
    }
    if !tasks.knows(&file.task) {
        let names = tasks.names();
        let known: Vec<&str> = names.iter().map(String::as_str).chain([command::TASK]).collect();
        let wrong = format!("no task is called `{}`", file.task);
        problems.push(Problem::at("task", wrong, typed::suggest(&file.task, &known)));
        return false;
    }
    let (sections, wrong) = tasks.resolve(&file.task, OwnedSections { data: &file.data, model: &file.model, base });
    problems.extend(wrong);
    if let Some((data, model)) = sections {
        (file.data, file.model) = (data, model);
    }
    true
}

/// Checks every rung. A problem shared by all rungs is reported once, in the body of the file.
fn check_rungs(rungs: &[Resolved], tasks: Option<(&dyn TaskSections, &str, &Path)>, problems: &mut Vec<Problem>) {
    let mut seen = HashSet::new();
    let sound = |problems: &[Problem]| {
        !problems.iter().any(|problem| problem.path.starts_with("data") || problem.path.starts_with("model"))
    };
    for rung in rungs {
        let preset = &rung.rung.preset;
        let mut found = check::check_preset(preset);
        if let Some((tasks, task, base)) = tasks {
            found.extend(unknown_ranking(&preset.checkpoint.best, task, tasks.eval_metrics(task)));
            if rung.place.is_some() {
                let sections = OwnedSections { data: &preset.data, model: &preset.model, base };
                found.extend(tasks.resolve(task, sections).1);
            }
            // This loads the data and builds the model, so it must not run on an invalid section.
            if sound(problems) && sound(&found) {
                found.extend(tasks.misfits(task, preset));
            }
        }
        found.retain(|problem| {
            let known = problems.iter().any(|earlier| earlier.path == problem.path && earlier.wrong == problem.wrong);
            !known && seen.insert((problem.path.clone(), problem.wrong.clone()))
        });
        problems.extend(found.into_iter().map(|problem| rung.blame(problem)));
    }
}

/// Refuses to rank checkpoints by a metric that no evaluation of the task reports.
fn unknown_ranking(best: &Best, task: &str, metrics: Option<&[&str]>) -> Option<Problem> {
    let known = [&[LOSS][..], metrics?].concat();
    let wrong = format!("evaluations of task {task} do not report `{}`", best.metric);
    (!known.contains(&best.metric.as_str()))
        .then(|| Problem::at("checkpoint.best.metric", wrong, typed::suggest(&best.metric, &known)))
}

fn check_pinned(pinned: &[String], full: &Value) -> Vec<Problem> {
    let known = |path: &str| full.pointer(&format!("/{}", path.replace('.', "/"))).is_some();
    let unknown = pinned.iter().enumerate().filter(|(_, path)| !known(path));
    unknown
        .map(|(index, path)| {
            Problem::at(
                format!("pinned[{index}]"),
                format!("unknown knob `{path}`"),
                "write a dotted path, such as training.accumulation",
            )
        })
        .collect()
}

/// Formats the problems in file order, one per key; consequences of another error are dropped.
fn format_problems(
    source: &Source<'_>,
    problems: &[Problem],
    chosen: &variants::Places,
    set: &[(String, String)],
) -> Vec<String> {
    let mut seen = HashSet::new();
    let listed: Vec<&Problem> =
        problems.iter().filter(|problem| seen.insert((&problem.path, problem.occurrence))).collect();
    let most = max_listed(source.text);
    let mut placed: Vec<(yaml::Place, String)> = listed
        .iter()
        .take(most)
        .map(|problem| {
            if let Some((_, set)) = set.iter().rev().find(|(reported, _)| problem.path == *reported) {
                return ((0, 0), format!("{set}: {problem}"));
            }
            let written = chosen.iter().find(|(path, _)| problem.path == *path).map(|(_, place)| place);
            let place = yaml::locate(source.text, written.unwrap_or(&problem.path), problem.occurrence);
            (place, format!("{}:{}:{}: {problem}", source.file, place.0, place.1))
        })
        .collect();
    placed.sort();
    let more = listed.len().saturating_sub(most);
    let rest = (more > 0).then(|| format!("{}: and {more} more errors", source.file));
    placed.into_iter().map(|(_, line)| line).chain(rest).map(|line| text::escape_line(&line).into_owned()).collect()
}
