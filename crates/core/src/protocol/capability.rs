//! Abilities of the worker of a run: how it saves, what its next start continues from, and whether it may be ended.

use super::control::Status;
use serde::{Deserialize, Serialize};

/// The source from which the next start of a worker continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumption {
    /// The built-in trainer's own checkpoints.
    BuiltIn,
    /// The state that a companion in the command's process saves when asked.
    Companion,
    /// The command's own checkpoints, with arguments to resume from them.
    Checkpoints,
    /// Nothing.
    Nothing,
}

/// The abilities of the worker of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// The source from which its next start continues.
    pub resumes: Resumption,
    /// A signal or a file makes its script save.
    pub saves_on_signal: bool,
    /// It may start over from its beginning.
    pub may_start_over: bool,
    /// The run may end it: not a process that was adopted only to be watched.
    pub may_end: bool,
}

impl Capability {
    /// The worker of the built-in trainer.
    pub const BUILT_IN: Self =
        Self { resumes: Resumption::BuiltIn, saves_on_signal: false, may_start_over: true, may_end: true };

    /// Reports whether the worker runs a command.
    #[must_use]
    pub fn is_command(self) -> bool {
        self.resumes != Resumption::BuiltIn
    }

    /// Reports whether another start continues from a checkpoint.
    #[must_use]
    pub fn can_resume(self) -> bool {
        self.resumes != Resumption::Nothing
    }

    /// Reports whether another start is possible at all.
    #[must_use]
    pub fn may_restart(self) -> bool {
        self.can_resume() || self.may_start_over
    }

    /// Reports whether the worker saves when it is asked to.
    #[must_use]
    pub fn saves_on_request(self) -> bool {
        self.saves_on_signal || matches!(self.resumes, Resumption::BuiltIn | Resumption::Companion)
    }

    /// Reports whether the keeper may end a worker that hangs.
    #[must_use]
    pub fn may_end_hung(self) -> bool {
        self.may_end && self.may_restart()
    }

    /// Returns this capability with a companion that saves and resumes, or as the run file gives it.
    #[must_use]
    pub fn with_companion(self, run_file: Self, saves: bool) -> Self {
        Self { resumes: if saves { Resumption::Companion } else { run_file.resumes }, ..self }
    }

    /// Returns the level of a command; none for a built-in worker.
    #[must_use]
    pub fn level(self) -> Option<Level> {
        match self.resumes {
            Resumption::BuiltIn => None,
            Resumption::Companion => Some(Level::Companion),
            Resumption::Checkpoints => Some(Level::Checkpoints),
            Resumption::Nothing => Some(Level::Command),
        }
    }

    /// Returns this capability, of the run file, with what only a keeper can tell: whether there is a companion, and whether the
    /// process may be ended. The run file may have been edited since, so the rest is as it says now.
    #[must_use]
    pub fn as_recorded(self, status: &Status) -> Self {
        let recorded = status.capability;
        let has_companion = recorded.map_or(status.level == Some(2), |known| known.resumes == Resumption::Companion);
        let may_end = self.may_end && recorded.is_none_or(|known| known.may_end);
        Self { may_end, ..self.with_companion(self, has_companion) }
    }
}

/// How much the keeper can do for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The command alone: nothing is resumed.
    Command,
    /// With its checkpoints and the arguments to resume from them.
    Checkpoints,
    /// With a companion inside its Python process that saves when asked.
    Companion,
}

impl Level {
    /// Returns the number of the level.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Describes what a restart does at this level.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Command => {
                "the command cannot resume: it is not shifted, paused or restarted unless `restart: from_start` lets it \
                 start over"
            }
            Self::Checkpoints => "a restart continues from the newest complete checkpoint of the script",
            Self::Companion => "a restart continues from the last saved step; a shift, a pause or a stop saves first",
        }
    }
}
