//! Starts a keeper in a session of its own, without a terminal, under a [parent](super::keeper_parent) that restarts it.

use super::author::{Author, Process};
use super::run_loop::Launch;
use crate::process_tree::{TOKEN_VARIABLE, new_token};
use crate::protocol::environment::EnvironmentNews;
use crate::store::run_dir::RunDir;
use crate::store::umask;
use serde_json::json;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The environment that a keeper starts in, where it differs from that of this process.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove.
    pub unset: Vec<String>,
    /// The report for the journal.
    pub news: EnvironmentNews,
}

impl Surroundings {
    pub(super) fn apply(&self, command: &mut Command) {
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
        for name in &self.unset {
            command.env_remove(name);
        }
    }
}

/// A start that the user asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The process that asked, in words.
    pub by: String,
    /// How the environment compares with that of the first start.
    pub environment: EnvironmentNews,
}

impl Asked {
    /// Returns the request of this process.
    pub(super) fn own(environment: &EnvironmentNews) -> Self {
        Self { by: Author::Command(Process::own()).to_string(), environment: environment.clone().within_bounds() }
    }

    /// Returns the arguments that pass this on.
    pub(super) fn arguments(&self) -> Vec<String> {
        let by = format!("--by-person={}", self.by);
        let news = Some(&self.environment).filter(|news| **news != EnvironmentNews::default());
        std::iter::once(by).chain(news.map(|news| format!("--environment={}", json!(news)))).collect()
    }
}

/// Starts the parent of a keeper, detached from this process and its terminal.
///
/// # Errors
/// Returns the system's error.
pub fn start(run: &RunDir, launch: Option<&Launch>, surroundings: &Surroundings) -> io::Result<()> {
    let log = run.append("keeper.log")?;
    let mut command = keeper_command("keeper", run, launch);
    surroundings.apply(&mut command);
    command.arg("--detach").args(Asked::own(&surroundings.news).arguments());
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = command.spawn()?.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("the keeper could not be started: {status}"))) }
}

/// Runs the intermediate process: creates a new session, starts the parent and exits, so that no
/// process has to reap the parent.
///
/// # Errors
/// Returns the system's error.
pub fn leave_terminal(run: &RunDir, launch: Option<&Launch>, asked: Option<&Asked>) -> io::Result<()> {
    rustix::process::setsid()?;
    let mut command = keeper_command("keeper", run, launch);
    command.arg("--parent").args(asked.iter().flat_map(|asked| asked.arguments())).spawn()?;
    Ok(())
}

/// Returns a command that runs this program as a process of a run.
pub(super) fn keeper_command(command: &str, run: &RunDir, launch: Option<&Launch>) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("downshift-keeper").arg(command).arg("--run-dir").arg(run.path());
    // A keeper that a command starts belongs to another run, and outlives that command.
    program.env(TOKEN_VARIABLE, new_token()).envs(umask::for_child());
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
