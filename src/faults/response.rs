//! The ways in which the keeper responds to a fault. The rung, and whether the budget still allows it, are decided by the
//! policy.

use crate::config::knobs::Relief;
use serde::Deserialize;
use std::fmt;

/// Response to the end of a worker, or to trouble while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Record it and continue: it accompanies another error, or is none.
    Note,
    /// Restart unchanged.
    Again,
    /// Restart unchanged; end the run when the same comes back at the same step.
    UnlessSame,
    /// Restart on the nearest lower rung that offers this relief, with the same batch.
    Relieve(Relief),
    /// Restart unchanged the first time; from the second time on, use a rung that offers this relief.
    AgainThen(Relief),
    /// Restart once with one loader thread and one batch of prefetch; after that, ask the user.
    Lean,
    /// Retrying changes nothing: end with the class's exit code.
    Fail,
    /// No rung helps: stop, keep everything, and give the advice.
    Stop,
}

impl Response {
    /// Returns the response to a command, whose loader the keeper cannot make smaller.
    #[must_use]
    pub fn of_command(self) -> Self {
        if self == Self::Lean { Self::Relieve(Relief::Memory) } else { self }
    }

    /// Reports whether the run ends by it.
    #[must_use]
    pub fn ends_run(self) -> bool {
        matches!(self, Self::Fail | Self::Stop)
    }

    /// Reports whether a restart can be expected to help. A mistake in the script fails again, too.
    #[must_use]
    pub fn restart_helps(self) -> bool {
        !self.ends_run() && self != Self::UnlessSame
    }

    /// Returns the relief that it looks for.
    #[must_use]
    pub fn relief(self) -> Option<Relief> {
        match self {
            Self::Relieve(relief) | Self::AgainThen(relief) => Some(relief),
            _ => None,
        }
    }
}

impl fmt::Display for Response {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note => formatter.write_str("records it and continues"),
            Self::Again => formatter.write_str("restarts on the same rung"),
            Self::UnlessSame => formatter.write_str(
                "restarts on the same rung, within the restart budget; one that comes back at the same step ends the run",
            ),
            Self::Relieve(relief) => write!(formatter, "restarts on the nearest lower rung that helps against {}", relief.trouble()),
            Self::AgainThen(relief) => write!(
                formatter,
                "restarts on the same rung; the second time on a rung that relieves {relief}, or else on the safest one"
            ),
            Self::Lean => formatter.write_str(
                "restarts once with one loader thread; if that fails too, stops and alerts you; a command restarts on the \
                 nearest lower rung that helps against lack of memory",
            ),
            Self::Fail => formatter.write_str("stops and alerts you"),
            Self::Stop => formatter.write_str("stops, keeps all data and alerts you: no rung helps"),
        }
    }
}
