//! The inputs of decisions about a command: the parts of its run file, and the origin of its process.

use crate::config::command::Level as CommandLevel;
use crate::config::command::cost::Resumption;
use std::time::Duration;

/// The origin of a command's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedBy {
    /// The run.
    Run,
    /// The user, before the run adopted it.
    User {
        /// Whether the run may end it.
        may_end: bool,
    },
}

/// The part of a command's run file that decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// It has checkpoints, and arguments to resume from them.
    pub resumes: bool,
    /// It may be started again from its beginning.
    pub from_start: bool,
    /// The origin of the process that runs now.
    pub started_by: StartedBy,
    /// Time that a save takes which a signal asks for; none without such a signal.
    pub save_within: Option<Duration>,
    /// Least age of its newest checkpoint that can be too old; none if it has no checkpoints.
    pub old_after: Option<Duration>,
    /// Time that a save takes which its companion makes when asked; none without one that resumes from it.
    pub companion_save: Option<Duration>,
    /// Time after its start in which its companion may report; none if the run did not start it.
    pub companion_within: Option<Duration>,
}

impl CommandLimits {
    /// Reports whether another start is possible at all.
    #[must_use]
    pub fn may_restart(self) -> bool {
        self.can_resume() || self.from_start
    }

    /// Reports whether another start continues from a checkpoint.
    #[must_use]
    pub fn can_resume(self) -> bool {
        self.resumes || self.companion_save.is_some()
    }

    /// Returns the time that a save takes which the keeper asks for; none if nothing can be asked.
    #[must_use]
    pub fn save_time(self) -> Option<Duration> {
        self.save_within.or(self.companion_save)
    }

    /// Returns how the command goes on after it was ended.
    pub(super) fn resumption(self) -> Resumption {
        let level = match (self.companion_save, self.resumes) {
            (Some(_), _) => CommandLevel::Companion,
            (None, true) => CommandLevel::Checkpoints,
            (None, false) => CommandLevel::Command,
        };
        Resumption { level, saves: self.save_within.is_some(), may_start_over: self.from_start }
    }

    /// Reports whether the run may end it: it was started by the run, or adopted with permission.
    #[must_use]
    pub fn may_end(self) -> bool {
        self.started_by != StartedBy::User { may_end: false }
    }

    /// Reports whether the keeper may end a command that hangs.
    #[must_use]
    pub fn may_end_hung(self) -> bool {
        self.may_end() && self.may_restart()
    }
}
