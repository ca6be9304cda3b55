//! Why a request or a proposal is refused.

use crate::config::command::cost::lost;
use crate::protocol::continuation::Continuation;

/// Why a request or a proposal is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The run is over.
    #[error("the run is over; {0}")]
    Over(Continuation),
    /// The run is ending.
    #[error("the run is ending; shift after `{resume}`")]
    Ending {
        /// The command that continues the run.
        resume: String,
    },
    /// No worker runs, so there is nothing to save.
    #[error("no worker is running, so there is nothing new to save")]
    NothingToSave,
    /// The command cannot resume and may not start over.
    #[error(
        "this would lose {}: nothing resumes the command; {advice}",
        lost(*.steps)
    )]
    LosesEverything {
        /// The steps taken so far.
        steps: u64,
        /// The way to make it resume.
        advice: String,
    },
    /// The command has saved nothing yet.
    #[error(
        "this would lose {}: the script has no complete checkpoint yet; wait for it, or allow `restart: from_start`",
        lost(*.steps)
    )]
    NothingSaved {
        /// The steps taken so far.
        steps: u64,
    },
    /// The command may have a companion, which saves and resumes.
    #[error(
        "it is not known yet whether the command can save and resume: it has just started; try again once it trains"
    )]
    NotKnownYet,
    /// The training was adopted, and may not be ended.
    #[error(
        "this process was adopted without --may-end, so downshift does not end it; `downshift stop` only stops watching it"
    )]
    NotOurs,
    /// No signal asks the command to save.
    #[error(
        "the command cannot be asked to save; if its script saves on a signal, write `save: {{ signal: USR1 }}` into its run file"
    )]
    CannotAskToSave,
    /// No worker runs, so there is nothing to restart.
    #[error("no worker is running, so there is nothing to restart")]
    NothingToRestart,
    /// The run is paused already.
    #[error("the run is already paused")]
    AlreadyPaused,
    /// The worker is ending already.
    #[error("the worker is already ending")]
    WorkerEnding,
    /// There is one rung.
    #[error("{0} is the only rung; a `ladder:` in the run file adds others (`downshift init` proposes one)")]
    OnlyRung(String),
    /// There is no rung below.
    #[error("{0} is the safest rung")]
    SafestRung(String),
    /// There is no rung above.
    #[error("{0} is the fastest rung")]
    FastestRung(String),
    /// The run is on that rung.
    #[error("the run is already on {0}")]
    SameRung(String),
    /// The ladder has no such rung.
    #[error("no rung `{name}`; the ladder has {}", .ladder.join(", "))]
    UnknownRung {
        /// The requested name.
        name: String,
        /// The names of the rungs.
        ladder: Vec<String>,
    },
    /// The rung has another shape.
    #[error("{0}")]
    OtherShape(String),
    /// There is no proposal.
    #[error("nothing is proposed")]
    NoProposal,
    /// The proposal needs a worker.
    #[error("no worker is running; wait for the next one")]
    NoWorker,
    /// The proposal is out of date.
    #[error("the run has moved on")]
    MovedOn,
}
