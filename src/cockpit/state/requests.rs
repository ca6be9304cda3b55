//! Which requests to the run are possible now, and why the others are refused. Keys, footer and palette
//! all ask here.

use super::screen::View;
use super::{Link, State};
use crate::cockpit::action::Action;
use crate::cockpit::state::screen::Mode;
use crate::protocol::continuation::Continuation;
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
    /// The run ended early; holds how it continues.
    Ended(Continuation),
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
    /// The run has processes that must end first.
    Alive,
    /// The labels of the run are being read.
    ReadingLabels,
    /// The run is not in the folder that is listed.
    NotListed,
    /// The run never began.
    NeverStarted,
    /// There is no checkpoint yet.
    NoCheckpoint,
    /// The checkpoints are files of the command, which only its script can read.
    OwnFiles,
    /// The run's command is over, and nothing resumes it.
    NothingResumes,
    /// A resume would take no step.
    TrainedToItsEnd,
    /// The chosen run is the open one.
    AlreadyOpen,
    /// The chosen entry of the journal is shown in full; only faults have a box.
    NotAFault,
    /// The focused panel has nothing to open.
    NothingToOpen,
    /// Nothing under the cursor can be copied.
    NothingToCopy,
    /// The focused panel has no picture.
    NoPicture,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => write!(formatter, "read-only: this cockpit was opened with --read-only"),
            Self::Past(back) => write!(formatter, "this is the past; {back} returns to the present"),
            Self::Finished => write!(formatter, "the run is finished"),
            Self::Ended(way) => write!(formatter, "the run has ended; `{}` {}", way.command, way.effect()),
            Self::KeeperRestarting => write!(formatter, "the keeper is restarting; try again in a moment"),
            Self::KeeperGone => write!(formatter, "no keeper answers; the request was not sent"),
            Self::NotConnected => write!(formatter, "not connected to the keeper yet; the request was not sent"),
            Self::TooSmall(columns, rows) => {
                write!(formatter, "terminal too small for this box; enlarge it to {columns}×{rows}, or use a command")
            }
            Self::NoLadder => {
                write!(
                    formatter,
                    "this run has no other rung; a `ladder:` in its run file adds some (`downshift init` proposes one)"
                )
            }
            Self::SafestRung(name) => write!(formatter, "{name} is the safest rung; there is none below"),
            Self::FastestRung(name) => write!(formatter, "{name} is the fastest rung; there is none above"),
            Self::SameRung(name) => write!(formatter, "the run is already on {name}"),
            Self::AlreadyOpen => write!(formatter, "this run is already open"),
            Self::NotAFault => write!(formatter, "only a fault has more to show"),
            Self::NothingToOpen => write!(formatter, "nothing to open here"),
            Self::NothingToCopy => write!(formatter, "nothing to copy here; focus a chart or a list with Tab"),
            Self::NoPicture => write!(formatter, "no picture of this; focus a chart of steps or evaluations with Tab"),
            Self::NoProposal => write!(formatter, "the keeper has no proposal"),
            Self::Alive => write!(formatter, "the run is alive; stop it first"),
            Self::ReadingLabels => write!(formatter, "reading the labels of the run"),
            Self::NotListed => write!(formatter, "the run is not in this folder"),
            Self::NeverStarted => write!(formatter, "the run never started"),
            Self::NoCheckpoint => write!(formatter, "no checkpoint yet"),
            Self::OwnFiles => write!(formatter, "the checkpoints are files of the script"),
            Self::NothingResumes => write!(formatter, "nothing resumes this command; start it anew"),
            Self::TrainedToItsEnd => write!(formatter, "finished; `run CONFIG --from RUN` trains longer"),
        }
    }
}

impl State {
    /// Returns the rung in the open preview.
    #[must_use]
    pub fn previewed_rung(&self) -> Option<usize> {
        match self.screen.mode {
            Mode::Preview { to } => Some(to),
            _ => None,
        }
    }

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
            (_, Some(over)) if over.is_over() => Some(Refusal::Ended(self.continuation())),
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
            (Action::Alerts, _) => !self.alerts.is_empty(),
            (Action::Accept, _) => self.status().is_some_and(|status| status.proposal.is_some()),
            (Action::Checkpoint | Action::Restart, _) => {
                !matches!(self.run_state(), Some(RunState::Paused | RunState::AwaitingCard))
            }
            (Action::Sort | Action::ReverseSort, _) => self.screen.view == View::Runs,
            _ => true,
        }
    }
}
