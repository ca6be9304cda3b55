//! `adopt`: keeps a training process that already runs.

mod running;
mod session;

use super::climb_plan;
use super::devices::{devices_of, worker_device};
use super::environment::NextStart;
use super::occupied::living_runs;
use super::run::{Overrides, load_run_file, look_on, start_keeper};
use super::trust::{self, Trust};
use super::typed_run::typed_run;
use super::{Failure, Outcome, say};
use crate::config::run::Run;
use crate::keeper::Launch;
use crate::outlook::capability::capability_of;
use crate::process_tree::Process;
use crate::protocol::claim::ClaimRequest;
use crate::store::command_line::record_command_line;
use crate::store::foreign::{ForeignProcess, TmuxPane};
use crate::store::identity::Identity;
use crate::store::run_dir::RunDir;
use crate::store::runs_directories::RunsDirectories;
use crate::store::worker_log;
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use crate::untrusted::text;
use clap::Args;
use running::Running;
use serde_json::Map;
use session::{find_in_session, find_process};
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `adopt`.
#[derive(Debug, Clone, Args)]
pub struct AdoptArgs {
    /// The run file of the training: its ladder, `resume:` and `checkpoints:` hold from now on. Without it, that in the
    /// folder of the process whose command starts the same script
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,
    /// The tmux session in which it runs
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    session: Option<String>,
    /// Its process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The file its output goes to; with --session, output is read from the pane
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Raise an alarm after this time without output and CPU use [default: as `watch.hang` says]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
    /// Maximum number of restarts [default: as `watch` says]
    #[arg(long, value_name = "N")]
    max_restarts: Option<u32>,
    /// Let the keeper end it: when it hangs, and on `stop`, `pause` and `shift`
    #[arg(long)]
    may_end: bool,
    /// Start it again when it dies; without a checkpoint, from its beginning
    #[arg(long)]
    restart: bool,
    /// No cockpit: one line per event on stdout
    #[arg(long)]
    headless: bool,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    trust: Trust,
    /// Without a run file, the command that starts it again, after `--restart --`
    #[arg(last = true, value_name = "COMMAND", requires = "restart", conflicts_with = "config")]
    command: Vec<String>,
}

/// Keeps a training process that already runs.
pub fn adopt(args: &AdoptArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let (process, pane) = match (args.pid, &args.session) {
        (Some(pid), _) => (find_process(pid)?, None),
        (None, Some(session)) => find_in_session(session).map(|(process, pane)| (process, Some(pane)))?,
        (None, None) => {
            return Err(Failure::new(
                2,
                "name the training: its tmux session with --session NAME, or its process with --pid PID",
            ));
        }
    };
    let log = args.log.as_deref().map(existing_log).transpose()?;
    let pane = pane.filter(|_| log.is_none());
    if let Some(pane) = &pane {
        pane.refuse_second_pipe()?;
    }
    refuse_kept(&process, runs)?;
    let run = run_of(args, &Running::of(process.pid)?, trainer)?;
    let device = worker_device(&run, &args.overrides.device)?;
    let dir = RunDir::create(runs, &run)?;
    record_command_line(&dir);
    // The harness has tmux write to it.
    let session = pane.as_ref().map(|_| dir.file(worker_log::OF_PANE));
    if let Some(session) = &session {
        fs::write(session, "")?;
    }
    let output = session.or(log);
    let identity = Identity::of(process.pid).filter(|identity| identity.started == process.started);
    let identity = identity.ok_or_else(|| Failure::new(1, format!("process {} has just ended", process.pid)))?;
    let pane = pane.map(|pane| TmuxPane { id: pane.id, socket: pane.socket });
    ForeignProcess { identity, output, pane, may_end: args.may_end }.record(&dir)?;
    // It uses them already, whatever else does.
    let claim = ClaimRequest { devices: devices_of(&device), another: true, ..ClaimRequest::default() };
    let launch = Launch { device, claim: Some(claim), inject: Vec::new() };
    start_keeper(&dir, Some(&launch), NextStart::first(&dir))?;
    look_on(&dir, args.headless, 0)
}

/// Refuses a process that a run keeps: two keepers would start its training twice.
fn refuse_kept(process: &Process, runs: &Path) -> Result<(), Failure> {
    let pid = process.pid;
    let listed = RunsDirectories::of_user().and_then(|list| list.list().ok()).unwrap_or_default();
    let folders = std::iter::once(runs.to_owned()).chain(listed);
    let keeps = |dir: &RunDir| ForeignProcess::living(dir).is_some_and(|kept| kept.identity.pid == pid);
    if let Some(kept) = folders.flat_map(|folder| living_runs(&folder)).find(|kept| keeps(&kept.dir)) {
        let (name, attach) = (kept.dir.name(), kept.dir.command("attach"));
        return Err(Failure::new(2, format!("{name} keeps process {pid} already; `{attach}` opens the cockpit on it")));
    }
    if process.token.is_some() {
        let text = format!(
            "process {pid} was started by a run of downshift, which keeps it already; `downshift runs` names it"
        );
        return Err(Failure::new(2, text));
    }
    Ok(())
}

/// Returns the absolute path of the file that `--log` names.
fn existing_log(path: &Path) -> Result<PathBuf, Failure> {
    let shown = text::path(path);
    path.canonicalize().map_err(|error| {
        Failure::new(2, format!("--log {shown}: {error}; name a file that exists, from the current folder"))
    })
}

/// Returns the run that keeps the process: that of a run file, or of a command line.
fn run_of(args: &AdoptArgs, running: &Running, trainer: &dyn Trainer) -> Result<Run, Failure> {
    let found = match &args.config {
        Some(config) => Some(config.clone()),
        None if args.command.is_empty() => running.find_run_file()?,
        None => None,
    };
    match found {
        Some(file) => run_of_file(args, running, &file, trainer),
        None => run_of_words(args, running),
    }
}

fn run_of_file(args: &AdoptArgs, running: &Running, file: &Path, trainer: &dyn Trainer) -> Result<Run, Failure> {
    let shown = text::path(file);
    let run = load_run_file(Some(file), &overrides_of(args), &args.overrides.device, trainer)?;
    let run = settle_program(run).map_err(Failure::config)?;
    let Some(level) = capability_of(run.command.as_ref()).level() else {
        return Err(Failure::new(2, format!("{shown} starts no command, so it is not the run file of this process")));
    };
    climb_plan::warn(&run, Some(file));
    trust::require_approval(&run, args.trust)?;
    say(&format!("process {} is kept as {shown} says: {}", running.pid, level.meaning()));
    if let Some(difference) = running.describe_difference(&run) {
        say(&format!("{difference}; a restart and a shift train as {shown} says"));
    }
    Ok(run)
}

/// Returns the run of the process's own command line, or of the one that starts it again.
fn run_of_words(args: &AdoptArgs, running: &Running) -> Result<Run, Failure> {
    let words = if args.command.is_empty() { &running.words } else { &args.command };
    if args.restart && args.command.is_empty() {
        return Err(Failure::new(
            2,
            "--restart needs to know how: name the run file of the training, or write the command after `--restart --`",
        ));
    }
    let run = typed_run(words, &running.directory, Map::new(), &overrides_of(args))?;
    // It runs already, or was typed after --restart.
    trust::approve_typed(&run);
    if !args.restart {
        say(&running.advise_run_file());
    }
    Ok(run)
}

/// Returns the settings that the arguments stand for.
fn overrides_of(args: &AdoptArgs) -> Vec<(String, String)> {
    let interval = args.interval.map(|seconds| format!("{seconds} s"));
    let of_interval = ["watch.hang.starting", "watch.hang.first_steps"].map(|key| Some((key, interval.clone()?)));
    let most = args.max_restarts.map(|most| most.to_string());
    let of_restarts = [
        ("watch.restarts_without_progress", most.clone()),
        ("watch.restarts_in_window", most.clone()),
        ("watch.restart_window", most.map(|_| "never".to_owned())),
    ]
    .map(|(key, value)| Some((key, value?)));
    let restart = args.restart.then(|| ("restart", "from_start".to_owned()));
    let settings = of_interval.into_iter().chain(of_restarts).chain([restart]).flatten();
    settings.map(|(key, value)| (key.to_owned(), value)).chain(args.overrides.set.iter().cloned()).collect()
}
