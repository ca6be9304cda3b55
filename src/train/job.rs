//! The input of one attempt to train: its arguments, its device, and its channels to the process around it.

use super::device::ChosenDevice;
use crate::config::knobs::Preset;
use crate::protocol::{
    device::DeviceChoice,
    inject::Inject,
    worker::{Event, Order},
};
use crate::recipe::{interval::Faults, leave_out::LeaveOut};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

/// The arguments of a worker.
#[derive(Debug, Clone)]
pub struct WorkerArgs {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The rung, 0 = fastest.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: String,
    /// The number of this attempt.
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
pub trait EventSink: Send + Sync {
    /// Sends an event.
    fn send(&self, event: Event);

    /// Waits until all events are written, at most for `limit`.
    fn flush(&self, _limit: Duration) {}
}

/// The state of the training thread that the panic hook needs.
#[derive(Debug, Default)]
pub struct StepPulse {
    step: AtomicU64,
    injected: AtomicBool,
}

impl StepPulse {
    /// Records that training reached this step.
    pub(crate) fn at_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Records that the next failure is injected.
    pub(crate) fn expect_injected(&self) {
        self.injected.store(true, Ordering::Relaxed);
    }

    /// Returns the step that training has reached, if any.
    pub(crate) fn step(&self) -> Option<u64> {
        Some(self.step.load(Ordering::Relaxed)).filter(|step| *step > 0)
    }

    /// Reports whether the next failure is injected.
    pub(crate) fn injected(&self) -> bool {
        self.injected.load(Ordering::Relaxed)
    }
}

/// One attempt to train, ready to start.
pub struct TrainingJob {
    /// The worker's arguments.
    pub args: WorkerArgs,
    /// The device to use.
    pub device: ChosenDevice,
    /// The receiver of events.
    pub sink: Arc<dyn EventSink>,
    /// The source of orders.
    pub orders: Receiver<Order>,
    /// The training thread's progress, for the panic hook.
    pub pulse: Arc<StepPulse>,
}
