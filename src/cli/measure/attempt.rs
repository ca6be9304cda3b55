//! One attempt of a command that is measured: its harness, its events, its processes.

use super::folder::LEFT_BEHIND;
use super::host_memory::offer_to_oom_killer;
use super::isolated_worker::read_events;
use crate::process_tree::{Family, TOKEN_VARIABLE, end_all, kill_all, new_token, scan};
use crate::protocol::line;
use crate::protocol::worker::{Event, Order};
use crate::store::run_dir::RunDir;
use crate::store::umask;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time for a harness to end everything; its own limit for processes that cannot be killed is 30 s.
const LONGEST_END: Duration = Duration::from_secs(40);

/// Time for killed processes to be gone; one that waits for a device may take longer.
const KILLED: Duration = Duration::from_secs(10);

/// A running attempt. Dropping it ends everything it started.
pub struct Attempt {
    harness: Child,
    orders: Option<ChildStdin>,
    events: Receiver<Event>,
    family: Family,
}

/// How an attempt is started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The rung.
    pub rung: usize,
    /// The number of the attempt in its run directory, from 1.
    pub number: u64,
    /// The device, as given on the command line.
    pub device: &'a str,
    /// It is a trial: its checkpoints are adopted, and it resumes from the newest.
    pub is_trial: bool,
}

/// The next thing that happens to an attempt.
pub enum Heard {
    /// An event of the harness.
    Event(Event),
    /// Nothing for now.
    Silence,
    /// The harness has ended.
    End,
}

impl Attempt {
    /// Starts the command of a rung, whose run is in this directory.
    pub fn start(dir: &RunDir, start: &Start<'_>) -> io::Result<Self> {
        let token = new_token();
        let Start { rung, number, device, is_trial } = start;
        let purpose = if *is_trial { "--trial" } else { "--measure" };
        let log = dir.append("worker.log")?;
        let mut harness = Command::new("/proc/self/exe")
            .arg0("downshift-harness")
            .args(["harness", purpose, "--attempt", &number.to_string(), "--rung", &rung.to_string()])
            .args(["--token", &token, "--device", device, "--run-dir"])
            .arg(dir.path())
            // With a token of its own, it also finds orphans that have none.
            .env(TOKEN_VARIABLE, new_token())
            .envs(umask::for_child())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // A signal from the terminal reaches this process alone, which then ends the harness.
            .process_group(0)
            .spawn()?;
        offer_to_oom_killer(harness.id());
        let events = harness.stdout.take().map_or_else(|| mpsc::channel().1, read_events);
        let family = Family::Attempt { token, root: harness.id() };
        Ok(Self { orders: harness.stdin.take(), harness, events, family })
    }

    /// Waits for the next event.
    pub fn hear(&self, limit: Duration) -> Heard {
        match self.events.recv_timeout(limit) {
            Ok(event) => Heard::Event(event),
            Err(RecvTimeoutError::Timeout) => Heard::Silence,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// Returns the living processes of the command.
    pub fn processes(&self) -> Vec<u32> {
        let all = scan();
        self.family.among(&all).iter().map(|process| process.pid).collect()
    }

    /// Sends an order. The harness of a command that has just ended reads none.
    pub fn send(&mut self, order: &Order) {
        if let (Some(orders), Ok(order)) = (&mut self.orders, line::encode(order)) {
            let _ = orders.write_all(order.as_bytes());
        }
    }

    /// Kills every process of the command at once.
    pub fn kill_command(&self) {
        let _ = kill_all(&self.family, KILLED);
    }

    /// Ends the command and everything it started.
    pub fn end(&mut self) {
        self.send(&Order::Stop { checkpoint: false });
        let deadline = Instant::now() + LONGEST_END;
        while !matches!(self.hear(deadline.saturating_duration_since(Instant::now())), Heard::End)
            && Instant::now() < deadline
        {}
        self.orders = None;
        if Instant::now() >= deadline {
            let _ = self.harness.kill();
        }
        let _ = self.harness.wait();
        // A harness that was killed leaves its command.
        if let Family::Attempt { token, .. } = &self.family {
            let _ = end_all(&Family::Attempt { token: token.clone(), root: 0 }, None, LEFT_BEHIND, None);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.orders.is_some() {
            self.end();
        }
    }
}
