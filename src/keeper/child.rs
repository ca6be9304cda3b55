//! One worker process: started in its own process group, read line by line, reaped exactly once.

use super::Input;
use crate::policy::event::{Exit, Signal};
use crate::protocol::line;
use crate::protocol::worker::{Event, Order};
use crate::store::lock::Identity;
use crate::trainer::WORKER_VARIABLE;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Longest line that can be a message.
const MAX_LINE: u64 = 1 << 20;
/// How long to keep reading a dead worker's pipe, which a grandchild may hold open.
const DRAIN: Duration = Duration::from_millis(500);

/// A worker that is alive, or whose exit has not been processed yet.
#[derive(Debug)]
pub struct Worker {
    /// The worker's process.
    pub identity: Identity,
    orders: mpsc::Sender<Order>,
}

/// Returns the worker program.
pub fn worker_program() -> PathBuf {
    std::env::var_os(WORKER_VARIABLE).map_or_else(|| PathBuf::from("/proc/self/exe"), PathBuf::from)
}

impl Worker {
    /// Starts a worker. Its output arrives as [`Input`]s of this attempt; the last one is its exit.
    ///
    /// # Errors
    /// Returns an error when the program cannot be started.
    pub(super) fn start(
        attempt: u64,
        arguments: &[String],
        log: File,
        inputs: mpsc::Sender<Input>,
    ) -> io::Result<Self> {
        let mut command = Command::new(worker_program());
        command
            .arg0("downshift-worker")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?);
        let mut child = command.process_group(0).spawn()?;
        let pid = child.id().unwrap_or_default();
        let identity = Identity::of(pid).unwrap_or(Identity { pid, ..Identity::own() });
        let (orders, mut queue) = mpsc::channel::<Order>(16);
        if let Some(mut stdin) = child.stdin.take() {
            tokio::spawn(async move {
                while let Some(order) = queue.recv().await {
                    let Ok(line) = line::encode(&order) else { continue };
                    if stdin.write_all(line.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
        tokio::spawn(hear(attempt, child, log, inputs));
        Ok(Self { identity, orders })
    }

    /// Sends an order. A worker that does not listen runs into its deadline.
    pub fn order(&self, order: Order) {
        let _ = self.orders.try_send(order);
    }

    /// Sends a signal to the worker's process group.
    pub fn signal(&self, signal: Signal) {
        let _ = self.identity.signal_group(match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        });
    }
}

/// Reads the worker's output until it exits, then reports its exit.
async fn hear(attempt: u64, mut child: Child, mut log: File, inputs: mpsc::Sender<Input>) {
    let mut lines = child.stdout.take().map(BufReader::new);
    let group = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    let mut buffer = Vec::new();
    let mut ended: Option<(Exit, Instant)> = None;
    loop {
        let drained = ended.map_or_else(|| Instant::now() + Duration::from_hours(1), |(_, at)| at + DRAIN);
        tokio::select! {
            biased;
            heard = next_line(&mut lines, &mut buffer), if lines.is_some() => {
                if heard {
                    pass_on(attempt, &buffer, &mut log, &inputs).await;
                    buffer.clear();
                } else {
                    lines = None;
                }
            }
            status = child.wait(), if ended.is_none() => {
                let exit = status.map_or(Exit { code: None, signal: None }, |status| {
                    Exit { code: status.code(), signal: status.signal() }
                });
                ended = Some((exit, Instant::now()));
                // Processes left in its group would hold the GPU indefinitely.
                if let Some(group) = group {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
            }
            () = sleep_until(drained), if ended.is_some() => lines = None,
        }
        if let (Some((exit, _)), None) = (ended, &lines) {
            let _ = inputs.send(Input::Exited(attempt, exit)).await;
            return;
        }
    }
}

/// Appends to `buffer` up to the end of a line. Returns false at the end of the stream.
async fn next_line(lines: &mut Option<BufReader<ChildStdout>>, buffer: &mut Vec<u8>) -> bool {
    let Some(reader) = lines else { return false };
    let room = MAX_LINE.saturating_sub(buffer.len() as u64).max(1);
    matches!(reader.take(room).read_until(b'\n', buffer).await, Ok(count) if count > 0)
}

/// Passes an event to the keeper, and writes any other line to the worker's log.
async fn pass_on(attempt: u64, bytes: &[u8], log: &mut File, inputs: &mpsc::Sender<Input>) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(event) = line::decode::<Event>(&text) {
        let _ = inputs.send(Input::Worker(attempt, event)).await;
    } else if !text.trim().is_empty() {
        let _ = log.write_all(bytes);
    }
}
