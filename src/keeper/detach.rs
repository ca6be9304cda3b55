//! How a keeper is started: with a session of its own, away from any terminal, and by a parent
//! that does nothing but wait and bring it back.

use super::caretaker;
use super::keep::Launch;
use crate::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// A keeper that dies more often than this in [`WINDOW`] is not brought back.
const DEATHS: usize = 5;
const WINDOW: Duration = Duration::from_mins(10);
/// A signal that is older is not what a keeper died of.
const TOLD: Duration = Duration::from_mins(1);
/// Between a death and the next keeper.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the parent of a keeper, detached from this process and its terminal.
///
/// # Errors
/// The system's words.
pub fn start(run: &RunDir, launch: Option<&Launch>) -> io::Result<()> {
    let log = run.append("keeper.log")?;
    let mut command = program("keeper", run, launch);
    command.args(["--detach", "--by-person"]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = command.spawn()?.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("the keeper could not be started: {status}"))) }
}

/// The first of two processes: gives itself a session of its own, starts the parent and ends, so
/// that nobody has to reap the parent.
///
/// # Errors
/// The system's words.
pub fn leave_terminal(run: &RunDir, launch: Option<&Launch>) -> io::Result<()> {
    rustix::process::setsid()?;
    let mut command = program("keeper", run, launch);
    command.args(["--parent", "--by-person"]).spawn()?;
    Ok(())
}

/// The parent: starts the keeper, waits, and starts it again when it was killed or panicked.
/// Returns the keeper's last exit code.
///
/// # Errors
/// The system's words.
pub fn bring_back(run: &RunDir, launch: Option<&Launch>, by_person: bool) -> io::Result<u8> {
    let mut deaths: VecDeque<Instant> = VecDeque::new();
    let (mut by_person, ward) = (by_person, Ward::default());
    ward.pass_on_signals()?;
    loop {
        let mut command = program("keeper", run, launch);
        if by_person {
            command.arg("--by-person");
        }
        let mut child = command.process_group(0).spawn()?;
        ward.lock().child = Pid::from_raw(child.id().cast_signed());
        let status = child.wait()?;
        ward.lock().child = None;
        if !died(status) || ward.was_told() {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        deaths.push_back(Instant::now());
        if deaths.len() > DEATHS && deaths.pop_front().is_some_and(|first| first.elapsed() < WINDOW) {
            let why = format!(
                "the keeper died {} times within {} minutes and is not brought back; keeper.log says why, and `{}` \
                 starts it again",
                DEATHS + 1,
                WINDOW.as_secs() / 60,
                run.command("resume")
            );
            if let Err(error) = caretaker::give_up(run, &why) {
                return Err(io::Error::other(format!("{why}; and that could not be written down: {error}")));
            }
            return Ok(4);
        }
        by_person = false;
        std::thread::sleep(PAUSE);
    }
}

/// The keeper that a parent waits for.
#[derive(Debug, Clone, Default)]
struct Ward(Arc<Mutex<Charge>>);

#[derive(Debug, Default)]
struct Charge {
    child: Option<Pid>,
    /// When a signal was last passed on: a keeper that dies of it is not brought back.
    told: Option<Instant>,
}

impl Ward {
    fn lock(&self) -> MutexGuard<'_, Charge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_told(&self) -> bool {
        self.lock().told.is_some_and(|at| at.elapsed() < TOLD)
    }

    /// Who tells the parent to end means the run.
    fn pass_on_signals(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        drop(entered);
        let ward = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while runtime.block_on(terminate.recv()).is_some() {
                let mut charge = ward.lock();
                charge.told = Some(Instant::now());
                if let Some(child) = charge.child {
                    let _ = kill_process(child, Signal::TERM);
                }
            }
        })?;
        Ok(())
    }
}

/// Killed or panicked, as against ended for a reason.
fn died(status: ExitStatus) -> bool {
    status.signal().is_some() || status.code() == Some(101)
}

fn program(command: &str, run: &RunDir, launch: Option<&Launch>) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("downshift-keeper").arg(command).arg("--run-dir").arg(run.path());
    if let Some(launch) = launch {
        program.args(["--device", &launch.device]);
        let faults: Vec<String> = launch.inject.iter().map(ToString::to_string).collect();
        if !faults.is_empty() {
            program.args(["--inject", &faults.join(",")]);
        }
    }
    program
}
