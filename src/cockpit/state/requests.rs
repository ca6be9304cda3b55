//! Which requests to the run are possible now, and why the others are refused. Keys, footer and palette
//! all ask here.

use super::{Link, State};
use crate::cockpit::action::Action;
use crate::protocol::control::RunState;
use std::fmt;

/// The reason why an action is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The cockpit was opened with `--read-only`.
    ReadOnly,
    /// The screen shows the past; holds the key that returns to the present.
    Past(String),
    /// The last step is taken.
    Finished,
    /// The run ended early; holds the command that resumes it.
    Ended(String),
    /// The keeper is being restarted.
    KeeperRestarting,
    /// The keeper does not answer.
    KeeperGone,
    /// The keeper has not answered yet.
    NotConnected,
    /// The screen cannot show the question; holds the columns and rows it needs.
    TooSmall(u16, u16),
    /// The run has a single rung.
    NoLadder,
    /// The named rung is the safest.
    SafestRung(String),
    /// The named rung is the fastest.
    FastestRung(String),
    /// The run is on the named rung already.
    SameRung(String),
    /// Accepted without a proposal.
    NoProposal,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => write!(formatter, "read-only: this cockpit was opened with --read-only"),
            Self::Past(back) => write!(formatter, "this is the past; {back} returns to the present"),
            Self::Finished => write!(formatter, "the run is finished"),
            Self::Ended(resume) => write!(formatter, "the run has ended; `{resume}` continues it"),
            Self::KeeperRestarting => write!(formatter, "the keeper is restarting; try again in a moment"),
            Self::KeeperGone => write!(formatter, "no keeper answers; the request was not sent"),
            Self::NotConnected => write!(formatter, "not connected to the keeper yet; the request was not sent"),
            Self::TooSmall(columns, rows) => {
                write!(formatter, "terminal too small for this box; enlarge it to {columns}×{rows}, or use a command")
            }
            Self::NoLadder => write!(formatter, "this run has no ladder to shift on"),
            Self::SafestRung(name) => write!(formatter, "{name} is the safest rung; there is none below"),
            Self::FastestRung(name) => write!(formatter, "{name} is the fastest rung; there is none above"),
            Self::SameRung(name) => write!(formatter, "the run is already on {name}"),
            Self::NoProposal => write!(formatter, "the keeper has no proposal"),
        }
    }
}

impl State {
    /// Returns the reason why no request to the run is currently possible, if there is one.
    #[must_use]
    pub fn request_refusal(&self) -> Option<Refusal> {
        if self.read_only {
            return Some(Refusal::ReadOnly);
        }
        if self.replay.is_some() || self.moment.is_some() {
            return Some(Refusal::Past(self.keys.key_of(Action::Back)));
        }
        match (&self.link, self.run_state()) {
            (_, Some(RunState::Finished)) => Some(Refusal::Finished),
            (_, Some(over)) if over.is_over() => Some(Refusal::Ended(self.resume_command())),
            (_, Some(RunState::Recovering)) => Some(Refusal::KeeperRestarting),
            (Link::Dropped { .. } | Link::Lost { .. }, _) => Some(Refusal::KeeperGone),
            (Link::Waiting, _) | (_, None) => Some(Refusal::NotConnected),
            (Link::Live, Some(_)) => None,
        }
    }

    /// Reports whether an action would currently have an effect.
    #[must_use]
    pub fn is_possible(&self, action: Action) -> bool {
        if action.is_request() && self.request_refusal().is_some() {
            return false;
        }
        match (action, self.rung()) {
            (Action::ShiftDown, Some(rung)) => rung + 1 < self.ladder.len(),
            (Action::ShiftUp, Some(rung)) => rung > 0,
            (Action::ShiftDown | Action::ShiftUp, None) => false,
            (Action::Accept, _) => self.status().is_some_and(|status| status.proposal.is_some()),
            (Action::Checkpoint | Action::Restart, _) => {
                !matches!(self.run_state(), Some(RunState::Paused | RunState::AwaitingCard))
            }
            _ => true,
        }
    }
}
