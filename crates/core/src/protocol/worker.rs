//! The worker contract: orders and events.

use super::companion::{CompanionNews, Fingerprint};
use super::metrics::{self, Metrics};
use super::ranks::RankRow;
use super::resumed::Resumed;
use super::samples::LayerStats;
use super::skips::UpdateCounts;
use super::unread::UnreadOutput;
use crate::recipe::batch::Position;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use super::class::FailureClass;
pub use super::evaluation::{Eval, ReducedRate};

/// Version of the contract; a keeper refuses a worker with another version.
pub const PROTOCOL: u32 = 1;

/// Exit code of a standby that ended before it began: it was not needed, or waited too long.
pub const NOT_BEGUN: u8 = 75;

/// A message from keeper to worker, on the worker's stdin. A closed stdin means [`Order::Stop`] with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Save at the next step boundary and continue.
    Checkpoint,
    /// End at the next step boundary.
    Stop {
        /// Whether to save first. A worker that cannot save trains on and reports it.
        checkpoint: bool,
    },
    /// Write the stacks of the command's Python processes, which are about to be ended.
    Stacks,
    /// Take up the attempt: the first order of a standby.
    Begin,
    /// Tell everything again from this step on: the first order of a keeper that takes over a running command.
    Adopt {
        /// The newest step that the store holds.
        after: u64,
    },
}

/// Phase of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loading data, weights and the device.
    Starting,
    /// Compiling and tuning kernels: the first step of a process on a GPU.
    Compiling,
    /// Taking optimizer steps.
    Training,
    /// Evaluating on the validation set.
    Evaluating,
    /// Copying state to the host, with training stopped.
    Checkpointing,
}

/// A message from worker to keeper, on the worker's private copy of stdout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first message of every worker.
    Hello(Hello),
    /// The worker entered another phase.
    Phase {
        /// The new phase.
        phase: Phase,
    },
    /// An optimizer step was taken and its loss read back.
    Step(Step),
    /// A step whose loss or gradient was not finite: dropped whole, weights and moments untouched.
    Skipped(Skipped),
    /// A pass over the validation set.
    Eval(Eval),
    /// Samples of the model's work were written into the run directory.
    Samples {
        /// The step they show.
        step: u64,
    },
    /// The state of the layers at an evaluation.
    Layers(LayerStats),
    /// A checkpoint is durable.
    Saved(Saved),
    /// A checkpoint could not be written; training continues.
    SaveFailed {
        /// The step of that checkpoint.
        step: u64,
        /// The error.
        message: String,
        /// Whether the disk caused it: it is full or failing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_disk: bool,
    },
    /// The worker was told to save and end, but could not save: it trains on.
    StopRefused {
        /// The step that should have been saved.
        step: u64,
        /// The error.
        message: String,
    },
    /// A note for the user.
    Note {
        /// Severity.
        level: Level,
        /// Text, one sentence.
        text: String,
    },
    /// A fault requested with `--inject` is about to happen; reported first, so that it happens only once.
    Injected {
        /// The fault as requested: `oom@150`.
        fault: String,
        /// The affected step.
        step: u64,
    },
    /// Kernels used before the first step of a process on a GPU; sent while their number grows.
    Kernels(KernelCount),
    /// Kernels that were taken without tuning have been tuned by `prepare`; the next start uses those.
    KernelsTuned,
    /// Host memory of the worker; sent only if it was told to measure.
    Memory(Memory),
    /// News of the command that a harness runs.
    Command {
        /// The news.
        news: CommandNews,
    },
    /// The worker ends because of this failure; the last line, if time permits.
    Failed(Failed),
    /// The worker ends normally.
    Done {
        /// The reason.
        reason: DoneReason,
        /// The last step taken.
        step: u64,
    },
}

/// The kernels used before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCount {
    /// Kernels used so far.
    pub used: u64,
    /// Kernels that an earlier start of the same rung used in all, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
}

/// The worker's introduction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the worker's build.
    pub protocol: u32,
    /// The build's version, which reveals a rebuild during a run.
    pub build: String,
    /// Process id.
    pub pid: u32,
    /// Device, for display: `cpu`, `cuda:0 NVIDIA GeForce RTX 4090`.
    pub device: String,
    /// Backend, for display: `f32`, `cuda bf16, fused`.
    pub backend: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Step of the checkpoint it resumed from; none for a fresh start.
    pub resumed_from: Option<u64>,
    /// The run's clock.
    pub position: Position,
    /// Units (samples, tokens) in an epoch.
    pub epoch_units: u64,
    /// Units in the whole run.
    pub total_units: u64,
    /// Optimizer steps in the whole run, if all are taken on this rung.
    pub total_steps: u64,
    /// Name of a unit: `samples` or `tokens`.
    pub unit: String,
}

/// News that only a command has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum CommandNews {
    /// The length of the run became known, or unknown again.
    Length {
        /// Optimizer steps in the whole run; 0 = unknown.
        steps: u64,
        /// Units in the whole run; 0 = unknown.
        units: u64,
    },
    /// The command prints or uses the processor; sent at intervals.
    Active,
    /// A companion in the command introduced itself, or a value in its introduction changed.
    Companion(Box<CompanionNews>),
    /// Another process of the command trains on from an earlier step than the last one.
    WentBack {
        /// The step that it resumed from; 0 if it began anew.
        step: u64,
        /// The run's clock at that step.
        samples: u64,
    },
    /// It has become known whether the attempt trains on from its checkpoint.
    Resumed {
        /// The judgement.
        resumed: Resumed,
        /// The run's clock at the step from which it trains on.
        samples: u64,
    },
    /// A process of the command that hangs has written its stacks.
    Stacks {
        /// The process.
        pid: u32,
        /// Its rank in a distributed training.
        rank: u32,
        /// The file, relative to the run directory.
        file: PathBuf,
    },
    /// Where the ranks of a distributed training stand; sent at intervals.
    Ranks {
        /// All ranks, by number.
        rows: Vec<RankRow>,
    },
    /// Updates of the attempt, where no event reports each of them; sent at intervals.
    Updates(UpdateCounts),
    /// The epoch that the command is in, as it reports it.
    Epoch {
        /// Its number, from wherever the command counts.
        epoch: u64,
    },
    /// The time until the end of the training, as the command tells it; sent where its length is not known.
    TimeLeft {
        /// Milliseconds.
        ms: u64,
    },
    /// A command that failed wrote outputs that may be checkpoints, and `checkpoints.match` matched nothing.
    Unmatched {
        /// A pattern that matches them.
        pattern: String,
    },
    /// No step was found in the output.
    Unread(UnreadOutput),
    /// The weights of a checkpoint are those that an evaluation measured, although their steps differ: a script may count
    /// otherwise in the names of its files than in its output.
    Measured {
        /// The step of the checkpoint.
        checkpoint: u64,
        /// The step of the evaluation.
        evaluation: u64,
    },
    /// A fingerprint of a step; only in a trial.
    Fingerprint(Fingerprint),
    /// The command has ended, with all its processes. Its codes are its own, not those of this contract.
    Ended {
        /// Process id of the command.
        pid: u32,
        /// Exit code, unless a signal ended it.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// Length of worker.log when the harness began to end the command. What its processes print after that is no
        /// evidence. None if it ended on its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_end: Option<u64>,
    },
}

/// Resident memory at the end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The completed phase. [`Phase::Starting`] is sent twice: once the data is loaded, and again once the
    /// model exists.
    pub phase: Phase,
    /// Resident bytes now.
    pub resident_bytes: u64,
    /// Peak resident bytes since the previous event of this kind.
    pub peak_bytes: u64,
}

/// One optimizer step. A command may report no loss, no rate and no norm.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Step {
    /// Optimizer steps attempted so far, this one included.
    pub step: u64,
    /// The run's clock after the step.
    pub samples: u64,
    /// Epoch of the step's samples.
    pub epoch: u64,
    /// Mean training loss over the step's samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Learning rate of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Norm of the gradient before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Number of forward and backward passes.
    pub micro_batches: u32,
    /// Time spent waiting for data.
    pub data_wait_ms: f64,
    /// Time from the first forward pass to the loss readback; 0 if it was not measured.
    pub compute_ms: f64,
    /// Anything else that was measured, by name.
    #[serde(default, skip_serializing_if = "Metrics::is_empty", deserialize_with = "metrics::read_finite")]
    pub metrics: Metrics,
    /// When it was taken, Unix milliseconds. A keeper that takes over hears of steps long after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<i64>,
    /// Whether it updated the architecture of a search. Its loss is that of other samples than the weights are trained
    /// on, so the two are not compared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub searches: bool,
}

/// A step skipped by the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The step number.
    pub step: u64,
    /// The run's clock after it: skipped samples count as consumed.
    pub samples: u64,
    /// Epoch of its samples.
    pub epoch: u64,
    /// The learning rate it would have used.
    pub lr: f64,
    /// The non-finite value: `loss` or `gradient`.
    pub what: String,
    /// The micro-batch or the parameter, for display.
    #[serde(rename = "where")]
    pub place: String,
    /// The first parameter whose gradient was not finite, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Skipped only because of the f16 loss scale, which is lower from here on: not a sign of trouble.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rescaled: bool,
    /// The step was taken anyway: a command has no guard.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub applied: bool,
}

/// A durable checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Saved {
    /// Its directory, relative to the run directory.
    pub path: String,
    /// The step it holds.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// How long training stopped for it, in milliseconds.
    pub pause_ms: f64,
    /// Time until it was durable, in milliseconds.
    pub total_ms: f64,
    /// Validation loss of exactly these weights, if measured.
    pub eval_loss: Option<f64>,
    /// The other metrics of that evaluation, by name.
    #[serde(default, skip_serializing_if = "Metrics::is_empty", deserialize_with = "metrics::read_finite")]
    pub metrics: Metrics,
}

/// Reason why a worker had to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// Failure class.
    pub class: FailureClass,
    /// The original error message.
    pub message: String,
    /// The current step, if training had begun.
    pub step: Option<u64>,
    /// The thread that failed, for a panic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether the failure was requested with `--inject`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub injected: bool,
}

/// Reason for a normal end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneReason {
    /// The last step of the run is taken and durable.
    Finished,
    /// The worker was told to stop.
    Stopped,
}

/// Severity of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Informative.
    Info,
    /// Worth checking.
    Warn,
    /// Something broke.
    Error,
}
