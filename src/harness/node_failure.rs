//! Why a command cannot go on: another node of the job fails it.

use crate::protocol::node::Refused;
use crate::protocol::worker::{Failed, FailureClass};
use std::time::Duration;

/// Longest time for a job step to answer, and to start a command.
pub const START: Duration = Duration::from_mins(3);

/// The failure of another node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeFailure {
    /// Slurm did not start the step, or its first process ended before it said anything.
    #[error("the job step on node {name} did not start; worker.log says why")]
    NotStarted {
        /// The node.
        name: String,
        /// Srun ended with a code of its own: the next one would, too.
        is_refused: bool,
    },
    /// It has not started the command in time.
    #[error("node {name} has not started the command within {} s", START.as_secs())]
    TooSlow {
        /// The node.
        name: String,
    },
    /// Processes of an earlier attempt do not end there.
    #[error("processes of the last attempt still run on node {name}")]
    EarlierAttempt {
        /// The node.
        name: String,
    },
    /// It does not start the command.
    #[error("the command does not start on node {name}: {reason}")]
    Refused {
        /// The node.
        name: String,
        /// Why.
        reason: Refused,
    },
    /// Something else ended the command there.
    #[error("the command was ended on node {name}")]
    Ended {
        /// The node.
        name: String,
    },
    /// Its step ended without a word.
    #[error("node {name} is lost: its job step has ended")]
    Lost {
        /// The node.
        name: String,
    },
}

impl NodeFailure {
    /// Returns the failure of a node that does not start the command.
    pub fn refused(name: String, reason: Refused) -> Self {
        match reason {
            Refused::EarlierAttempt => Self::EarlierAttempt { name },
            reason => Self::Refused { name, reason },
        }
    }

    /// Returns the failure of a node whose step ended before it answered, with the exit code of srun.
    pub fn not_started(name: String, code: Option<i32>) -> Self {
        // Srun passes on the signal that ended a step as 128 + its number.
        Self::NotStarted { name, is_refused: code.is_some_and(|code| (1..128).contains(&code)) }
    }

    /// Returns the class: another start helps unless the setup is wrong.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::NotStarted { is_refused: true, .. } | Self::Refused { .. } => FailureClass::Config,
            Self::NotStarted { is_refused: false, .. }
            | Self::TooSlow { .. }
            | Self::EarlierAttempt { .. }
            | Self::Ended { .. }
            | Self::Lost { .. } => FailureClass::Collective,
        }
    }

    /// Returns it as the failure of the attempt.
    pub fn to_failed(&self) -> Failed {
        Failed { class: self.class(), message: self.to_string(), step: None, thread: None, injected: false }
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeFailure, Refused};
    use crate::protocol::worker::FailureClass;

    #[test]
    fn only_what_the_next_start_meets_again_ends_the_run() {
        let name = || "n2".to_owned();
        let retried = [
            NodeFailure::Lost { name: name() },
            NodeFailure::Ended { name: name() },
            NodeFailure::TooSlow { name: name() },
            NodeFailure::refused(name(), Refused::EarlierAttempt),
            NodeFailure::not_started(name(), None),
            NodeFailure::not_started(name(), Some(137)),
        ];
        for failure in retried {
            assert_eq!(failure.class(), FailureClass::Collective, "{failure}");
        }
        let last = [
            NodeFailure::refused(name(), Refused::Build { own: "1".to_owned(), theirs: "2".to_owned() }),
            NodeFailure::refused(name(), Refused::RunDir("no run".to_owned())),
            NodeFailure::not_started(name(), Some(1)),
        ];
        for failure in last {
            assert_eq!(failure.class(), FailureClass::Config, "{failure}");
        }
        let text = NodeFailure::refused(name(), Refused::EarlierAttempt).to_string();
        assert_eq!(text, "processes of the last attempt still run on node n2");
    }
}
