//! The state of a run that has not ended and has no keeper.

use super::go_on::find_way;
use super::lock::Recovery;
use super::owners;
use super::run_dir::RunDir;
use crate::format::count;
use crate::protocol::control::{RunState, Status};
use crate::protocol::resume::GoOn;

/// Returns the state, with the reason. `recovery`: the keeper's parent is alive, or the next keeper opens the run.
pub fn state_of(run: &RunDir, status: &Status, recovery: Option<Recovery>) -> (RunState, Option<String>) {
    if let Some(recovery) = recovery {
        return (RunState::Recovering, Some(recovery.sentence()));
    }
    let is_watched = status.pid_worker.is_some();
    if status.level.is_some() && status.state != RunState::Paused {
        let command = owners::command_process(run);
        if is_watched || command.is_some() {
            return (RunState::Unattended, Some(describe_command(run, status, is_watched, command)));
        }
    }
    let way = find_way(run, Some(status));
    match status.state {
        RunState::Paused => (RunState::Paused, Some(format!("no keeper runs; {way}"))),
        _ if is_watched => {
            (RunState::Stopping, Some("the keeper is gone; the worker saves at its next step and ends".to_owned()))
        }
        _ => (RunState::Interrupted, Some(format!("the keeper is gone; {way}"))),
    }
}

/// Describes a command without a keeper. `is_watched`: its harness lives, and keeps what it prints.
fn describe_command(run: &RunDir, status: &Status, is_watched: bool, command: Option<u32>) -> String {
    let (resume, step) = (run.command("resume"), count(status.step));
    match (is_watched, command) {
        (true, Some(_)) => {
            let way = GoOn::TakesOver(resume);
            format!("the keeper is gone and the command runs on without it, past step {step}; {way}")
        }
        (true, None) => {
            format!("the keeper is gone and the command has ended since; {}", GoOn::TakesOver(resume))
        }
        (false, command) => format!(
            "the command, process {}, runs on past step {step}, but whatever watched it is gone; `{resume}` ends it and \
             continues from the newest checkpoint that is known",
            command.unwrap_or(0)
        ),
    }
}
