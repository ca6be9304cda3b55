//! Where a run stands in its life: each state holds only what is valid in it.

use super::cause::Cause;
use crate::protocol::control::RunState;
use crate::protocol::worker::{FailureClass, Phase};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The life of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Life {
    /// Before the first start.
    New,
    /// A worker lives and may go on.
    Running(Phase),
    /// A worker lives and is to end.
    Stopping {
        /// What comes after it.
        then: Then,
        /// How urgently it was told.
        pressure: Pressure,
        /// When the pressure rises.
        until: Duration,
    },
    /// No worker; the card is not yet free of the last one.
    AwaitingVram {
        /// What will be started.
        start: Start,
        /// When to give up; or when to go ahead, where the card cannot be read.
        until: Duration,
    },
    /// No worker; the next start has to wait.
    BackingOff {
        /// What will be started.
        start: Start,
        /// When.
        until: Duration,
    },
    /// No worker; the card has to cool first.
    Cooling {
        /// What will be started.
        start: Start,
        /// When to give up.
        until: Duration,
    },
    /// No worker, by a person's wish.
    Paused,
    /// No worker, and none will be started.
    Over(Outcome),
}

/// How urgently a worker was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// By the contract: save and end.
    Asked,
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
}

/// What follows the end of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// Another start.
    Start(Start),
    /// Its death is a fault like any other.
    Recover(Cause),
    /// A pause until the card is cooler, then this.
    Cool(Start),
    /// The end of the run: only a person can help.
    Conclude(String),
    /// Rest.
    Pause,
    /// The end of the run.
    End,
}

/// A start that is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// On this rung.
    pub rung: usize,
    /// Why: a sentence for the journal and the attempt.
    pub reason: String,
    /// Go back to an older checkpoint first.
    pub back: Option<Back>,
}

impl Start {
    /// From the newest checkpoint.
    #[must_use]
    pub fn on(rung: usize, reason: impl Into<String>) -> Self {
        Self { rung, reason: reason.into(), back: None }
    }
}

/// A way back to an older checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Back {
    /// The first step that is not wanted any more.
    pub before: u64,
    /// Go back about so many steps from there.
    pub steps: u64,
    /// Leave out so much of the data from there on, on the clock of the run.
    pub skip_units: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// With its last step durable.
    Finished,
    /// By a person's wish.
    Stopped,
    /// It cannot go on as it is configured.
    Failed(FailureClass, String),
    /// The keeper does not know how to go on.
    NeedsPerson(String),
}

impl Outcome {
    /// The exit code of a run in the foreground.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Stopped => 3,
            Self::NeedsPerson(_) => 4,
            Self::Failed(class, _) => class.exit_code(),
        }
    }
}

impl Life {
    /// The state to show.
    #[must_use]
    pub fn state(&self) -> RunState {
        match self {
            Self::New | Self::Running(Phase::Starting) => RunState::Starting,
            Self::Running(Phase::Compiling) => RunState::Compiling,
            Self::Running(Phase::Training) => RunState::Training,
            Self::Running(Phase::Evaluating) => RunState::Evaluating,
            Self::Running(Phase::Checkpointing) => RunState::Checkpointing,
            Self::Stopping { .. } => RunState::Stopping,
            Self::AwaitingVram { .. } => RunState::AwaitingVram,
            Self::BackingOff { .. } | Self::Cooling { .. } => RunState::BackingOff,
            Self::Paused => RunState::Paused,
            Self::Over(Outcome::Finished) => RunState::Finished,
            Self::Over(Outcome::Stopped) => RunState::Stopped,
            Self::Over(Outcome::Failed(..)) => RunState::Failed,
            Self::Over(Outcome::NeedsPerson(_)) => RunState::NeedsPerson,
        }
    }

    /// For what the run waits, or why it ended.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match self {
            Self::AwaitingVram { start, .. } | Self::BackingOff { start, .. } | Self::Cooling { start, .. } => {
                Some(start.reason.clone())
            }
            Self::Stopping { then: Then::Recover(cause), .. } => Some(cause.text.clone()),
            Self::Stopping { then: Then::Conclude(why), .. }
            | Self::Over(Outcome::Failed(_, why) | Outcome::NeedsPerson(why)) => Some(why.clone()),
            _ => None,
        }
    }
}
