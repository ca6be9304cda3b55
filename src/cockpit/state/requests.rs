//! Which requests to the run are possible now, and why the others are refused. Keys, footer and palette
//! all ask here.

use super::screen::View;
use super::{Link, State};
use crate::cockpit::action::Action;
use crate::cockpit::state::screen::Mode;
use crate::outlook;
use crate::outlook::capability::capability_of;
use crate::outlook::cost::{Cost, Reached};
use crate::outlook::effect::Surroundings;
use crate::outlook::request::Situation;
use crate::protocol::capability::Capability;
use crate::protocol::control::{Request, RunState, Status, Target};
use crate::protocol::device::DeviceChoice;
use std::fmt;

/// The reason why an action is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The run does not take the request.
    OfRun(outlook::request::Refusal),
    /// The cockpit was opened with `--read-only`.
    ReadOnly,
    /// The screen shows the past; holds the key that returns to the present.
    Past(String),
    /// The keeper is being restarted.
    KeeperRestarting,
    /// The keeper does not answer.
    KeeperGone,
    /// The keeper has not answered yet.
    NotConnected,
    /// The screen cannot show the question; holds the columns and rows it needs.
    TooSmall(u16, u16),
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
    /// The run is not in the queue.
    NotQueued,
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
            Self::OfRun(why) => why.fmt(formatter),
            Self::ReadOnly => write!(formatter, "read-only: this cockpit was opened with --read-only"),
            Self::Past(back) => write!(formatter, "this is the past; {back} returns to the present"),
            Self::KeeperRestarting => write!(formatter, "the keeper is restarting; try again in a moment"),
            Self::KeeperGone => write!(formatter, "no keeper answers; the request was not sent"),
            Self::NotConnected => write!(formatter, "not connected to the keeper yet; the request was not sent"),
            Self::TooSmall(columns, rows) => {
                write!(formatter, "terminal too small for this box; enlarge it to {columns}×{rows}, or use a command")
            }
            Self::AlreadyOpen => write!(formatter, "this run is already open"),
            Self::NotAFault => write!(formatter, "only a fault has more to show"),
            Self::NothingToOpen => write!(formatter, "nothing to open here"),
            Self::NothingToCopy => write!(formatter, "nothing to copy here; focus a chart or a list with Tab"),
            Self::NoPicture => write!(formatter, "no picture of this; focus a chart of steps or evaluations with Tab"),
            Self::Alive => write!(formatter, "the run is alive; stop it first"),
            Self::ReadingLabels => write!(formatter, "reading the labels of the run"),
            Self::NotListed => write!(formatter, "the run is not in this folder"),
            Self::NotQueued => write!(formatter, "this run does not wait in the queue"),
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

    /// Returns what the worker can do: as the keeper says, or one of before as far as the run file tells.
    #[must_use]
    pub fn capability(&self) -> Capability {
        let of_file = capability_of(self.command.as_ref());
        self.status().map_or(of_file, |status| of_file.as_recorded(status))
    }

    /// Returns what decides about a request; none before the first status.
    #[must_use]
    pub fn situation(&self) -> Option<Situation<'_>> {
        let status = self.status()?;
        Some(Situation {
            state: status.state,
            is_running: status.state.is_moving() || matches!(status.state, RunState::Starting | RunState::Compiling),
            is_ending: false,
            capability: self.capability(),
            may_learn_more: status.is_level_open(),
            reached: Reached::of_status(status),
            rung: status.rung,
            rungs: self.ladder.iter().map(|rung| rung.name.as_str()).collect(),
            below: self.rung_below(status),
            continuation: self.continuation(),
            again: self.commands.as_ref().and_then(|commands| commands.again.as_ref()),
        })
    }

    /// Returns the rung that a step down leads to.
    fn rung_below(&self, status: &Status) -> usize {
        let ignored = status.companion.as_ref().map(|companion| companion.ignored.as_slice()).unwrap_or_default();
        let here = Surroundings {
            is_without_gpu: status.device.as_deref().is_some_and(|device| !DeviceChoice::names_gpu(device)),
            ignores: |path: &str| ignored.iter().any(|knob| knob.name == path),
        };
        here.rung_below(status.rung, self.ladder.iter().map(|rung| &rung.preset))
    }

    /// Returns what a request would cost: none if no worker ends for it.
    ///
    /// # Errors
    /// Returns why the run does not take it.
    pub fn check_request(&self, request: &Request) -> Result<Option<Cost>, Refusal> {
        if let Some(why) = self.request_refusal() {
            return Err(why);
        }
        if *request == Request::Accept && self.status().is_none_or(|status| status.proposal.is_none()) {
            return Err(outlook::request::Refusal::NoProposal.into());
        }
        self.situation().map_or(Ok(None), |now| Ok(now.check(request)?))
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
            (_, Some(over)) if over.is_over() => Some(outlook::request::Refusal::Over(self.continuation()).into()),
            (_, Some(RunState::Recovering)) => Some(Refusal::KeeperRestarting),
            (Link::Dropped { .. } | Link::Lost { .. }, _) => Some(Refusal::KeeperGone),
            (Link::Waiting, _) | (_, None) => Some(Refusal::NotConnected),
            (Link::Live, Some(_)) => None,
        }
    }

    /// Reports whether an action would currently have an effect.
    #[must_use]
    pub fn is_possible(&self, action: Action) -> bool {
        let takes = |request: Request| self.check_request(&request).is_ok();
        let has_rung = |to: Target| {
            self.request_refusal().is_none() && self.situation().is_some_and(|now| now.resolve(&to).is_ok())
        };
        match action {
            // The preview says why a rung cannot be reached now.
            Action::ShiftDown => has_rung(Target::Down),
            Action::ShiftUp => has_rung(Target::Up),
            Action::Accept => takes(Request::Accept),
            Action::Checkpoint => takes(Request::Checkpoint),
            Action::Restart => takes(Request::Restart),
            Action::Pause if self.run_state() != Some(RunState::Paused) => takes(Request::Pause),
            Action::Alerts => !self.alerts.is_empty(),
            Action::Sort | Action::ReverseSort => self.screen.view == View::Runs,
            Action::Sooner | Action::Later => {
                self.screen.view == View::Runs
                    && !self.read_only
                    && self.runs.chosen().is_some_and(|row| row.place.is_some())
            }
            _ => !action.is_request() || self.request_refusal().is_none(),
        }
    }
}

impl From<outlook::request::Refusal> for Refusal {
    fn from(why: outlook::request::Refusal) -> Self {
        Self::OfRun(why)
    }
}
