//! A run in a batch job ends with the job, whatever the scheduler kills.
//!
//! ```text
//!  run --job ── holds the writing end of a pipe
//!   └── keeper's parent ── stdin: the reading end
//!        └── keeper ── the same stdin
//! ```
//! Nothing is ever written. When the process that holds the writing end is gone, killed or not, both read the end of the
//! file and end the run. A scheduler may find processes by their group or by their parents and miss these two.

use super::detach::{Asked, Surroundings, keeper_command};
use super::run_loop::Launch;
use crate::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// The argument of a parent and a keeper that end with the job.
const BOUND: &str = "--bound";
/// Time for the worker to save after the job's process is gone. A second request to stop, at least a second after the
/// first, does not wait for the checkpoint: the scheduler may already give the machine to others.
const LAST_SAVE: Duration = Duration::from_secs(2);

/// The process that a run lives for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// None: the run survives the process that started it.
    Detached,
    /// The process at the other end of stdin.
    Bound,
}

impl Lifetime {
    /// Returns the argument that passes this on to the keeper.
    pub(super) fn argument(self) -> Option<&'static str> {
        (self == Self::Bound).then_some(BOUND)
    }

    /// Calls `end` when the process that the run lives for is gone, and again after the time for a last save.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn watch(self, mut end: impl FnMut() + Send + 'static) -> io::Result<()> {
        if self == Self::Detached {
            return Ok(());
        }
        let watch = move || {
            wait_for_end_of(io::stdin().lock());
            end();
            std::thread::sleep(LAST_SAVE);
            end();
        };
        std::thread::Builder::new().name("lifeline".to_owned()).spawn(watch).map(drop)
    }
}

/// Reads until the end of the file. An error means that nobody will ever write.
fn wait_for_end_of(mut lifeline: impl Read) {
    let mut nothing = [0; 64];
    loop {
        match lifeline.read(&mut nothing) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

/// The keeper's parent as a child of this process. The run ends when this process does.
#[derive(Debug)]
pub struct BoundKeeper {
    /// Holds the writing end as its stdin.
    parent: Child,
}

impl BoundKeeper {
    /// Starts the parent of a keeper. It gets a process group of its own, so that a signal to the group of the job's script
    /// reaches the run once, through this process.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start(run: &RunDir, launch: &Launch, surroundings: &Surroundings) -> io::Result<Self> {
        let log = run.append("keeper.log")?;
        let mut command = keeper_command("keeper", run, Some(launch));
        surroundings.apply(&mut command);
        command.args(["--parent", BOUND]).args(Asked::own(&surroundings.news).arguments());
        command.process_group(0).stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { parent: command.spawn()? })
    }

    /// Returns the id of the parent.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.parent.id()
    }

    /// Passes a signal on to the run. Returns false if the parent is gone.
    pub fn signal(&mut self, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.parent.id().cast_signed());
        let alive = matches!(self.parent.try_wait(), Ok(None));
        alive && pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Waits until the parent has ended.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn wait(mut self) -> io::Result<()> {
        // `Child::wait` would close the pipe first, and end a run that is still being recovered.
        let lifeline = self.parent.stdin.take();
        self.parent.wait()?;
        drop(lifeline);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::wait_for_end_of;
    use std::io::Write;
    use std::sync::mpsc;

    #[test]
    fn a_lifeline_ends_with_its_last_writer_and_not_with_what_is_written() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (sender, ended) = mpsc::channel();
        let watch = std::thread::spawn(move || {
            wait_for_end_of(reader);
            sender.send(()).unwrap();
        });
        writer.write_all(b"x").unwrap();
        assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(writer);
        ended.recv().unwrap();
        watch.join().unwrap();
    }
}
