//! One start of a command: the file, the rung and the attempt become arguments, variables and files.

use super::CommandSpec;
use super::files::{FileContent, FileSpec, LaunchFile, SettingsCopy, fill_value};
use super::nodes::NodePlace;
use super::ranks::under_torchrun;
use super::template::{Placeholder, Template};
use crate::config::knobs::Preset;
use crate::config::ladder::Rung;
use crate::config::run::Run;
use crate::config::settings_file::is_same;
use crate::untrusted::glob;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The knob of the number of epochs.
pub(super) const EPOCHS: &str = "training.epochs";

/// The attempt that a command is started for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptContext {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The attempt's own directory.
    pub attempt_dir: PathBuf,
    /// The name of the rung.
    pub rung_name: String,
    /// The number of the attempt.
    pub attempt: u64,
    /// The checkpoint to resume from; `None` for a start from the beginning.
    pub checkpoint: Option<PathBuf>,
    /// Where the script wrote that checkpoint, if this is a copy.
    pub original: Option<PathBuf>,
    /// The step of that checkpoint, or 0.
    pub step: u64,
    /// The last step of the run, if it is known.
    pub length: Option<u64>,
    /// The node of this start.
    pub place: NodePlace,
}

impl AttemptContext {
    /// Returns the place where the script wrote the checkpoint.
    fn written(&self) -> Option<&Path> {
        self.original.as_deref().or(self.checkpoint.as_deref())
    }

    fn steps_left(&self) -> Option<u64> {
        Some(self.length?.saturating_sub(self.step))
    }

    /// Returns the epochs that are not complete at the checkpoint: all epochs have the same length.
    fn epochs_left(&self, knobs: &Value) -> Option<u64> {
        let epochs = find_knob(knobs, EPOCHS)?.as_u64()?;
        let length = self.length.filter(|length| *length > 0)?;
        let left = u128::from(epochs) * u128::from(self.steps_left()?);
        u64::try_from(left.div_ceil(u128::from(length))).ok()
    }
}

/// One start of a command, with every placeholder filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandLaunch {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The working directory.
    pub directory: PathBuf,
    /// Variables added to the environment.
    pub environment: BTreeMap<String, OsString>,
    /// Files to write before the start.
    pub files: Vec<LaunchFile>,
}

/// Resolves one start. The arguments and variables of `resume` are added if there is a checkpoint. An argument that
/// its placeholders leave empty is left out, so a knob can hold a switch: `--compile` on one rung, nothing on another.
#[must_use]
pub fn resolve_launch(spec: &CommandSpec, preset: &Preset, attempt: &AttemptContext) -> CommandLaunch {
    let knobs = preset.tree();
    let files = resolve_files(spec, &knobs, attempt);
    let fill = |text: &String| {
        render(text, |place| match place {
            Placeholder::File(name) => files.get(name).map_or_else(String::new, |file| file.path.display().to_string()),
            other => value_of(other, &knobs, attempt),
        })
    };
    let argument = |text: &String| Some(fill(text)).filter(|filled| text.is_empty() || !filled.is_empty());
    let resume = spec.resume.as_ref().filter(|_| attempt.checkpoint.is_some());
    let more = resume.map(|resume| &resume.arguments);
    let variables = preset.environment.iter().chain(resume.into_iter().flat_map(|resume| &resume.environment));
    CommandLaunch {
        argv: started_words(spec, preset.ranks, &attempt.place)
            .iter()
            .chain(changed_arguments(spec, &knobs))
            .chain(more.into_iter().flatten())
            .filter_map(argument)
            .collect(),
        directory: spec.directory.clone(),
        environment: variables.map(|(name, value)| (name.clone(), fill(value).into())).collect(),
        files: files.into_values().collect(),
    }
}

/// Returns the arguments whose knob has another value than the script's own default.
fn changed_arguments<'a>(spec: &'a CommandSpec, knobs: &'a Value) -> impl Iterator<Item = &'a String> {
    let is_changed = |text: &str, default: &Value| {
        let template = Template::parse(text).ok();
        let knob = template.as_ref().and_then(Template::only_knob).and_then(|path| find_knob(knobs, path));
        knob.is_some_and(|knob| !is_same(knob, default))
    };
    spec.defaults.iter().filter(move |(text, default)| is_changed(text, default)).map(|(text, _)| text)
}

/// Resolves the files of a start by their names in the run file.
fn resolve_files(spec: &CommandSpec, knobs: &Value, attempt: &AttemptContext) -> BTreeMap<String, LaunchFile> {
    let fill = |text: &String| fill_in(text, knobs, attempt);
    let resolve = |(name, file): (&String, &FileSpec)| {
        let from = match file {
            FileSpec::Text(_) => PathBuf::new(),
            FileSpec::Copy(copy) => spec.directory.join(fill(&copy.from)).components().collect(),
        };
        let path = file.path(name, attempt, &from);
        let content = match file {
            FileSpec::Text(text) => FileContent::Text(fill(text)),
            FileSpec::Copy(SettingsCopy { set, beside, .. }) => {
                let set = set.iter().filter_map(|(key, value)| Some((key.clone(), fill_value(value, knobs, &fill)?)));
                FileContent::Copy { from, set: set.collect(), beside: *beside }
            }
        };
        (name.clone(), LaunchFile { path, content })
    };
    spec.files.iter().map(resolve).collect()
}

/// Fills in words that are started for an attempt; one that its placeholders leave empty is left out.
#[must_use]
pub fn render_words<'a>(
    words: impl IntoIterator<Item = &'a String>,
    preset: &Preset,
    attempt: &AttemptContext,
) -> Vec<String> {
    let knobs = preset.tree();
    let fill = |text: &String| Some(fill_in(text, &knobs, attempt)).filter(|word| text.is_empty() || !word.is_empty());
    words.into_iter().filter_map(fill).collect()
}

/// Returns the first start of a rung, before the run has a directory, on the first of several nodes; none for a run without
/// a command.
#[must_use]
pub fn first_launch(run: &Run, rung: usize, nodes: u32) -> Option<CommandLaunch> {
    let (spec, rung) = (run.command.as_ref()?, run.rungs.get(rung)?);
    Some(resolve_launch(spec, &rung.preset, &context_before_run(rung, nodes)))
}

/// Where a command's checkpoints may lie before its run has a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierPattern {
    /// The file pattern.
    pub pattern: String,
    /// The run writes to a directory of its own, so it replaces none of them.
    pub in_run: bool,
}

/// Returns the file pattern of checkpoints that a command wrote before its run; none if the run declares none.
#[must_use]
pub fn earlier_pattern(run: &Run, rung: usize) -> Option<EarlierPattern> {
    let (spec, rung) = (run.command.as_ref()?.checkpoints.as_ref()?, run.rungs.get(rung)?);
    // Without a run directory, the script writes below its own.
    let below_run = spec.pattern.strip_prefix("{run_dir}/");
    let (own, in_run) = (below_run.unwrap_or(&spec.pattern), below_run.is_some());
    let stays = names(own, &[Placeholder::RunDir, Placeholder::AttemptDir]);
    let pattern = resolve_pattern(own, &rung.preset, &context_before_run(rung, 1));
    (!stays).then_some(EarlierPattern { pattern, in_run })
}

fn context_before_run(rung: &Rung, nodes: u32) -> AttemptContext {
    let place = NodePlace { nodes, ..NodePlace::default() };
    AttemptContext { rung_name: rung.name.clone(), place, ..AttemptContext::default() }
}

/// Returns the words that are started on a rung, with placeholders: those of the run file, or torchrun's. A command that
/// cannot be started in ranks is refused before the start, so it stays as it is here.
#[must_use]
pub fn started_words<'a>(spec: &'a CommandSpec, ranks: Option<u32>, place: &NodePlace) -> Cow<'a, [String]> {
    let ranked = ranks.and_then(|ranks| under_torchrun(&spec.command, ranks, place).ok());
    ranked.map_or(Cow::Borrowed(spec.command.as_slice()), Cow::Owned)
}

/// Reports whether a command that resumes is given the path of its checkpoint. Otherwise it finds one on its own.
#[must_use]
pub fn names_checkpoint(spec: &CommandSpec, preset: &Preset) -> bool {
    let resume = spec.resume.iter().flat_map(|resume| resume.arguments.iter().chain(resume.environment.values()));
    texts_of(spec, preset).chain(resume).any(|text| names(text, &[Placeholder::Checkpoint]))
}

/// Reports whether a command that resumes is told how much is left, so that it ends where the run ends.
#[must_use]
pub fn names_rest(spec: &CommandSpec) -> bool {
    let resume = spec.resume.iter().flat_map(|resume| resume.arguments.iter().chain(resume.environment.values()));
    resume.into_iter().any(|text| names(text, &[Placeholder::StepsLeft, Placeholder::EpochsLeft]))
}

/// Reports whether a command is given a folder of its run, which is another one in each run.
#[must_use]
pub fn names_run_folder(spec: &CommandSpec, preset: &Preset) -> bool {
    let is_read = |text: &String| spec.files.keys().any(|name| text.ends_with(&format!("{{attempt_dir}}/{name}")));
    let others = texts_of(spec, preset).filter(|text| !is_read(text));
    others.into_iter().any(|text| names(text, &[Placeholder::RunDir, Placeholder::AttemptDir]))
}

/// Reports whether a command is told its node, so that it can start a part of the training on each.
#[must_use]
pub fn names_node(spec: &CommandSpec, preset: &Preset) -> bool {
    spec.command.iter().chain(preset.environment.values()).any(|text| names(text, &[Placeholder::Node]))
}

/// Returns the arguments, variables and files of every start.
fn texts_of<'a>(spec: &'a CommandSpec, preset: &'a Preset) -> impl Iterator<Item = &'a String> {
    let files = spec.files.values().flat_map(FileSpec::texts).map(|(_, text)| text);
    spec.command.iter().chain(spec.defaults.keys()).chain(preset.environment.values()).chain(files)
}

fn names(text: &str, places: &[Placeholder]) -> bool {
    Template::parse(text).is_ok_and(|template| template.placeholders().any(|place| places.contains(place)))
}

/// Fills in the placeholders of a file pattern, such as that of the checkpoints. Nothing filled in acts as a
/// pattern itself.
#[must_use]
pub fn resolve_pattern(pattern: &str, preset: &Preset, attempt: &AttemptContext) -> String {
    let knobs = preset.tree();
    render(pattern, |place| glob::escape(&value_of(place, &knobs, attempt)))
}

fn fill_in(text: &str, knobs: &Value, attempt: &AttemptContext) -> String {
    render(text, |place| value_of(place, knobs, attempt))
}

/// Renders a text. One with wrong braces is refused before the start, so it stays as it is here.
fn render(text: &str, value: impl Fn(&Placeholder) -> String) -> String {
    Template::parse(text).map_or_else(|_| text.to_owned(), |template| template.render(value))
}

fn value_of(place: &Placeholder, knobs: &Value, attempt: &AttemptContext) -> String {
    match place {
        Placeholder::RunDir => attempt.run_dir.display().to_string(),
        Placeholder::AttemptDir => attempt.attempt_dir.display().to_string(),
        Placeholder::Rung => attempt.rung_name.clone(),
        Placeholder::File(name) => attempt.attempt_dir.join(name).display().to_string(),
        Placeholder::Checkpoint => {
            attempt.checkpoint.as_ref().map_or_else(String::new, |path| path.display().to_string())
        }
        Placeholder::CheckpointParent => {
            attempt.written().and_then(Path::parent).map_or_else(String::new, |path| path.display().to_string())
        }
        Placeholder::CheckpointName => {
            attempt.written().and_then(Path::file_name).map_or_else(String::new, |name| name.display().to_string())
        }
        Placeholder::Step => attempt.step.to_string(),
        Placeholder::StepsLeft => attempt.steps_left().map_or_else(String::new, |steps| steps.to_string()),
        Placeholder::EpochsLeft => attempt.epochs_left(knobs).map_or_else(String::new, |epochs| epochs.to_string()),
        Placeholder::Node => attempt.place.node.to_string(),
        Placeholder::Nodes => attempt.place.nodes.to_string(),
        Placeholder::Head => attempt.place.head.clone(),
        Placeholder::Port => attempt.place.port.to_string(),
        Placeholder::Knob(path) => find_knob(knobs, path).map_or_else(String::new, format_knob),
    }
}

/// Finds a knob or a section of knobs by its dotted path.
pub fn find_knob<'a>(knobs: &'a Value, path: &str) -> Option<&'a Value> {
    knobs.pointer(&format!("/{}", path.replace('.', "/")))
}

/// Formats a knob for an argument: text as it is, everything else as JSON.
#[must_use]
pub fn format_knob(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
