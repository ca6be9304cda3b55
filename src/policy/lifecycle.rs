//! The state of a run; each state holds only the data that is valid in it.

use super::fault::Fault;
use super::reason::Reason;
use crate::protocol::claim::Waiting;
use crate::protocol::control::RunState;
use crate::protocol::exit_code::{FINISHED, NEEDS_PERSON, STOPPED, USAGE};
use crate::protocol::worker::{FailureClass, Phase};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The state of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Lifecycle {
    /// Before the first start.
    New,
    /// A worker lives and may continue.
    Running(Phase),
    /// A worker lives and is being ended.
    Stopping {
        /// The next state of the run.
        then: Then,
        /// How strongly it was asked to end.
        pressure: Pressure,
        /// When the pressure increases.
        until: Duration,
    },
    /// No worker; other runs come first on the devices.
    AwaitingTurn {
        /// The next start.
        start: Start,
        /// When the wait began.
        since: Duration,
        /// The condition it waits for.
        waiting: Waiting,
    },
    /// No worker; the GPU still holds memory of the last one.
    AwaitingVram {
        /// The next start.
        start: Start,
        /// When to give up, or to go ahead if the GPU cannot be read.
        until: Duration,
    },
    /// No worker; the next start waits.
    BackingOff {
        /// The next start.
        start: Start,
        /// When it begins.
        until: Duration,
    },
    /// No worker; the GPU has to cool first.
    Cooling {
        /// The next start.
        start: Start,
        /// When to give up.
        until: Duration,
    },
    /// No worker, at the user's request.
    Paused,
    /// No worker, and none will start.
    Over(Outcome),
}

/// How strongly a worker was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// By the contract: save and end.
    Asked,
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
}

/// Continuation after the end of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// Another start.
    Start(Start),
    /// Recovery: the worker's death is a fault like any other.
    Recover(Fault),
    /// A pause until the GPU is cooler, then this start.
    Cool(Start),
    /// The end of the run; the user has to act.
    Conclude(Reason),
    /// A pause.
    Pause,
    /// The end of the run.
    End,
}

/// A planned start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The rung.
    pub rung: usize,
    /// The reason, as a sentence for the journal and the attempt.
    pub reason: String,
    /// An older checkpoint to roll back to first.
    pub back: Option<Back>,
}

impl Start {
    /// Creates a start from the newest checkpoint.
    #[must_use]
    pub fn on(rung: usize, reason: impl Into<String>) -> Self {
        Self { rung, reason: reason.into(), back: None }
    }
}

/// A rollback to an older checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Back {
    /// The first unwanted step.
    pub before: u64,
    /// Number of steps to go back from there, approximately.
    pub steps: u64,
    /// Data to leave out: a half-open range of the run's clock.
    #[serde(default)]
    pub skip: Option<(u64, u64)>,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The last step is durable.
    Finished,
    /// Ended at the user's request.
    Stopped,
    /// Its devices are in use, and it was not started to wait for them.
    Refused(Reason),
    /// The run cannot continue with this configuration.
    Failed(FailureClass, Reason),
    /// The keeper cannot recover the run.
    NeedsPerson(Reason),
}

impl Outcome {
    /// Returns the exit code of a run in the foreground.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Finished => FINISHED,
            Self::Refused(_) => USAGE,
            Self::Stopped => STOPPED,
            Self::NeedsPerson(_) => NEEDS_PERSON,
            Self::Failed(class, _) => class.exit_code(),
        }
    }
}

impl Lifecycle {
    /// Returns the state to display.
    #[must_use]
    pub fn state(&self) -> RunState {
        match self {
            Self::New | Self::Running(Phase::Starting) => RunState::Starting,
            Self::Running(Phase::Compiling) => RunState::Compiling,
            Self::Running(Phase::Training) => RunState::Training,
            Self::Running(Phase::Evaluating) => RunState::Evaluating,
            Self::Running(Phase::Checkpointing) => RunState::Checkpointing,
            Self::Stopping { .. } => RunState::Stopping,
            Self::AwaitingTurn { .. } => RunState::AwaitingCard,
            Self::AwaitingVram { .. } => RunState::AwaitingVram,
            Self::BackingOff { .. } | Self::Cooling { .. } => RunState::BackingOff,
            Self::Paused => RunState::Paused,
            Self::Over(Outcome::Finished) => RunState::Finished,
            Self::Over(Outcome::Stopped | Outcome::Refused(_)) => RunState::Stopped,
            Self::Over(Outcome::Failed(..)) => RunState::Failed,
            Self::Over(Outcome::NeedsPerson(_)) => RunState::NeedsPerson,
        }
    }

    /// Returns what the run waits for, or why it ended.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match self {
            Self::AwaitingTurn { waiting, .. } => Some(waiting.to_string()),
            Self::AwaitingVram { start, .. } | Self::BackingOff { start, .. } | Self::Cooling { start, .. } => {
                Some(start.reason.clone())
            }
            Self::Stopping { then: Then::Recover(fault), .. } => Some(fault.to_string()),
            Self::Stopping { then: Then::Conclude(why), .. }
            | Self::Over(Outcome::Refused(why) | Outcome::Failed(_, why) | Outcome::NeedsPerson(why)) => {
                Some(why.to_string())
            }
            _ => None,
        }
    }
}
