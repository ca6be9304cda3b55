//! Which knobs of a command reach its script: a rung whose changes reach no argument, file or variable would
//! start the same training again.

use super::check::{KNOB_SECTIONS, collect_paths};
use super::constants::changed_constants;
use super::files::FileSpec;
use super::launch::{AttemptContext, resolve_launch};
use super::template::{Placeholder, Template};
use super::{CommandLaunch, CommandSpec};
use crate::config::ladder::{Resolved, is_at_or_below};
use crate::config::problem::Problem;
use crate::config::run::Run;
use crate::config::typed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Knobs that have a meaning for a command even if no text names them: its companion, the estimate of its length and batch,
/// and the ladder read them.
const KNOWN: [&str; 8] = [
    "training.epochs",
    "training.steps",
    "training.micro_batch",
    "training.accumulation",
    "training.seed",
    "optimizer.lr",
    "optimizer.max_norm",
    // A command has none; the check of its values says why.
    "optimizer.plateau",
];

/// Returns the knobs of the built-in trainer in the body of the file that mean nothing for this command on any rung.
#[must_use]
pub fn useless_knobs(spec: &CommandSpec, rungs: &[Resolved]) -> Vec<Problem> {
    let Some(full) = rungs.first() else { return Vec::new() };
    let taken: BTreeSet<String> =
        rungs.iter().flat_map(|rung| placeholders(spec, rung)).chain(spec.constants.iter().cloned()).collect();
    let mut paths = Vec::new();
    // A script reads any other name below `knobs` from its companion.
    for section in ["training", "optimizer"] {
        leaf_paths(section, full.tree.get(section), &mut paths);
    }
    let is_known = |path: &str| KNOWN.iter().any(|known| is_at_or_below(path, known));
    let unread = paths.iter().filter(|path| !is_known(path) && !reaches(path, &taken));
    unread.map(|path| unread_knob(path, &full.tree)).collect()
}

/// Collects the paths of the values of a section.
fn leaf_paths(path: &str, value: Option<&Value>, found: &mut Vec<String>) {
    match value {
        Some(Value::Object(knobs)) => {
            knobs.iter().for_each(|(key, below)| leaf_paths(&format!("{path}.{key}"), Some(below), found));
        }
        Some(_) => found.push(path.to_owned()),
        None => {}
    }
}

/// Returns the knobs that rungs set without effect, and rungs that start the same command as one above.
#[must_use]
pub fn useless_rungs(spec: &CommandSpec, rungs: &[Resolved]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut sound: Vec<&Resolved> = rungs.iter().take(1).collect();
    for rung in rungs.iter().skip(1) {
        let taken: BTreeSet<String> =
            placeholders(spec, rung).into_iter().chain(spec.constants.iter().cloned()).collect();
        let unread = rung.sets.iter().filter(|path| !reaches(path, &taken));
        let unread: Vec<Problem> = unread.map(|path| rung.blame(unread_knob(path, &rungs[0].tree))).collect();
        if !unread.is_empty() {
            problems.extend(unread);
            continue;
        }
        let start =
            |of: &Resolved| (launches(spec, of), changed_constants(spec, &rungs[0].rung.preset, &of.rung.preset));
        let own = start(rung);
        if let Some(twin) = sound.iter().find(|above| start(above) == own) {
            let wrong = format!("rung `{}` starts exactly the same command as `{}`", rung.rung.name, twin.rung.name);
            let fix = "change a knob that the command takes, or remove the rung";
            problems.push(Problem::at(rung.place.clone().unwrap_or_default(), wrong, fix));
        } else {
            sound.push(rung);
        }
    }
    problems
}

impl Run {
    /// Reports knobs whose change has no effect on the command.
    pub fn unreached_knobs<'a>(&self, set: impl Iterator<Item = &'a str>) -> Vec<Problem> {
        let Some(spec) = &self.command else { return Vec::new() };
        let knobs = set.filter(|path| ["training.", "optimizer.", "knobs."].iter().any(|top| path.starts_with(top)));
        let preset = &self.rungs[0].preset;
        let mut taken = taken_knobs(spec, preset.environment.values());
        taken.extend(spec.constants.iter().cloned());
        let unread = knobs.filter(|path| !reaches(path, &taken));
        unread.map(|path| unread_knob(path, &preset.tree())).collect()
    }
}

fn unread_knob(path: &str, full: &Value) -> Problem {
    let mut known = Vec::new();
    for section in KNOB_SECTIONS {
        collect_paths(section, full.get(section), &mut known);
    }
    let others: Vec<&str> = known.iter().map(String::as_str).filter(|other| *other != path).collect();
    let near = typed::suggest(path, &others);
    let fix = if near.starts_with("did you mean") && !known.iter().any(|known| known == path) {
        near
    } else {
        format!("write {{{path}}} into `command`, `environment` or `files`, name it in `constants`, or remove the knob")
    };
    Problem::at(path, "no argument, variable or file takes this knob, so it changes nothing", fix)
}

/// Reports whether a knob, or one below or above it, is among those taken. Variables and ranks always reach the script.
fn reaches(path: &str, taken: &BTreeSet<String>) -> bool {
    path == "ranks"
        || is_at_or_below(path, "environment")
        || taken.iter().any(|knob| is_at_or_below(knob, path) || is_at_or_below(path, knob))
}

pub(super) fn placeholders(spec: &CommandSpec, rung: &Resolved) -> BTreeSet<String> {
    taken_knobs(spec, rung.rung.preset.environment.values())
}

/// Returns the knobs that the texts of a start name.
fn taken_knobs<'a>(spec: &'a CommandSpec, variables: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let resume = spec.resume.iter().flat_map(|resume| resume.arguments.iter().chain(resume.environment.values()));
    let files = spec.files.values().flat_map(FileSpec::texts).map(|(_, text)| text);
    let texts = spec.command.iter().chain(spec.defaults.keys()).chain(files).chain(resume).chain(variables);
    let templates = texts.filter_map(|text| Template::parse(text).ok());
    let knob = |place: &Placeholder| match place {
        Placeholder::Knob(path) => Some(path.clone()),
        _ => None,
    };
    templates.flat_map(|template| template.placeholders().filter_map(knob).collect::<Vec<_>>()).collect()
}

/// Returns a rung's first start and a resumed one, in places that are the same for all rungs.
fn launches(spec: &CommandSpec, rung: &Resolved) -> [CommandLaunch; 2] {
    let start = |checkpoint: Option<PathBuf>| {
        let attempt = AttemptContext {
            run_dir: PathBuf::from("/run"),
            attempt_dir: PathBuf::from("/run/attempt"),
            rung_name: rung.rung.name.clone(),
            attempt: 1,
            checkpoint,
            ..AttemptContext::default()
        };
        resolve_launch(spec, &rung.rung.preset, &attempt)
    };
    [start(None), start(Some(PathBuf::from("/checkpoint")))]
}
