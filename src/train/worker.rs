//! The worker process.
//!
//! ```text
//!            stdin ── leash thread ── orders ──▶ ┌─────────────┐
//! keeper                                         │ main thread │ ── events ──▶ writer thread ── private stdout
//!            panic of any thread ── hook ──┐     └─────────────┘
//!                                          └──▶ `failed` line, failure.json, _exit with the class's code
//! ```
//! The real stdout is for events alone; fd 1 points at stderr. `worker.lock` is held (flock) as
//! long as the process lives, so that there is never a second one. Whoever stops listening, at
//! either end, ends the worker, and so does SIGTERM: it saves at the next step border, and is gone after 5 s at most.

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

/// Exit code of a worker that was asked to stop.
pub const STOPPED: u8 = 3;

/// Everything a worker is told when it starts.
#[derive(Debug, Clone)]
pub struct WorkerArgs {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The rung, 0 = fastest.
    pub rung: usize,
    /// Its name.
    pub rung_name: String,
    /// Which life of a worker this is.
    pub attempt: u64,
    /// The word after `task:`.
    pub task: String,
    /// The rung's knobs, resolved.
    pub preset: Preset,
    /// So many skipped steps in a row end the worker.
    pub skips_in_a_row: u64,
    /// Where to train.
    pub device: DeviceChoice,
    /// Go on from this checkpoint, rather than the newest that verifies.
    pub from: Option<u64>,
    /// Fail where there is no checkpoint to go on from.
    pub require_checkpoint: bool,
    /// Take what fits from a checkpoint of another model shape (`warm_start`).
    pub migrate: bool,
    /// How often workers of this run have died; `checkpoint.every: auto` follows it.
    pub faults: Faults,
    /// Parts of the data to leave out.
    pub leave_out: LeaveOut,
    /// Faults on purpose.
    pub inject: Vec<Inject>,
    /// Tell what memory each phase takes.
    pub measure: bool,
}

/// Where events go. A slow reader must not slow training down.
pub trait Sink: Send + Sync {
    /// Takes an event.
    fn send(&self, event: Event);

    /// Waits until all events are written, for a while at most.
    fn flush(&self, _limit: Duration) {}
}

/// What the panic hook needs to know about the training thread.
#[derive(Debug, Default)]
pub struct Pulse {
    step: AtomicU64,
    injected: AtomicBool,
}

impl Pulse {
    /// Training has come to this step.
    pub(crate) fn at_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// What fails next was asked for.
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
    /// What the worker was told.
    pub args: WorkerArgs,
    /// The device to use.
    pub device: Chosen,
    /// Where events go.
    pub sink: Arc<dyn Sink>,
    /// Where orders come from.
    pub orders: Receiver<Order>,
    /// Where the training thread says how far it is.
    pub pulse: Arc<Pulse>,
}

/// The training process, from start to exit.
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

/// One life of training in this process: no lock, no hook, no file descriptors. The last event is
/// `done` or `failed`.
///
/// # Errors
/// Why training had to end.
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
