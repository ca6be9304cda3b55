//! Which requests a run takes now: what each would cost, and why one is refused.

use super::continuation::{Continuation, NewRun};
use super::cost::{Cost, Reached, lost};
use crate::protocol::capability::{Capability, Level};
use crate::protocol::control::{Request, RunState, Target};

/// The facts that decide about a request.
#[derive(Debug, Clone)]
pub struct Situation<'a> {
    /// The state of the run.
    pub state: RunState,
    /// A worker lives, and may continue.
    pub is_running: bool,
    /// The worker ends, and none follows.
    pub is_ending: bool,
    /// Abilities of the worker.
    pub capability: Capability,
    /// The worker may still say that it saves and resumes.
    pub may_learn_more: bool,
    /// How far the run has come.
    pub reached: Reached,
    /// The rung.
    pub rung: usize,
    /// The names of the rungs, fastest first.
    pub rungs: Vec<&'a str>,
    /// The rung that a step down leads to: the next one, unless it would change nothing here.
    pub below: usize,
    /// How the run continues once it is over.
    pub continuation: Continuation,
    /// How the command starts again in a new run, if it is one.
    pub again: Option<&'a NewRun>,
}

impl Situation<'_> {
    /// Returns what a request would cost now: none if no worker ends for it.
    ///
    /// # Errors
    /// Returns why the run does not take it.
    pub fn check(&self, request: &Request) -> Result<Option<Cost>, Refusal> {
        if self.state.is_over() {
            return Err(Refusal::Over(self.continuation.clone()));
        }
        match request {
            Request::Shift { to } => {
                self.resolve(to)?;
                if self.is_ending {
                    return Err(Refusal::Ending { resume: self.continuation.command.clone() });
                }
                self.check_end()
            }
            Request::Checkpoint if !self.is_running => Err(Refusal::NothingToSave),
            Request::Checkpoint => self.check_save().map(|()| None),
            Request::Restart if !self.is_running => Err(Refusal::NothingToRestart),
            Request::Pause if self.state == RunState::Paused => Err(Refusal::AlreadyPaused),
            Request::Pause if self.state == RunState::Stopping => Err(Refusal::WorkerEnding),
            Request::Restart | Request::Pause => self.check_end(),
            Request::Accept
            | Request::Autopilot { .. }
            | Request::Prune
            | Request::Resume
            | Request::StandBy { .. }
            | Request::Stop
            | Request::Subscribe => Ok(None),
        }
    }

    /// Returns the rung that a shift means.
    ///
    /// # Errors
    /// Returns why there is none.
    pub fn resolve(&self, to: &Target) -> Result<usize, Refusal> {
        let (here, rungs) = (self.rung, &self.rungs);
        let name = || rungs.get(here).map_or_else(String::new, |name| (*name).to_owned());
        let target = match to {
            Target::Down | Target::Up if rungs.len() == 1 => return Err(Refusal::OnlyRung(name())),
            Target::Down if here + 1 >= rungs.len() => return Err(Refusal::SafestRung(name())),
            Target::Up if here == 0 => return Err(Refusal::FastestRung(name())),
            Target::Down => self.below.clamp(here + 1, rungs.len() - 1),
            Target::Up => here - 1,
            Target::Rung(name) => rungs
                .iter()
                .position(|rung| rung == name)
                .or_else(|| name.parse().ok().filter(|number| *number < rungs.len()))
                .ok_or_else(|| Refusal::UnknownRung {
                    name: name.clone(),
                    ladder: rungs.iter().map(|rung| (*rung).to_owned()).collect(),
                })?,
        };
        if target == here { Err(Refusal::SameRung(name())) } else { Ok(target) }
    }

    /// Returns what an end of a live worker costs, if it is to start again.
    ///
    /// # Errors
    /// Returns why it must not end.
    pub fn check_end(&self) -> Result<Option<Cost>, Refusal> {
        if !self.is_running {
            return Ok(None);
        }
        let Self { capability, reached, .. } = *self;
        match Cost::of(capability, reached) {
            _ if !capability.may_end => Err(Refusal::NotOurs),
            Some(cost) => Ok(Some(cost)),
            None if self.may_learn_more => Err(Refusal::NotKnownYet),
            None if capability.level() == Some(Level::Command) => {
                let advice = self.again.map_or_else(String::new, |again| format!("; {}", again.advice()));
                Err(Refusal::LosesEverything { steps: reached.taken, advice })
            }
            None => Err(Refusal::NothingSaved { steps: reached.taken }),
        }
    }

    fn check_save(&self) -> Result<(), Refusal> {
        match self.capability.saves_on_request() {
            true => Ok(()),
            false if self.may_learn_more => Err(Refusal::NotKnownYet),
            false => Err(Refusal::CannotAskToSave),
        }
    }
}

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
    #[error("this would lose {}: nothing resumes the command{advice}", lost(*.steps))]
    LosesEverything {
        /// The steps taken so far.
        steps: u64,
        /// The way to make it resume, after a semicolon.
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
    /// Nothing asks the command to save.
    #[error(
        "the command cannot be asked to save; if its script saves on a signal or when a file appears, write `save: {{ signal: USR1 }}` or `save: {{ touch: FILE }}` into its run file"
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
    /// The ladder has one rung.
    #[error("{0} is the only rung; a `ladder:` in the run file adds others (`downshift init` proposes one)")]
    OnlyRung(String),
    /// The run is on its last rung.
    #[error("{0} is the safest rung")]
    SafestRung(String),
    /// The run is on its first rung.
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
    /// The keeper proposes nothing.
    #[error("nothing is proposed")]
    NoProposal,
    /// The proposal needs a worker.
    #[error("no worker is running; wait for the next one")]
    NoWorker,
    /// The proposal is out of date.
    #[error("the run has moved on")]
    MovedOn,
}
