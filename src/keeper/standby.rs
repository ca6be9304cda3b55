//! The standby of a command: the harness of the next attempt, started ahead so that imports take no time after the shift.
//! It exists while a preview is open, and from the order to stop until the next start.

use super::Input;
use super::keeper_state::Keeper;
use super::worker_process::Worker;
use crate::config::command::names_checkpoint;
use crate::policy::lifecycle::{Lifecycle, Then};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{NOT_BEGUN, Order};
use crate::triage::cgroup;
use crate::untrusted::file::{self, Limit};
use rustix::process::Signal;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Memory of the machine that must stay available for a second process with its imports.
const FREE_MEMORY: u64 = 4 << 30;
/// Messages that wait for the keeper; a standby has none before it begins.
const QUEUE: usize = 64;

/// How long a standby that is not needed has to end by itself: its processes get half a second each, then SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// A harness that waits for the next attempt to begin.
#[derive(Debug)]
pub(super) struct Standby {
    start: PlannedStart,
    worker: Worker,
    /// Its messages, which count once the attempt begins.
    messages: mpsc::Receiver<Input>,
}

/// All that the arguments and the run file of a harness depend on. A standby fits one start only.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedStart {
    attempt: u64,
    rung: usize,
    restarts: u64,
    fired: usize,
    run_file: Option<blake3::Hash>,
}

impl Standby {
    /// Reports whether it still waits: its only message before it begins can be its end.
    fn waits(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns its process.
    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Lets it end by itself, so that it leaves nothing behind: it reads the end of its orders. Kills it if it does not.
    fn end(self) {
        let Self { worker, mut messages, .. } = self;
        let process = worker.end_orders();
        tokio::spawn(async move {
            if timeout(GRACE, messages.recv()).await.is_err() {
                let _ = process.signal_group(Signal::KILL);
            }
        });
    }
}

impl Keeper {
    /// Follows a preview in a cockpit: the start that it shows is likely.
    pub(super) fn follow_preview(&mut self, rung: Option<&str>) {
        if !matches!(self.policy.life(), Lifecycle::Running(_)) {
            return;
        }
        match rung.and_then(|name| self.run.rungs.iter().position(|rung| rung.name == name)) {
            Some(rung) => self.stand_by(rung),
            None => self.drop_standby(),
        }
    }

    /// Prepares the start that follows the stop under way.
    pub(super) fn stand_by_for_next_start(&mut self) {
        if let Lifecycle::Stopping { then: Then::Start(start), .. } = self.policy.life() {
            self.stand_by(start.rung);
        }
    }

    fn stand_by(&mut self, rung: usize) {
        let start = self.plan_start(self.recorder.attempt.id + 1, rung);
        let is_waiting = |standby: &Standby| standby.start == start && standby.waits();
        if !self.may_stand_by(rung) || self.worker.standby.as_ref().is_some_and(is_waiting) {
            return;
        }
        self.drop_standby();
        let program = self.worker_program(start.attempt, rung).standing_by();
        let (sender, messages) = mpsc::channel(QUEUE);
        let started =
            self.run_dir.append("worker.log").and_then(|log| Worker::start(start.attempt, &program, log, sender));
        // Without one, the next start takes longer, and nothing else.
        self.worker.standby = started.ok().map(|worker| Standby { start, worker, messages });
    }

    /// Reports whether the command of a rung can wait at its gate without any effect.
    fn may_stand_by(&self, rung: usize) -> bool {
        let Some(spec) = &self.run.command else { return false };
        if !self.run_dir.run().is_ok_and(|run| self.is_approved(&run)) {
            return false;
        }
        let Some(rung) = self.run.rungs.get(rung) else { return false };
        let imports_ahead = self.recorder.status.companion.as_ref().is_some_and(|companion| companion.imports_ahead);
        spec.standby && imports_ahead && !names_checkpoint(spec, &rung.preset) && available_memory() >= FREE_MEMORY
    }

    fn plan_start(&self, attempt: u64, rung: usize) -> PlannedStart {
        PlannedStart {
            attempt,
            rung,
            restarts: self.recorder.status.restarts,
            fired: self.stored.fired.len(),
            run_file: file::read(&self.run_dir.file("run.yaml"), Limit::Handwritten)
                .ok()
                .map(|text| blake3::hash(&text)),
        }
    }

    /// Lets the standby begin an attempt, if it was started for it.
    pub(super) fn take_standby(&mut self, attempt: u64, rung: usize) -> Option<Worker> {
        let start = self.plan_start(attempt, rung);
        let standby = self.worker.standby.take()?;
        if standby.start != start || !standby.waits() {
            standby.end();
            return None;
        }
        let Standby { worker, mut messages, .. } = standby;
        worker.order(Order::Begin);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                if inputs.send(message).await.is_err() {
                    return;
                }
            }
        });
        Some(worker)
    }

    /// Starts the command of the current attempt if its standby ended before the order to begin reached it. Reports whether
    /// that is so.
    pub(super) fn replace_ended_standby(&mut self, exit: Exit) -> bool {
        let ended_before = self.run.command.is_some() && exit.code == Some(i32::from(NOT_BEGUN));
        if !ended_before || !matches!(self.policy.life(), Lifecycle::Running(_)) {
            return false;
        }
        self.worker.process = None;
        let (attempt, rung) = (self.recorder.attempt.id, self.recorder.attempt.rung);
        let started = self.start_process(attempt, rung);
        self.follow_start(started);
        true
    }

    /// Ends a standby that no start will need soon.
    pub(super) fn drop_standby_at_rest(&mut self) {
        if matches!(self.policy.life(), Lifecycle::Paused | Lifecycle::Cooling { .. } | Lifecycle::Over(_)) {
            self.drop_standby();
        }
    }

    fn drop_standby(&mut self) {
        if let Some(standby) = self.worker.standby.take() {
            standby.end();
        }
    }
}

/// Returns the bytes of memory that the machine, and a scheduler or container around this process, can give away.
fn available_memory() -> u64 {
    let text = file::read_text("/proc/meminfo".as_ref(), Limit::Record).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let machine =
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024);
    cgroup::free_memory().map_or(machine, |group| group.min(machine))
}
