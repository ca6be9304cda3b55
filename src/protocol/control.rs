//! The control contract: cockpit and scripts ⇄ keeper, over the run's socket.
//!
//! A client sends [`Request`]s; each is answered by one [`Update::Reply`]. After
//! [`Request::Subscribe`] the keeper first makes the store whole, then sends [`Update::Status`] and
//! from there on every change: what a client reads from the store after the first status and what
//! it hears on the socket overlap, and never leave a gap.

use super::probe::Reading;
use super::worker::{Eval, Event, Level};
use serde::{Deserialize, Serialize};

/// client → keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Send every change from now on.
    Subscribe,
    /// Checkpoint, then go on under another rung.
    Shift {
        /// Which one.
        to: Target,
    },
    /// Save now.
    Checkpoint,
    /// Delete the checkpoints that retention does not keep.
    Prune,
    /// Checkpoint, then start again on the same rung.
    Restart,
    /// Checkpoint, then end the worker and free the card.
    Pause,
    /// Start the worker of a paused run again.
    Resume,
    /// Checkpoint, then end the run. A second request does not wait for the checkpoint.
    Stop,
    /// Do what the keeper proposes.
    Accept,
    /// May the keeper shift alone?
    Autopilot {
        /// Yes or no.
        on: bool,
    },
}

/// The rung a shift is to reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One rung safer.
    Down,
    /// One rung faster.
    Up,
    /// The rung of this name or number.
    Rung(String),
}

/// keeper → client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum Update {
    /// The answer to a request.
    Reply {
        /// Whether it will be done.
        accepted: bool,
        /// What will happen, or why not.
        message: String,
    },
    /// Where the run stands.
    Status(Box<Status>),
    /// New rows of the curve.
    Steps {
        /// In the order they were taken.
        rows: Vec<StepRow>,
    },
    /// A pass over the validation set.
    Eval(EvalRow),
    /// A reading of the probe.
    Sample(Box<SampleRow>),
    /// A new line of the journal.
    Journal(JournalRow),
    /// A checkpoint came, went or changed its verdict.
    Checkpoint(CheckpointRow),
}

/// Where an attempt, and with it the run, stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The worker loads.
    Starting,
    /// The worker compiles kernels.
    Compiling,
    /// The worker takes steps.
    Training,
    /// The worker measures.
    Evaluating,
    /// The worker saves.
    Checkpointing,
    /// No worker, by a person's wish.
    Paused,
    /// The worker was asked to end.
    Stopping,
    /// The card is not yet free of the last worker.
    AwaitingVram,
    /// Waiting before the next start.
    BackingOff,
    /// The keeper is gone, and its parent brings it back.
    Recovering,
    /// The last step is taken and durable.
    Finished,
    /// It cannot go on: bad config, data or checkpoint.
    Failed,
    /// The keeper stopped trying.
    NeedsPerson,
    /// Ended by a person's wish before the last step.
    Stopped,
}

impl RunState {
    /// The word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Compiling => "compiling",
            Self::Training => "training",
            Self::Evaluating => "evaluating",
            Self::Checkpointing => "checkpointing",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::AwaitingVram => "waiting for VRAM",
            Self::BackingOff => "backing off",
            Self::Recovering => "recovering",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::NeedsPerson => "needs a person",
            Self::Stopped => "stopped",
        }
    }

    /// True once the keeper has nothing more to do.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::NeedsPerson | Self::Stopped)
    }
}

/// The run at a glance: what `downshift status --format json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The run's name: that of its directory.
    pub run: String,
    /// What it is doing.
    pub state: RunState,
    /// In the states that wait for something: for what, or why.
    pub why: Option<String>,
    /// The exit code of a run that is over, as its keeper said it; none while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The current rung, 0 = fastest.
    pub rung: usize,
    /// Its name.
    pub rung_name: String,
    /// Optimizer steps attempted.
    pub step: u64,
    /// The clock: units consumed.
    pub samples: u64,
    /// Units in the whole run; none until a worker said so.
    pub total_samples: Option<u64>,
    /// Steps in the whole run on the current rung.
    pub total_steps: Option<u64>,
    /// Units in an epoch.
    pub epoch_samples: Option<u64>,
    /// What a unit is: `samples` or `tokens`.
    pub unit: String,
    /// The newest step held by a verified checkpoint.
    pub durable_step: Option<u64>,
    /// Lives of a worker so far.
    pub attempts: u64,
    /// Starts after a death.
    pub restarts: u64,
    /// Starts after a pause that was asked for.
    #[serde(default)]
    pub pauses: u64,
    /// Changes of rung.
    pub shifts: u64,
    /// Steps the guard dropped, in the whole run.
    pub skipped: u64,
    /// Loss of the newest step.
    pub loss: Option<f64>,
    /// The newest evaluation.
    pub eval: Option<Eval>,
    /// The best evaluation whose weights are on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// The device, as the worker named it.
    pub device: Option<String>,
    /// Trainable parameters.
    pub parameters: Option<u64>,
    /// The keeper; none when it is not alive.
    pub pid_keeper: Option<u32>,
    /// The worker; none when it is not alive.
    pub pid_worker: Option<u32>,
    /// The probe; none when it is not alive.
    pub pid_probe: Option<u32>,
    /// Whether the keeper may shift alone.
    pub autopilot: bool,
    /// What the keeper would do, if it may not do it alone.
    #[serde(default)]
    pub proposal: Option<Proposal>,
    /// When the run climbs back up: `climb to full in 812 clean steps`.
    #[serde(default)]
    pub climb: Option<String>,
    /// Where the run stands in its climb plan, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The shift or restart under way, or the newest one.
    pub passage: Option<Passage>,
    /// What each rung has shown so far, in the order of the ladder.
    pub rungs: Vec<RungRecord>,
    /// The run directory.
    pub run_dir: String,
}

/// The best evaluation whose weights are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step of its checkpoint.
    pub step: u64,
    /// Its validation loss.
    pub eval_loss: f64,
}

/// A run and its climb plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// How many stages the plan has.
    pub stages: usize,
    /// The stage, counted from 1; none once somebody chose a rung that the plan does not lead to.
    pub stage: Option<usize>,
    /// The rung of that stage; after a fault the run may be on another for a while.
    pub rung: Option<String>,
    /// The rung of the next stage.
    pub next: Option<String>,
}

/// A decision of the keeper that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Why: a sentence.
    pub why: String,
    /// What it would do: `would shift down to safe`.
    pub does: String,
}

/// The way from one worker to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// The rung left.
    pub from: String,
    /// The rung reached; the same for a restart.
    pub to: String,
    /// Its parts in order: those done have a time, the last one may be under way.
    pub stages: Vec<Stage>,
    /// Step and loss before.
    pub before: Option<(u64, f64)>,
    /// Step and loss of the first step after.
    pub after: Option<(u64, f64)>,
}

impl Passage {
    /// How long the parts that are done took.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.stages.iter().filter_map(|stage| stage.took_ms).sum()
    }
}

/// One part of a passage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// `save`, `stop`, `wait for VRAM`, `back off`, `start and load`, `compile`, `first step`.
    pub name: String,
    /// How long it took; none while it is under way.
    pub took_ms: Option<u64>,
}

/// What a rung has shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungRecord {
    /// Its name.
    pub name: String,
    /// Steps taken on it.
    pub steps: u64,
    /// Steps per second over the last half minute that it ran, evaluations and saves included.
    pub steps_per_s: Option<f64>,
    /// The same in units of the run's clock: what rungs with other batches are compared by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_per_s: Option<f64>,
    /// The most device memory its worker was seen to use.
    pub vram_bytes: Option<u64>,
    /// The most host memory its worker was seen to use.
    pub ram_bytes: Option<u64>,
    /// What its worker is thought to need of device memory, or on the CPU of host memory, by the plan
    /// and what was seen so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_bytes: Option<u64>,
    /// How its last attempt ended badly, and at which step.
    pub fault: Option<(String, u64)>,
}

/// One optimizer step of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// The attempt that took it.
    pub attempt: u64,
    /// The rung of that attempt.
    pub rung: usize,
    /// Its number.
    pub step: u64,
    /// The clock after it.
    pub samples: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its loss; none where it was skipped.
    pub loss: Option<f64>,
    /// Its learning rate.
    pub lr: f64,
    /// Its gradient norm; none where it was skipped.
    pub grad_norm: Option<f64>,
    /// Whether the guard dropped it.
    pub skipped: bool,
    /// Waited for data.
    pub data_wait_ms: f64,
    /// Computed.
    pub compute_ms: f64,
    /// When it reached the keeper, Unix milliseconds.
    pub time_ms: i64,
}

impl StepRow {
    /// The row of an event that is a step, taken or skipped.
    #[must_use]
    pub fn of(event: &Event, attempt: u64, rung: usize, time_ms: i64) -> Option<Self> {
        match event {
            Event::Step(step) => Some(Self {
                attempt,
                rung,
                step: step.step,
                samples: step.samples,
                epoch: step.epoch,
                loss: Some(step.loss),
                lr: step.lr,
                grad_norm: Some(step.grad_norm),
                skipped: false,
                data_wait_ms: step.data_wait_ms,
                compute_ms: step.compute_ms,
                time_ms,
            }),
            Event::Skipped(skipped) => Some(Self {
                attempt,
                rung,
                step: skipped.step,
                samples: skipped.samples,
                epoch: skipped.epoch,
                loss: None,
                lr: skipped.lr,
                grad_norm: None,
                skipped: true,
                data_wait_ms: 0.0,
                compute_ms: 0.0,
                time_ms,
            }),
            _ => None,
        }
    }
}

/// One evaluation of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EvalRow {
    /// The attempt that measured it.
    pub attempt: u64,
    /// When, Unix milliseconds.
    pub time_ms: i64,
    /// What.
    #[serde(flatten)]
    pub eval: Eval,
}

/// One reading of the probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// When, Unix milliseconds.
    pub time_ms: i64,
    /// What.
    pub reading: Reading,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalRow {
    /// Counts up.
    pub id: i64,
    /// When, Unix milliseconds.
    pub time_ms: i64,
    /// The step the run stood at.
    pub step: Option<u64>,
    /// How much it matters.
    pub level: Level,
    /// What kind of thing happened.
    pub kind: JournalKind,
    /// A sentence.
    pub text: String,
}

/// What a line of the journal is about; charts draw marks for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalKind {
    /// The run began, went on or ended.
    Run,
    /// A worker started or ended.
    Worker,
    /// The rung changed.
    Shift,
    /// The same rung was started again.
    Restart,
    /// A checkpoint was saved, refused or deleted.
    Checkpoint,
    /// The guard dropped a step.
    Skip,
    /// A fault was injected on purpose.
    Injected,
    /// The probe or the GPU.
    Health,
    /// A person asked for something.
    Request,
    /// Anything else.
    Note,
}

/// A checkpoint as the keeper knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// The step it holds.
    pub step: u64,
    /// The clock it holds.
    pub samples: u64,
    /// Relative to the run directory.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it became durable, Unix milliseconds.
    pub time_ms: i64,
    /// How long training stood still for it.
    pub pause_ms: f64,
    /// How long until it was durable.
    pub total_ms: f64,
    /// The validation loss of exactly these weights, where they were measured.
    pub eval_loss: Option<f64>,
    /// Whether it is the best so far.
    pub best: bool,
    /// Whether enough clean steps were taken beyond it to trust what it holds.
    #[serde(default)]
    pub proven: bool,
    /// Whether it is still on disk.
    pub kept: bool,
}
