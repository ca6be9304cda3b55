//! The control contract between clients (cockpit and scripts) and the keeper, over the run's socket.
//!
//! A client sends [`Request`]s; the keeper answers each with one [`Update::Reply`]. A client that stays connected
//! gets a second one with the outcome: the run has ended, or the request could not be carried out. After
//! [`Request::Subscribe`] it first brings the store up to date, then sends [`Update::Status`], and
//! every change from then on. Rows read from the store after the first status overlap with those on
//! the socket, and never leave a gap.

use super::capability::Capability;
use super::companion::CompanionNews;
use super::progress::Progress;
use super::ranks::RankRow;
use super::resume::Resume;
use super::resumed::Resumed;
pub use super::run_state::RunState;
use super::skips::UpdateStatus;
use super::time_spent::TimeSpent;
use super::unread::UnreadOutput;
use super::worker::{Eval, KernelCount, ReducedRate};
use crate::format::figure;
use crate::recipe::learning::Setback;
use serde::{Deserialize, Serialize};

pub use super::evaluation::Best;
pub use super::failed_saves::FailedSaves;
pub use super::passage::{Passage, Stage, StageName};
pub use super::plan::PlanStatus;
pub use super::rows::{CheckpointRow, EvalRow, JournalKind, JournalRow, LayerRow, ReadingRow, StepRow};
pub use super::target::Target;

/// A message from client to keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Send every change from now on.
    Subscribe,
    /// Checkpoint, then continue on another rung.
    Shift {
        /// The target rung.
        to: Target,
    },
    /// Save now.
    Checkpoint,
    /// Delete the checkpoints that retention does not keep.
    Prune,
    /// Checkpoint, then restart on the same rung.
    Restart,
    /// Checkpoint, then end the worker and free the GPU.
    Pause,
    /// Restart the worker of a paused run.
    Resume,
    /// Checkpoint, then end the run. A second request does not wait for the checkpoint.
    Stop,
    /// Perform the keeper's proposal.
    Accept,
    /// Start the command of a rung ahead: a shift there is likely.
    StandBy {
        /// The rung's name; none if no shift is likely any more.
        rung: Option<String>,
    },
    /// Turn the autopilot on or off.
    Autopilot {
        /// Whether it is on.
        on: bool,
    },
}

/// A message from keeper to client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum Update {
    /// The answer to a request.
    Reply {
        /// Whether the request is accepted.
        accepted: bool,
        /// The consequence, or why the request is refused.
        message: String,
    },
    /// The run's status.
    Status(Box<Status>),
    /// New rows of the curve.
    Steps {
        /// The rows, in the order the steps were taken.
        rows: Vec<StepRow>,
    },
    /// A pass over the validation set.
    Eval(EvalRow),
    /// A process of the command trains on from an earlier step; what came after it is no longer in the store.
    WentBack {
        /// The step.
        step: u64,
    },
    /// Samples of a step were written or replaced; the run directory holds them.
    Samples {
        /// The step.
        step: u64,
    },
    /// The state of the layers at an evaluation.
    Layers(LayerRow),
    /// A probe reading.
    #[serde(rename = "sample")]
    Reading(Box<ReadingRow>),
    /// A new journal line.
    Journal(JournalRow),
    /// A checkpoint was added, deleted or re-evaluated.
    Checkpoint(CheckpointRow),
}

/// The run's status: the output of `downshift status --format json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The run's name: the name of its directory.
    pub run: String,
    /// State of the run.
    pub state: RunState,
    /// In the waiting states: the condition waited for, or the reason.
    pub why: Option<String>,
    /// Exit code of a finished run, as reported by its keeper; none while the run continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The current rung, 0 = fastest.
    pub rung: usize,
    /// Name of the current rung.
    pub rung_name: String,
    /// For a command: how much the keeper can do for it, 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Abilities of the worker; none in a status of an older keeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Capability>,
    /// For a command: how well it continues after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// Whether the current attempt trains on from the checkpoint that it was to resume from; none for a fresh start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
    /// For a command: its companion, as it last introduced itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companion: Option<Box<CompanionNews>>,
    /// For a command: its companion may report yet, and then its level changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_companion: bool,
    /// For a command of several ranks: where each one stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankRow>,
    /// Optimizer steps attempted.
    pub step: u64,
    /// The run's clock: units consumed.
    pub samples: u64,
    /// Units in the whole run; none until a worker reported it.
    pub total_samples: Option<u64>,
    /// Steps in the whole run on the current rung.
    pub total_steps: Option<u64>,
    /// For a command whose length is not known: when it ends, by its own account, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<i64>,
    /// Units in an epoch.
    pub epoch_samples: Option<u64>,
    /// Name of a unit: `samples` or `tokens`.
    pub unit: String,
    /// Newest step held by a verified checkpoint.
    pub durable_step: Option<u64>,
    /// The saves that failed since the last one that did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_saves: Option<FailedSaves>,
    /// Number of workers started so far.
    pub attempts: u64,
    /// Restarts after a fault.
    pub restarts: u64,
    /// Starts after a requested pause.
    #[serde(default)]
    pub pauses: u64,
    /// Changes of rung.
    pub shifts: u64,
    /// Returns to an older checkpoint on the same rung, after a loss spike or a divergence.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rollbacks: u64,
    /// Updates that were skipped since a value was not finite, in the whole run; none while that is not known: neither a
    /// companion nor the output of a command tells.
    pub skipped: Option<u64>,
    /// For a command whose updates are only counted: those of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<UpdateStatus>,
    /// Steps that were not finite and that the script took anyway, because nothing guards it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unguarded: u64,
    /// Newest steps in a row whose loss was not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite: u64,
    /// When the run last took a step, and how long it usually takes to the next one; none before a worker's first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Loss of the newest step.
    pub loss: Option<f64>,
    /// For a command: no step was found in its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<UnreadOutput>,
    /// The newest evaluation.
    pub eval: Option<Eval>,
    /// The best evaluation whose weights are on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// A sign in the evaluations that the run does not learn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setback: Option<Setback>,
    /// The newest reduction of the learning rate because evaluations stopped improving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced: Option<ReducedRate>,
    /// Kernels used so far, while the first step of a process on a GPU compiles them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<KernelCount>,
    /// Device, as named by the worker.
    pub device: Option<String>,
    /// Trainable parameters.
    pub parameters: Option<u64>,
    /// The host of the keeper, when the status was read on another one, through the run's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Process id of the keeper, on its host; none when it is not alive.
    pub pid_keeper: Option<u32>,
    /// Process id of the worker; none when it is not alive.
    pub pid_worker: Option<u32>,
    /// Process id of the probe; none when it is not alive.
    pub pid_probe: Option<u32>,
    /// Process id of a measurement of quality; none while nothing is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_quality: Option<u32>,
    /// Whether the autopilot is on.
    pub autopilot: bool,
    /// The move the keeper would make, with the autopilot off.
    #[serde(default)]
    pub proposal: Option<Proposal>,
    /// When the run climbs back up: `climb to full in 812 clean steps`.
    #[serde(default)]
    pub climb: Option<String>,
    /// Progress through the climb plan, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// Where the wall time of the run went.
    #[serde(default)]
    pub time: TimeSpent,
    /// The current shift or restart, or the newest one.
    pub passage: Option<Passage>,
    /// Record of each rung so far, in the order of the ladder.
    pub rungs: Vec<RungRecord>,
    /// The run directory.
    pub run_dir: String,
}

impl Status {
    /// Returns the milliseconds until the command ends by its own account.
    #[must_use]
    pub fn left_ms(&self, now_ms: i64) -> Option<i64> {
        self.ends_ms.filter(|_| self.state.is_moving()).map(|end| end.saturating_sub(now_ms).max(0))
    }

    /// Describes how well a command resumes, as far as that is known: `resume exact`.
    #[must_use]
    pub fn describe_resume(&self) -> Option<String> {
        self.describe_resume_as(self.resume.as_ref())
    }

    /// Describes how well a command resumes, with this grade. A status of an older keeper has none, but a level.
    #[must_use]
    pub fn describe_resume_as(&self, resume: Option<&Resume>) -> Option<String> {
        if self.is_level_open() {
            return Some("resume not known yet".to_owned());
        }
        let level = self.level?;
        Some(match resume.and_then(Resume::word) {
            Some(word) => format!("resume {word}"),
            None if level == 0 => "no resume".to_owned(),
            None => "resume untested".to_owned(),
        })
    }

    /// Reports whether a keeper or its parent lives.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.state == RunState::Recovering || !self.state.is_over() && self.pid_keeper.is_some()
    }

    /// Formats the loss of the newest step: `0.312`, or `not finite`.
    #[must_use]
    pub fn format_loss(&self) -> Option<String> {
        if self.not_finite > 0 { Some("not finite".to_owned()) } else { self.loss.map(figure) }
    }

    /// Returns the time without a step in milliseconds, if the run trains and this exceeds its longest usual pause.
    #[must_use]
    pub fn stalled_ms(&self, now_ms: i64) -> Option<i64> {
        self.progress.filter(|_| self.state == RunState::Training)?.stalled_ms(now_ms)
    }

    /// Returns the steps that the run has taken itself: fewer than its step if its training began elsewhere.
    #[must_use]
    pub fn taken_steps(&self) -> u64 {
        self.rungs.iter().map(|record| record.steps).sum::<u64>().min(self.step)
    }

    /// Reports whether the level may still change because the companion of a command has not reported yet.
    #[must_use]
    pub fn is_level_open(&self) -> bool {
        self.awaits_companion && !self.state.is_over()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A decision of the keeper that waits for your approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The reason, as a sentence.
    pub why: String,
    /// The move: `would shift down to safe`.
    pub does: String,
}

/// Record of a rung.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungRecord {
    /// Its name.
    pub name: String,
    /// Steps of the run that were taken on the rung; those taken again count once.
    pub steps: u64,
    /// Steps per second over its last 30 seconds of running, evaluations and saves included.
    pub steps_per_s: Option<f64>,
    /// Units of the run's clock per second, which compares rungs with different batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_per_s: Option<f64>,
    /// Peak device memory of its worker, as observed.
    pub vram_bytes: Option<u64>,
    /// Peak host memory of its worker, as observed.
    pub ram_bytes: Option<u64>,
    /// Estimated memory of its worker, from the plan and the observations so far: device memory, or on the
    /// CPU host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_bytes: Option<u64>,
    /// The failure of its last failed attempt, and the step.
    pub fault: Option<(String, u64)>,
    /// Why it cannot start here: it failed before its first step, so the keeper does not choose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}
