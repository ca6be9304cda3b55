//! Starts a keeper in a session of its own, without a terminal, under a [parent](super::keeper_parent) that restarts it.

use super::author::{Author, Process};
use super::run_loop::Launch;
use crate::process_tree::{TOKEN_VARIABLE, new_token};
use crate::store::run_dir::RunDir;
use serde_json::json;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts the parent of a keeper, detached from this process and its terminal.
///
/// # Errors
/// Returns the system's error.
pub fn start(run: &RunDir, launch: Option<&Launch>) -> io::Result<()> {
    let log = run.append("keeper.log")?;
    let mut command = keeper_command("keeper", run, launch);
    let asked_by = Author::Command(Process::own()).to_string();
    command.arg("--detach").arg(by_person(&asked_by)).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = command.spawn()?.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("the keeper could not be started: {status}"))) }
}

/// Runs the intermediate process: creates a new session, starts the parent and exits, so that no
/// process has to reap the parent.
///
/// # Errors
/// Returns the system's error.
pub fn leave_terminal(run: &RunDir, launch: Option<&Launch>, asked_by: &str) -> io::Result<()> {
    rustix::process::setsid()?;
    let mut command = keeper_command("keeper", run, launch);
    command.arg("--parent").arg(by_person(asked_by)).spawn()?;
    Ok(())
}

/// Returns the argument that names who asked for a keeper.
pub(super) fn by_person(asked_by: &str) -> String {
    format!("--by-person={asked_by}")
}

/// Returns a command that runs this program as a process of a run.
pub(super) fn keeper_command(command: &str, run: &RunDir, launch: Option<&Launch>) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("downshift-keeper").arg(command).arg("--run-dir").arg(run.path());
    // A keeper that a command starts belongs to another run, and outlives that command.
    program.env(TOKEN_VARIABLE, new_token());
    if let Some(launch) = launch {
        program.args(["--device", &launch.device]);
        program.args(launch.claim.iter().flat_map(|claim| ["--claim".to_owned(), json!(claim).to_string()]));
        let faults: Vec<String> = launch.inject.iter().map(ToString::to_string).collect();
        if !faults.is_empty() {
            program.args(["--inject", &faults.join(",")]);
        }
    }
    program
}
