//! The worker contract.

use crate::recipe::batch::Position;
use serde::{Deserialize, Serialize};

pub use super::class::FailureClass;

/// The version of the contract; a keeper refuses a worker that speaks another.
pub const PROTOCOL: u32 = 1;

/// keeper → worker, on the worker's stdin. A closed stdin means [`Order::Stop`] with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Save at the next step border and go on.
    Checkpoint,
    /// End at the next step border.
    Stop {
        /// Save first. A worker that cannot save trains on, and says so.
        checkpoint: bool,
    },
}

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loading data, weights and the device.
    Starting,
    /// Compiling and tuning kernels: the first step of a process on a GPU.
    Compiling,
    /// Taking optimizer steps.
    Training,
    /// Measuring on the validation set.
    Evaluating,
    /// Copying state to the host, with training at rest.
    Checkpointing,
}

/// worker → keeper, on the worker's private copy of stdout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line of every worker.
    Hello(Hello),
    /// The worker has turned to something else.
    Phase {
        /// What it does now.
        phase: Phase,
    },
    /// An optimizer step was taken and its loss read back.
    Step(Step),
    /// A step whose loss or gradient was not finite: dropped whole, weights and moments untouched.
    Skipped(Skipped),
    /// A pass over the validation set.
    Eval(Eval),
    /// A checkpoint is durable.
    Saved(Saved),
    /// A checkpoint could not be written; training goes on.
    SaveFailed {
        /// The step it was for.
        step: u64,
        /// What went wrong.
        message: String,
    },
    /// It was told to save and end, and could not save: it trains on.
    StopRefused {
        /// The step that was to be saved.
        step: u64,
        /// What went wrong.
        message: String,
    },
    /// Something a person may want to know.
    Note {
        /// How much it matters.
        level: Level,
        /// A sentence.
        text: String,
    },
    /// A fault asked for with `--inject` is about to happen; said first, so that it happens once.
    Injected {
        /// The fault as it was asked for: `oom@150`.
        fault: String,
        /// The step it strikes.
        step: u64,
    },
    /// What the worker takes of host memory; only where it was told to measure.
    Memory(Memory),
    /// The worker ends because of this; the last line, if there is time for one.
    Failed(Failed),
    /// The worker ends as it should.
    Done {
        /// Why it ended.
        reason: DoneReason,
        /// The last step taken.
        step: u64,
    },
}

/// Who the worker is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the worker's build.
    pub protocol: u32,
    /// Its version, so that a rebuild during a run is seen.
    pub build: String,
    /// Its process id.
    pub pid: u32,
    /// The device, for people: `cpu`, `cuda:0 NVIDIA GeForce RTX 4090`.
    pub device: String,
    /// The backend, for people: `flex f32`, `cuda bf16, fused`.
    pub backend: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// The step of the checkpoint it went on from; none for a fresh start.
    pub resumed_from: Option<u64>,
    /// Where the clock of the run stands.
    pub position: Position,
    /// Units (samples, tokens) in an epoch.
    pub epoch_units: u64,
    /// Units in the whole run.
    pub total_units: u64,
    /// Optimizer steps in the whole run, if every step is taken on this rung.
    pub total_steps: u64,
    /// What a unit is called: `samples` or `tokens`.
    pub unit: String,
}

/// Resident memory at the end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The phase that is over; [`Phase::Starting`] comes first when the data are loaded, and again
    /// once there is a model.
    pub phase: Phase,
    /// Resident now.
    pub resident_bytes: u64,
    /// Most resident since the last of these events.
    pub peak_bytes: u64,
}

/// One optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Optimizer steps attempted so far, this one included.
    pub step: u64,
    /// The clock after the step.
    pub samples: u64,
    /// The epoch the step's samples belong to.
    pub epoch: u64,
    /// Mean training loss over the step's samples.
    pub loss: f64,
    /// The learning rate the step used.
    pub lr: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Forward and backward passes taken.
    pub micro_batches: u32,
    /// Time spent waiting for data.
    pub data_wait_ms: f64,
    /// Time from the first forward pass to the loss in hand.
    pub compute_ms: f64,
}

/// A step that the guard dropped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its number.
    pub step: u64,
    /// The clock after it: skipped samples count as consumed.
    pub samples: u64,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate it would have used.
    pub lr: f64,
    /// What was not finite: `loss` or `gradient`.
    pub what: String,
    /// Where: the micro-batch or the parameter, for people.
    #[serde(rename = "where")]
    pub place: String,
    /// Dropped for the loss scale of f16 alone, which is lower from here on: no sign of trouble.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rescaled: bool,
}

/// A pass over the validation set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    /// The step after which it was measured.
    pub step: u64,
    /// The clock then.
    pub samples: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers, 0 to 1, where the task has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// `exp(loss)`, where the task has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

/// A durable checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Its directory, relative to the run directory.
    pub path: String,
    /// The step it holds.
    pub step: u64,
    /// The clock it holds.
    pub samples: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// How long training stood still for it.
    pub pause_ms: f64,
    /// How long until it was durable.
    pub total_ms: f64,
    /// The validation loss of exactly these weights, where they were measured.
    pub eval_loss: Option<f64>,
}

/// Why a worker had to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// What kind of failure.
    pub class: FailureClass,
    /// The words of whoever failed.
    pub message: String,
    /// The step under way, if training had begun.
    pub step: Option<u64>,
    /// The thread that failed, if it was a panic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// True when the failure was asked for with `--inject`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub injected: bool,
}

/// Why a worker ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneReason {
    /// The last step of the run is taken and durable.
    Finished,
    /// It was asked to.
    Stopped,
}

/// How much a note matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Good to know.
    Info,
    /// Should be looked at.
    Warn,
    /// Something broke.
    Error,
}
