//! One worker process: started in its own process group, read line by line, reaped exactly once. A harness is a
//! worker whose command has processes of its own, which may outlive it: it counts as gone when they are.

use super::Input;
use crate::policy::event::Signal;
use crate::process_tree::{Family, Grace, Process, end_all, kill_all, scan};
use crate::protocol::exit::Exit;
use crate::protocol::line;
use crate::protocol::worker::{Event, Order};
use crate::store::identity::Identity;
use crate::store::umask;
use crate::store::worker_log::BoundedLog;
use crate::trainer::WORKER_VARIABLE;
use crate::untrusted::thread::run_blocking;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Longest line that can be a message.
const MAX_LINE: u64 = 1 << 20;
/// How long to keep reading a dead worker's pipe, which a grandchild may hold open.
const DRAIN: Duration = Duration::from_millis(500);

/// How long what a dead harness left behind has to end: SIGTERM to the command, to the rest, then SIGKILL.
const LEFT_BEHIND: Grace =
    Grace { command: Duration::ZERO, others: Duration::from_secs(2), kill: Duration::from_secs(30) };

/// The end of a worker whose output was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerEnd {
    /// Exit of its process.
    pub exit: Exit,
    /// Length of worker.log when the keeper began to end what the worker had left behind. What those processes print after
    /// it does not count as evidence. None if nothing was left.
    pub log_end: Option<u64>,
}

/// Time after which a killed process counts as unkillable, when the run was lost to another host.
const UNKILLABLE: Duration = Duration::from_secs(2);

/// A worker that is alive, or whose exit has not been processed yet.
#[derive(Debug)]
pub struct Worker {
    /// The worker's process.
    pub identity: Identity,
    orders: mpsc::Sender<Order>,
    /// The token of a harness's command.
    token: Option<String>,
}

/// Returns the worker program.
pub fn worker_program() -> PathBuf {
    std::env::var_os(WORKER_VARIABLE).map_or_else(|| PathBuf::from("/proc/self/exe"), PathBuf::from)
}

/// The program to start for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    arguments: Vec<String>,
    /// The token of a harness's command.
    token: Option<String>,
}

impl Program {
    /// A worker with these arguments.
    pub fn worker(arguments: Vec<String>) -> Self {
        Self { arguments, token: None }
    }

    /// A harness with these arguments, whose command gets this token.
    pub fn harness(mut arguments: Vec<String>, token: String) -> Self {
        arguments.extend(["--token".to_owned(), token.clone()]);
        Self { arguments, token: Some(token) }
    }

    /// Starts the command ahead, and waits for the order to begin.
    #[must_use]
    pub fn standing_by(mut self) -> Self {
        self.arguments.push("--standby".to_owned());
        self
    }

    fn command(&self) -> Command {
        let mut command = match self.token {
            Some(_) => Command::new("/proc/self/exe"),
            None => Command::new(worker_program()),
        };
        command.arg0(if self.token.is_some() { "downshift-harness" } else { "downshift-worker" });
        command.args(&self.arguments).envs(umask::for_child());
        command
    }
}

impl Worker {
    /// Starts a worker. Its output arrives as [`Input`]s of this attempt; the last one is its exit.
    ///
    /// # Errors
    /// Returns an error when the program cannot be started.
    pub(super) fn start(attempt: u64, program: &Program, log: File, inputs: mpsc::Sender<Input>) -> io::Result<Self> {
        let mut command = program.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        let mut child = command.process_group(0).spawn()?;
        let pid = child.id().unwrap_or_default();
        let identity = Identity::of(pid).unwrap_or(Identity { pid, ..Identity::own() });
        let (orders, queue) = mpsc::channel::<Order>(16);
        if let Some(stdin) = child.stdin.take() {
            tokio::spawn(pass_orders(queue, stdin));
        }
        tokio::spawn(read_output(attempt, child, log, program.token.clone(), inputs));
        Ok(Self { identity, orders, token: program.token.clone() })
    }

    /// Takes over the harness of an earlier keeper, which has stored its events up to step `after`.
    ///
    /// # Errors
    /// Returns an error when the harness does not listen.
    pub(super) async fn adopt(
        attempt: u64,
        harness: Harness,
        after: u64,
        log: File,
        inputs: mpsc::Sender<Input>,
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(&harness.socket).await?;
        let process = Process::of(harness.identity.pid).and_then(|process| process.open());
        let process = process.ok_or(io::ErrorKind::NotFound)?;
        let (reader, writer) = stream.into_split();
        let (orders, queue) = mpsc::channel::<Order>(16);
        tokio::spawn(pass_orders(queue, writer));
        let worker = Self { identity: harness.identity, orders, token: Some(harness.token.clone()) };
        worker.order(Order::Adopt { after });
        tokio::spawn(async move {
            let (mut log, mut lines, mut buffer) = (log, Some(BufReader::new(reader)), Vec::new());
            while next_line(&mut lines, &mut buffer).await {
                pass_on(attempt, &buffer, &mut log, &inputs).await;
                buffer.clear();
            }
            // Not this process's child: its exit code is unknown, but it has said how the command ended.
            let _ = run_blocking("end of a harness", move || wait_until_gone(&process)).await;
            let log_end = end_command(harness.token, Some(log)).await;
            let end = WorkerEnd { exit: Exit::of_command(None, None), log_end };
            let _ = inputs.send(Input::Exited(attempt, end)).await;
        });
        Ok(worker)
    }

    /// Sends an order. A worker that does not listen runs into its deadline.
    pub fn order(&self, order: Order) {
        let _ = self.orders.try_send(order);
    }

    /// Returns the token of a harness's command.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Closes the worker's stdin, behind the orders already sent. Returns its process.
    pub fn end_orders(self) -> Identity {
        self.identity
    }

    /// Kills the worker, and all processes of its command, before any of them can save.
    pub fn kill_with_command(&self) {
        self.signal(Signal::Kill);
        if let Some(token) = self.token.clone() {
            // Without its harness, the command's orphans come to the keeper's parent.
            let _ = kill_all(&Family::Attempt { token, root: parent() }, UNKILLABLE);
        }
    }

    /// Sends a signal to the worker's process group.
    pub fn signal(&self, signal: Signal) {
        let _ = self.identity.signal_group(match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        });
    }
}

/// A harness that an earlier keeper left behind.
#[derive(Debug)]
pub struct Harness {
    /// Its process.
    pub identity: Identity,
    /// Where it listens.
    pub socket: PathBuf,
    /// The token of its command.
    pub token: String,
}

fn wait_until_gone(process: &OwnedFd) {
    while poll(&mut [PollFd::new(process, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

/// Ends what a dead harness left behind. Its keeper's parent is handed the orphans.
pub async fn end_left_behind(token: String) {
    let _ = end_command(token, None).await;
}

/// Ends what a dead harness left behind. Returns the length of the log before that, if anything was left.
pub async fn end_command(token: String, log: Option<File>) -> Option<u64> {
    let family = Family::Attempt { token, root: parent() };
    let ending = move || {
        if family.among(&scan()).is_empty() {
            return None;
        }
        let end = log.and_then(|log| BoundedLog::new(log).end());
        let _ = end_all(&family, None, LEFT_BEHIND, None);
        end
    };
    run_blocking("end of a command", ending).await.flatten()
}

fn parent() -> u32 {
    rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs())
}

async fn pass_orders(mut queue: mpsc::Receiver<Order>, mut writer: impl AsyncWrite + Unpin) {
    while let Some(order) = queue.recv().await {
        let Ok(line) = line::encode(&order) else { continue };
        if writer.write_all(line.as_bytes()).await.is_err() {
            break;
        }
    }
}

/// Reads the worker's output until it exits, then reports its exit.
async fn read_output(
    attempt: u64,
    mut child: Child,
    mut log: File,
    token: Option<String>,
    inputs: mpsc::Sender<Input>,
) {
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
                ended = Some((status.map(Exit::from).unwrap_or_default(), Instant::now()));
                // Processes left in its group would hold the GPU indefinitely.
                if let Some(group) = group {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
            }
            () = sleep_until(drained), if ended.is_some() => lines = None,
        }
        if let (Some((exit, _)), None) = (ended, &lines) {
            let log_end = match token {
                Some(token) => end_command(token, Some(log)).await,
                None => None,
            };
            let _ = inputs.send(Input::Exited(attempt, WorkerEnd { exit, log_end })).await;
            return;
        }
    }
}

/// Appends to `buffer` up to the end of a line. Returns false at the end of the stream.
async fn next_line(lines: &mut Option<BufReader<impl AsyncRead + Unpin>>, buffer: &mut Vec<u8>) -> bool {
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
