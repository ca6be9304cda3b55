//! A standby: the command of the next attempt, started ahead, while the present one still trains or saves. Its companion
//! imports the packages that the last attempt used, and then waits at a gate, a named pipe. The script has not run a line by
//! then, so a standby that is not needed is ended without a trace.
//!
//! ```text
//! keeper  ── Begin ──▶ harness   takes the lock, chooses the checkpoint, writes companion.json
//!                        └── opens and closes the gate ──▶ python   reads companion.json, runs the script
//! ```

mod gate;

use self::gate::Gate;
use super::attempt_dir::claim_attempt_dir;
use super::prepare::{Running, context_of, launch_of, start_command};
use super::{HarnessArgs, HarnessError, setup};
use crate::config::command::CommandLaunch;
use crate::process_tree::{Grace, Process, end_all};
use crate::protocol::line;
use crate::protocol::worker::Order;
use crate::store::lock::open_log;
use crate::untrusted::thread::run_beside;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

/// Name of the gate in the attempt's folder.
const GATE: &str = "gate";
/// Name of the file that one standby of an attempt holds locked.
const LOCK: &str = "standby.lock";
/// Longest wait for the order to begin. A process with its imports holds up to a gigabyte.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// Longest line of a keeper.
const LONGEST_LINE: usize = 1 << 10;
/// How long a standby that is not needed has to end. It handles no signal, so SIGTERM ends it at once.
const GRACE: Grace =
    Grace { command: Duration::from_millis(500), others: Duration::from_millis(500), kill: Duration::from_secs(5) };

/// A command that waits at its gate, or is on the way there.
pub struct Standby {
    running: Running,
    launch: CommandLaunch,
    gate: Gate,
    /// Keeps the next standby of this attempt from writing the same files.
    _lock: File,
}

impl Standby {
    /// Starts the command of an attempt that has not begun. Returns none if the keeper no longer wants it: on a busy machine,
    /// another standby of the same attempt may be here first.
    ///
    /// # Errors
    /// Returns an error when it cannot be started.
    pub fn start(args: &HarnessArgs) -> Result<Option<Self>, HarnessError> {
        let context = context_of(args, None);
        claim_attempt_dir(args, &context)?;
        let lock = open_log(&context.attempt_dir.join(LOCK)).map_err(HarnessError::of("the lock"))?;
        // Some network file systems have no locks.
        let _ = lock.lock();
        if is_unwanted() {
            return Ok(None);
        }
        let gate = Gate::create(context.attempt_dir.join(GATE)).map_err(HarnessError::of("the gate"))?;
        let variables =
            setup::prepare_standby(args, &context, gate.path()).map_err(HarnessError::of("the companion"))?;
        let launch = launch_of(args, &context, Some(&variables));
        Ok(Some(Self { running: start_command(args, &launch)?, launch, gate, _lock: lock }))
    }

    /// Waits for the order to begin. Returns false if the keeper is gone, wants something else, or takes too long.
    pub async fn wait(&mut self) -> bool {
        matches!(timeout(LONGEST_WAIT, read_order()).await, Ok(Ok(Some(Order::Begin))))
    }

    /// Opens the gate, if the command was started as the attempt needs it now; else ends the command.
    pub fn begin(self, launch: &CommandLaunch) -> Option<Running> {
        if self.launch != *launch || !self.is_alive() {
            self.end();
            return None;
        }
        // It may still be importing.
        let gate = self.gate;
        run_beside("gate", move || gate.open());
        Some(self.running)
    }

    fn is_alive(&self) -> bool {
        let own = &self.running.process;
        Process::of(own.pid).is_some_and(|process| process.started == own.started)
    }

    /// Ends the command.
    pub fn end(self) {
        let _ = end_all(&self.running.family, Some(&self.running.process), GRACE, None);
    }
}

/// Reports whether the keeper has closed stdin, or is gone.
fn is_unwanted() -> bool {
    let mut stdin = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty())];
    let _ = poll(&mut stdin, Some(&Timespec::default()));
    stdin[0].revents().contains(PollFlags::HUP)
}

/// Reads one order from stdin, and nothing after it. Returns none at the end of stdin.
async fn read_order() -> io::Result<Option<Order>> {
    let mut stdin = pipe::Receiver::from_owned_fd(rustix::io::dup(rustix::stdio::stdin())?)?;
    let mut text = Vec::new();
    while text.len() < LONGEST_LINE {
        match stdin.read_u8().await {
            Ok(b'\n') => return Ok(line::decode(&String::from_utf8_lossy(&text))),
            Ok(byte) => text.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
