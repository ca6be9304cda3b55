//! The worker process.
//!
//! ```text
//!            stdin ── leash thread ── orders ──▶ ┌─────────────┐
//! keeper                                         │ main thread │ ── events ──▶ writer thread ── private stdout
//!            panic of any thread ── hook ──┐     └─────────────┘
//!                                          └──▶ `failed` line, failure.json, _exit with the class's code
//! ```
//! The real stdout carries only events; fd 1 points at stderr. `worker.lock` is held (flock) for the lifetime
//! of the process, so there is never a second worker. The worker ends when either end stops listening, or on
//! SIGTERM: it saves at the next step boundary and exits within 5 s.

mod contract;
pub mod failure;
mod hook;
mod leash;
mod lock;

use super::device::{self, Chosen};
use super::exit;
use super::registry::Registry;
use crate::config::knobs::Preset;
use crate::protocol::{
    device::DeviceChoice,
    inject::Inject,
    worker::{DoneReason, Event, Failed, Order},
};
use crate::recipe::{interval::Faults, leave_out::LeaveOut};
use crate::store::checkpoint;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

pub use failure::{FAILURE_FILE, FailureRecord};
pub use lock::LOCK_FILE;

/// Exit code of a worker that stopped on request.
pub const STOPPED: u8 = 3;

/// The arguments of a worker.
#[derive(Debug, Clone)]
pub struct WorkerArgs {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The rung, 0 = fastest.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: String,
    /// The number of this worker life.
    pub attempt: u64,
    /// The name after `task:`.
    pub task: String,
    /// The rung's knobs, resolved.
    pub preset: Preset,
    /// Skipped steps in a row that end the worker.
    pub skips_in_a_row: u64,
    /// The device to train on.
    pub device: DeviceChoice,
    /// The checkpoint to resume from, instead of the newest that verifies.
    pub from: Option<u64>,
    /// Whether to fail when there is no checkpoint to resume from.
    pub require_checkpoint: bool,
    /// Whether to take the matching parameters from a checkpoint of another model shape (`warm_start`).
    pub migrate: bool,
    /// Worker deaths of this run so far; `checkpoint.every: auto` depends on them.
    pub faults: Faults,
    /// Parts of the data to leave out.
    pub leave_out: LeaveOut,
    /// Faults to inject.
    pub inject: Vec<Inject>,
    /// Whether to report the memory of each phase.
    pub measure: bool,
}

/// The receiver of events. A slow reader must not slow training down.
pub trait Sink: Send + Sync {
    /// Sends an event.
    fn send(&self, event: Event);

    /// Waits until all events are written, at most for `limit`.
    fn flush(&self, _limit: Duration) {}
}

/// The state of the training thread that the panic hook needs.
#[derive(Debug, Default)]
pub struct Pulse {
    step: AtomicU64,
    injected: AtomicBool,
}

impl Pulse {
    /// Records that training reached this step.
    pub(crate) fn at_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Records that the next failure is injected.
    pub(crate) fn expect_injected(&self) {
        self.injected.store(true, Ordering::Relaxed);
    }

    fn step(&self) -> Option<u64> {
        Some(self.step.load(Ordering::Relaxed)).filter(|step| *step > 0)
    }

    fn injected(&self) -> bool {
        self.injected.load(Ordering::Relaxed)
    }
}

/// One life of training, ready to begin.
pub struct Job {
    /// The worker's arguments.
    pub args: WorkerArgs,
    /// The device to use.
    pub device: Chosen,
    /// The receiver of events.
    pub sink: Arc<dyn Sink>,
    /// The source of orders.
    pub orders: Receiver<Order>,
    /// The training thread's progress, for the panic hook.
    pub pulse: Arc<Pulse>,
}

/// Runs the training process from start to exit.
pub fn main(args: &WorkerArgs, registry: &Registry) -> ! {
    let pulse = Arc::new(Pulse::default());
    let contract = match contract::claim_stdout() {
        Ok(contract) => contract,
        Err(error) => {
            hook::say(&format!("the worker cannot claim its stdout: {error}\n"));
            exit::now(crate::protocol::worker::FailureClass::Panic.exit_code());
        }
    };
    hook::install(&contract, args, Arc::clone(&pulse));
    let (give, orders) = channel();
    let leash = leash::Leash::new(give, !args.measure);
    let writer = match contract::Writer::start(&contract, leash.clone()) {
        Ok(writer) => writer,
        Err(error) => end(args, &failure::no_thread(error)),
    };
    let sink: Arc<dyn Sink> = Arc::new(writer);
    let alone = lock::take(&args.run_dir).and_then(|lock| {
        leash.watch_signals().and_then(|()| leash.watch_stdin(Arc::clone(&sink))).map_err(failure::no_thread)?;
        Ok(lock)
    });
    let outcome = match &alone {
        Ok(_lock) => {
            failure::forget(&args.run_dir);
            checkpoint::clean(&args.run_dir);
            run_in_process(args, registry, &sink, orders, pulse)
        }
        Err(failed) => {
            sink.send(Event::Failed(failed.clone()));
            Err(failed.clone())
        }
    };
    sink.flush(Duration::from_secs(5));
    match outcome {
        Ok(DoneReason::Finished) => exit::now(0),
        Ok(DoneReason::Stopped) => exit::now(STOPPED),
        Err(failed) => end(args, &failed),
    }
}

fn end(args: &WorkerArgs, failed: &Failed) -> ! {
    failure::record(args, failed);
    hook::say(&format!("{}: {}\n", failed.class, failed.message));
    exit::now(failed.class.exit_code())
}

/// Runs one life of training in this process, without lock, hook or file descriptors. The last event is
/// `done` or `failed`.
///
/// # Errors
/// Returns the reason when training had to end.
pub fn run_in_process(
    args: &WorkerArgs,
    registry: &Registry,
    sink: &Arc<dyn Sink>,
    orders: Receiver<Order>,
    pulse: Arc<Pulse>,
) -> Result<DoneReason, Failed> {
    let outcome = prepare(args, registry, Arc::clone(sink), orders, pulse);
    if let Err(failed) = &outcome {
        sink.send(Event::Failed(failed.clone()));
    }
    outcome
}

fn prepare(
    args: &WorkerArgs,
    registry: &Registry,
    sink: Arc<dyn Sink>,
    orders: Receiver<Order>,
    pulse: Arc<Pulse>,
) -> Result<DoneReason, Failed> {
    let task = registry.get(&args.task).ok_or_else(|| {
        failure::config(format!("no task is named `{}`; there are {}", args.task, registry.names().join(", ")))
    })?;
    if let Some(problem) = task.resolve(&args.preset.data, &args.preset.model, &args.run_dir).1.first() {
        return Err(failure::config(problem.to_string()));
    }
    let device = device::choose(args.device, args.preset.training.precision).map_err(failure::config)?;
    device::prepare(&device, args);
    task.train(Job { args: args.clone(), device, sink, orders, pulse })
}
