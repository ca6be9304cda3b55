//! The rows of a run: steps, evaluations, readings, journal lines and checkpoints, as stored and as sent.

use super::metrics::{self, Metrics};
use super::probe::Reading;
use super::samples::LayerStats;
use super::worker::{Eval, Event, Level};
use serde::{Deserialize, Serialize};

/// One optimizer step of one attempt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepRow {
    /// The attempt that took it.
    pub attempt: u64,
    /// The rung of that attempt.
    pub rung: usize,
    /// The step number.
    pub step: u64,
    /// The run's clock after the step.
    pub samples: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its loss; none if skipped or not reported.
    pub loss: Option<f64>,
    /// Its learning rate; none if not reported.
    pub lr: Option<f64>,
    /// Its gradient norm; none if skipped or not reported.
    pub grad_norm: Option<f64>,
    /// Whether the guard skipped it.
    pub skipped: bool,
    /// Milliseconds spent waiting for data.
    pub data_wait_ms: f64,
    /// Milliseconds spent computing; 0 if they were not measured.
    pub compute_ms: f64,
    /// Arrival at the keeper, Unix milliseconds.
    pub time_ms: i64,
    /// Anything else that was measured, by name.
    #[serde(default, skip_serializing_if = "Metrics::is_empty", deserialize_with = "metrics::read_finite")]
    pub metrics: Metrics,
}

impl StepRow {
    /// Creates the row of an event that is a step, taken or skipped.
    #[must_use]
    pub fn from_event(event: &Event, attempt: u64, rung: usize, time_ms: i64) -> Option<Self> {
        match event {
            Event::Step(step) => Some(Self {
                attempt,
                rung,
                step: step.step,
                samples: step.samples,
                epoch: step.epoch,
                loss: step.loss,
                lr: step.lr,
                grad_norm: step.grad_norm,
                skipped: false,
                data_wait_ms: step.data_wait_ms,
                compute_ms: step.compute_ms,
                time_ms: step.time_ms.unwrap_or(time_ms),
                metrics: step.metrics.clone(),
            }),
            Event::Skipped(skipped) => Some(Self {
                attempt,
                rung,
                step: skipped.step,
                samples: skipped.samples,
                epoch: skipped.epoch,
                loss: None,
                lr: Some(skipped.lr),
                grad_norm: None,
                skipped: true,
                data_wait_ms: 0.0,
                compute_ms: 0.0,
                time_ms,
                metrics: Metrics::new(),
            }),
            _ => None,
        }
    }
}

/// One evaluation of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalRow {
    /// The attempt that measured it.
    pub attempt: u64,
    /// Time, Unix milliseconds.
    pub time_ms: i64,
    /// The evaluation.
    #[serde(flatten)]
    pub eval: Eval,
}

/// The state of the layers at one evaluation of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerRow {
    /// The attempt that measured it.
    pub attempt: u64,
    /// Time, Unix milliseconds.
    pub time_ms: i64,
    /// The layers.
    #[serde(flatten)]
    pub stats: LayerStats,
}

/// One probe reading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadingRow {
    /// Time, Unix milliseconds.
    pub time_ms: i64,
    /// The reading.
    pub reading: Reading,
}

/// One journal line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalRow {
    /// Increasing id.
    pub id: i64,
    /// Time, Unix milliseconds.
    pub time_ms: i64,
    /// The run's step at that time.
    pub step: Option<u64>,
    /// Severity.
    pub level: Level,
    /// Subject of the line.
    pub kind: JournalKind,
    /// Text, one sentence.
    pub text: String,
}

/// Subject of a journal line; charts draw marks for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalKind {
    /// The run began, continued or ended.
    Run,
    /// A worker started or ended.
    Worker,
    /// The rung changed.
    Shift,
    /// The worker restarted on the same rung.
    Restart,
    /// A checkpoint was saved, refused or deleted.
    Checkpoint,
    /// The learning rate was lowered on a plateau.
    Rate,
    /// The guard skipped a step.
    Skip,
    /// An injected fault.
    Injected,
    /// The probe or the GPU.
    Health,
    /// A request of the user.
    Request,
    /// Anything else.
    Note,
}

/// A checkpoint as known to the keeper.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// The step it holds.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// Path relative to the run directory.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Time when it became durable, Unix milliseconds.
    pub time_ms: i64,
    /// How long training stopped for it, in milliseconds.
    pub pause_ms: f64,
    /// Time until it was durable, in milliseconds.
    pub total_ms: f64,
    /// Validation loss of exactly these weights, if measured.
    pub eval_loss: Option<f64>,
    /// The other metrics of that evaluation, by name.
    #[serde(default, skip_serializing_if = "Metrics::is_empty", deserialize_with = "metrics::read_finite")]
    pub metrics: Metrics,
    /// Whether it is the best so far.
    pub best: bool,
    /// Whether enough clean steps were taken beyond it to trust its content.
    #[serde(default)]
    pub proven: bool,
    /// Whether it is still on disk.
    pub kept: bool,
}
