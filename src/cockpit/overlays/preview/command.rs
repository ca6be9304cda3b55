//! The consequences of a shift for a command: its script resumes only as well as it can itself.

use crate::config::command::cost::{Reached, ShiftCost};
use crate::config::command::{CommandSpec, Level};
use crate::config::knobs::MICRO_BATCH;
use crate::protocol::companion::{Framework, Grade};
use crate::protocol::control::{LEVEL_OPEN, RunState, Status};
use crate::protocol::resume::Resume;
use crate::recipe::class::{Change, Class};

/// Returns the level of a run.
pub fn command_level(spec: &CommandSpec, status: &Status) -> Level {
    spec.level_with(status.companion.as_ref().is_some_and(|companion| companion.resumes()))
}

/// Returns what an end of the command costs now.
pub fn cost_now(spec: &CommandSpec, status: &Status) -> ShiftCost {
    let reached = Reached { step: status.step, taken: status.taken_steps(), durable: status.durable_step };
    spec.shift_cost(command_level(spec, status), reached)
}

/// Returns the level with the resume grade: `level 2, resume exact`.
pub fn describe_level(spec: &CommandSpec, status: &Status) -> String {
    level_with_grade(command_level(spec, status), status.resume.as_ref(), "resume ")
}

fn level_with_grade(level: Level, resume: Option<&Resume>, before_grade: &str) -> String {
    match resume.and_then(Resume::word) {
        Some(word) => format!("{level}, {before_grade}{word}"),
        None => level.to_string(),
    }
}

/// Returns the level for the header, where it may not be known yet; `level 2, exact` if it has to be short.
pub fn describe_known_level(spec: &CommandSpec, status: &Status, long: bool) -> String {
    if status.is_level_open() {
        return LEVEL_OPEN.to_owned();
    }
    level_with_grade(command_level(spec, status), status.resume.as_ref(), if long { "resume " } else { "" })
}

/// Returns the consequences in one line.
pub fn short_sentence(spec: &CommandSpec, status: &Status) -> String {
    let cost = cost_now(spec, status);
    format!("{}: {cost}", describe_level(spec, status))
}

/// The consequences of a shift.
pub struct Consequences {
    /// The effect on the experiment.
    pub meaning: String,
    /// The cost, and when the shift takes effect.
    pub cost: String,
    /// It deserves a warning.
    pub warns: bool,
}

/// Returns the consequences of a shift that makes these changes.
pub fn consequences(spec: &CommandSpec, status: &Status, class: Class, changes: &[Change]) -> Consequences {
    let level = command_level(spec, status);
    // A status of an older keeper has no grade.
    let resume = status.resume.clone().unwrap_or_else(|| Resume::of_script(level > Level::Command, false));
    let ignored = ignored_changes(status, changes);
    let resume = resume_after(resume, status, changes);
    let mut meaning = meaning_of(class, &resume);
    if !ignored.is_empty() {
        let rest = if ignored.len() == changes.len() { "the shift changes nothing" } else { "the rest takes effect" };
        meaning = format!("The script ignores {}: {rest}. {meaning}", ignored.join(", "));
    }
    let cost = cost_now(spec, status);
    let when = match status.state {
        RunState::Paused => "; takes effect on resume",
        RunState::BackingOff | RunState::AwaitingCard | RunState::AwaitingVram => "; takes effect at the next start",
        _ => "",
    };
    let when = if cost.is_possible() { when } else { "" };
    let loses_place = matches!(resume.grade, Grade::WeightsOnly | Grade::None);
    let warns = !cost.is_possible() || loses_place || !ignored.is_empty();
    // Without a grade of its own, the run has the level alone.
    let shown = level_with_grade(level, status.resume.as_ref().map(|_| &resume), "resume ");
    Consequences { meaning, cost: format!("{shown}: {cost}{when}."), warns }
}

/// Returns the resume after these changes. A framework's loader draws its random numbers by micro-batch, `run.batches` of
/// the companion by sample.
fn resume_after(resume: Resume, status: &Status, changes: &[Change]) -> Resume {
    let framework = status.companion.as_ref().map(|companion| companion.framework);
    let by_batch = framework.is_some_and(|framework| framework != Framework::Loop);
    let changes_batch = changes.iter().any(|change| change.path == MICRO_BATCH);
    if !by_batch || !changes_batch || resume.grade != Grade::Exact || is_ignored(status, MICRO_BATCH) {
        return resume;
    }
    Resume { grade: Grade::SameData, reason: Some(format!("{MICRO_BATCH} changes")), ..resume }
}

/// Describes the effect on the experiment, as far as the resume keeps it.
fn meaning_of(class: Class, resume: &Resume) -> String {
    let text = match (class == Class::A, resume.grade) {
        (_, Grade::None) => "The command starts again with other settings.",
        (true, Grade::Exact) => "Same problem: the loss continues as before, up to rounding and dropout noise.",
        (true, Grade::SameData) => "Same problem: the same samples follow, with other random numbers.",
        (true, Grade::WeightsOnly) => "Same settings in effect, but only the weights continue: the data starts over.",
        (true, Grade::Script) => {
            "Same problem: the script continues with settings that keep its numbers, up to rounding."
        }
        (false, Grade::WeightsOnly) => {
            "Different trajectory: only the weights continue, with other settings; the data starts over."
        }
        (false, _) => "Different trajectory: the script continues with other settings; the loss curve may bend.",
    };
    match &resume.reason {
        Some(reason) if resume.grade != Grade::Exact => format!("{text} Not exact: {reason}."),
        _ => text.to_owned(),
    }
}

/// Returns the changed knobs that the script ignores.
fn ignored_changes<'a>(status: &Status, changes: &'a [Change]) -> Vec<&'a str> {
    changes.iter().map(|change| change.path.as_str()).filter(|path| is_ignored(status, path)).collect()
}

fn is_ignored(status: &Status, path: &str) -> bool {
    status.companion.iter().any(|companion| companion.ignored.iter().any(|knob| knob.name == path))
}
