//! The state of a run that has not ended and has no keeper.

use super::continuation::continuation;
use super::identity::Identity;
use super::lock::Recovery;
use super::owners;
use super::run_dir::RunDir;
use crate::format::count;
use crate::outlook::continuation::{Continuation, How};
use crate::protocol::control::{RunState, Status};

/// Returns the state, with the reason. `recovery`: the keeper's parent is alive, or the next keeper opens the run.
pub fn state_of(run: &RunDir, status: &Status, recovery: Option<Recovery>) -> (RunState, Option<String>) {
    if let Some(recovery) = recovery {
        return (RunState::Recovering, Some(recovery.sentence()));
    }
    let has_worker = status.pid_worker.is_some();
    if status.level.is_some() && status.state != RunState::Paused {
        let orphan = || living_command(run).map(|pid| describe_orphan(run, status, pid));
        let why = if has_worker { Some(describe_unattended(run, status)) } else { orphan() };
        if why.is_some() {
            return (RunState::Unattended, why);
        }
    }
    let way = continuation(run, Some(status));
    match status.state {
        RunState::Paused => (RunState::Paused, Some(format!("no keeper runs; {way}"))),
        _ if has_worker => {
            (RunState::Stopping, Some("the keeper is gone; the worker saves at its next step and ends".to_owned()))
        }
        _ => (RunState::Interrupted, Some(format!("the keeper is gone; {way}"))),
    }
}

/// Returns a process of the command, unless the machine was started again since.
fn living_command(run: &RunDir) -> Option<u32> {
    let record = owners::worker_record(run)?;
    let same_boot = record.owner.boot == Identity::own().boot;
    if same_boot { owners::command_process(run) } else { None }
}

/// Describes a command whose harness lives, and keeps what it prints for the next keeper.
fn describe_unattended(run: &RunDir, status: &Status) -> String {
    let way = Continuation { how: How::TakeOver, command: run.command("resume") };
    let lives = owners::command_lives(run);
    if lives {
        format!("the keeper is gone and the command runs on without it, past step {}; {way}", count(status.step))
    } else {
        format!("the keeper is gone and the command has ended since; {way}")
    }
}

/// Describes a command whose harness is gone, too: nothing can watch it again.
fn describe_orphan(run: &RunDir, status: &Status, pid: u32) -> String {
    let (step, way) = (count(status.step), continuation(run, Some(status)));
    let way = match way.how {
        How::RunAgain => format!("`kill {pid}` ends it"),
        How::Resume(durable) => format!("`{}` ends it and continues from step {}", way.command, count(durable)),
        _ => format!("`{}` ends it and starts it over", way.command),
    };
    format!("the command, process {pid}, runs on past step {step}, but the processes that kept it are gone; {way}")
}
