//! The input of one attempt to train: its arguments, its device, and its channels to the process around it.

use super::device::ChosenDevice;
use super::kernel_start::KernelStart;
use downshift_core::protocol::worker::{Event, Order};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

pub use downshift_core::trainer::WorkerArgs;

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
    /// Its kernels, if it compiles any.
    pub kernels: Option<KernelStart>,
    /// The receiver of events.
    pub sink: Arc<dyn EventSink>,
    /// The source of orders.
    pub orders: Receiver<Order>,
    /// The training thread's progress, for the panic hook.
    pub pulse: Arc<StepPulse>,
}
