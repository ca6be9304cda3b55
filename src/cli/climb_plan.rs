//! A climb plan that a run cannot follow.

use super::kept_script::KeptScript;
use super::say;
use crate::config::problem::Part;
use crate::config::run::Run;
use crate::config::yaml::locate;
use crate::untrusted::file::{Limit, read_text};
use crate::untrusted::text;
use std::path::Path;

/// Says before a start that the plan will not be followed.
pub fn warn(run: &Run, file: Option<&Path>) {
    if let Some(refusal) = refuse(run, file) {
        say(&refusal);
    }
}

/// Says that nothing resumes the command of a run with a climb plan, as far as the run file and the source show.
pub fn refuse(run: &Run, file: Option<&Path>) -> Option<String> {
    let command = run.command.as_ref().filter(|_| run.plan.len() > 1)?;
    if command.resumes() || KeptScript::of(command).is_some() {
        return None;
    }
    let place = file.and_then(|file| {
        let (line, _) = locate(&read_text(file, Limit::Handwritten).ok()?, "climb.plan", Part::Key(0));
        Some(format!("{}:{line}: ", text::path(file)))
    });
    let stays = text::escape_line(&run.rungs[run.first_rung()].name);
    Some(format!(
        "{}climb.plan is not followed: nothing resumes the command, so the next stage would start it from its beginning, and \
         the run stays on {stays}; write `checkpoints:` and `resume:`, or call downshift.attach",
        place.unwrap_or_default()
    ))
}
