//! The parts of a command's run file that the policy times its decisions by, and the origin of its process.

use std::time::Duration;

/// The origin of a command's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartedBy {
    /// The run.
    #[default]
    Run,
    /// The user, before the run adopted it.
    User {
        /// Whether the run may end it.
        may_end: bool,
    },
}

/// The times of a command; all none for a built-in worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandTimes {
    /// Time that a save takes which a signal asks for; none without such a signal.
    pub save_within: Option<Duration>,
    /// Least age of its newest checkpoint that can be too old; none if it has no checkpoints.
    pub old_after: Option<Duration>,
    /// Time after its start in which its companion may report; none if the run did not start it.
    pub companion_within: Option<Duration>,
}
