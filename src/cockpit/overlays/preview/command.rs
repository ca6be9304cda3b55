//! The consequences of a shift for a command: its script resumes only as well as it can itself.

use crate::cockpit::state::State;
use crate::config::knobs::MICRO_BATCH;
use crate::protocol::companion::{Framework, Grade};
use crate::protocol::control::{Request, RunState, Status, Target};
use crate::protocol::resume::Resume;
use crate::recipe::class::{Change, Class, worst_class};

/// Returns the cost of a shift to a rung, or why it is refused, after its resume.
pub fn short_sentence(state: &State, status: &Status, to: usize) -> String {
    let resume = status.describe_resume().unwrap_or_default();
    format!("{resume}: {}", cost_of_shift(state, status, to).0)
}

/// Returns the cost of a shift to a rung, or why it is refused, and whether it is possible.
fn cost_of_shift(state: &State, status: &Status, to: usize) -> (String, bool) {
    let rung = state.ladder.get(to).map_or_else(String::new, |rung| rung.name.clone());
    let checked = state.situation().map(|now| now.check(&Request::Shift { to: Target::Rung(rung) }));
    let when = match status.state {
        RunState::Paused => "takes effect on resume",
        _ => "takes effect at the next start",
    };
    match checked {
        Some(Err(why)) => (format!("refused: {why}"), false),
        Some(Ok(Some(cost))) => (cost.to_string(), true),
        Some(Ok(None)) | None => (when.to_owned(), true),
    }
}

/// The consequences of a shift.
pub struct Consequences {
    /// The effect on the experiment.
    pub meaning: String,
    /// The cost, and when the shift takes effect.
    pub cost: String,
    /// Drawn as a warning.
    pub warns: bool,
}

/// Returns the consequences of a shift to a rung that makes these changes.
pub fn consequences(state: &State, status: &Status, to: usize, changes: &[Change]) -> Consequences {
    // A status of an older keeper has no grade.
    let resume = status.resume.clone().unwrap_or_else(|| Resume::of_script(state.capability().can_resume(), false));
    let ignored = ignored_changes(status, changes);
    let resume = resume_after(resume, status, changes);
    let mut meaning = meaning_of(worst_class(changes), &resume);
    if !ignored.is_empty() {
        let rest = if ignored.len() == changes.len() { "the shift changes nothing" } else { "the rest takes effect" };
        meaning = format!("The script ignores {}: {rest}. {meaning}", ignored.join(", "));
    }
    let (cost, is_possible) = cost_of_shift(state, status, to);
    let loses_place = matches!(resume.grade, Grade::WeightsOnly | Grade::None);
    let warns = !is_possible || loses_place || !ignored.is_empty();
    let resume = status.describe_resume_as(status.resume.as_ref().map(|_| &resume)).unwrap_or_default();
    Consequences { meaning, cost: format!("{resume}: {cost}."), warns }
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
        Some(reason) if resume.grade != Grade::Exact => {
            format!("{text} Its steps will not repeat bit by bit: {reason}.")
        }
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
