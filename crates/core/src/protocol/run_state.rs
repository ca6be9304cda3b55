//! The state of a run.

use serde::{Deserialize, Serialize};

/// State of an attempt, and with it of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The worker loads.
    Starting,
    /// The worker compiles kernels.
    Compiling,
    /// The worker takes steps.
    Training,
    /// The worker evaluates.
    Evaluating,
    /// The worker saves.
    Checkpointing,
    /// No worker, at the user's request.
    Paused,
    /// The worker was asked to end.
    Stopping,
    /// No worker yet: other runs come first on the devices.
    AwaitingCard,
    /// The GPU still holds memory of the last worker.
    AwaitingVram,
    /// Waiting before the next start.
    BackingOff,
    /// The keeper is gone, and its parent restarts it.
    Recovering,
    /// The keeper and its parent are gone, and the command runs on without them.
    Unattended,
    /// The last step is taken and durable.
    Finished,
    /// The run cannot continue: bad config, data or checkpoint.
    Failed,
    /// The keeper gave up.
    NeedsPerson,
    /// Ended at the user's request before the last step.
    Stopped,
    /// Keeper, parent and worker are gone, and none of them recorded an end: killed, or the power failed.
    Interrupted,
}

impl RunState {
    /// Returns the word for display.
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
            Self::AwaitingCard => "waiting for its turn",
            Self::AwaitingVram => "waiting for VRAM",
            Self::BackingOff => "backing off",
            Self::Recovering => "recovering",
            Self::Unattended => "unattended",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::NeedsPerson => "needs attention",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
        }
    }

    /// Reports whether a worker takes steps, evaluates or saves.
    #[must_use]
    pub fn is_moving(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating | Self::Checkpointing)
    }

    /// Reports whether the end of the run is recorded.
    #[must_use]
    pub fn has_end(self) -> bool {
        self.is_over() && self != Self::Interrupted
    }

    /// Reports whether the keeper has nothing left to do.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::NeedsPerson | Self::Stopped | Self::Interrupted)
    }
}
