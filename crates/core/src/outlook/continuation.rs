//! How a run continues after its end: decided here, and rendered everywhere else.

use crate::format::{count, quoted};
use crate::protocol::capability::Capability;
use crate::protocol::control::{RunState, Status};
use std::fmt;

/// How a run continues, and the command that makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// The effect of the command.
    pub how: How,
    /// The command to type.
    pub command: String,
}

/// The effect of a command that continues a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `resume` continues the run from the checkpoint of this step.
    Resume(u64),
    /// `resume` starts the run from the beginning: it has no checkpoint.
    StartOver,
    /// Nothing of the run can be resumed; its command line starts a new one.
    RunAgain,
    /// The command runs on without a keeper, and `resume` gives it one.
    TakeOver,
    /// The run has trained to its end: `resume` refuses, and says how to train longer.
    Nothing,
}

impl Continuation {
    /// Returns the effect of the command in two words and an object.
    #[must_use]
    pub fn effect(&self) -> &'static str {
        match self.how {
            How::Resume(_) => "continues it",
            How::StartOver => "starts it over",
            How::RunAgain => "starts it anew",
            How::TakeOver => "takes it over",
            How::Nothing => "trains no further",
        }
    }
}

impl fmt::Display for Continuation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            How::Nothing => return write!(formatter, "it has trained to its end"),
            _ => write!(formatter, "`{}` {}", self.command, self.effect())?,
        }
        match self.how {
            How::Resume(step) => write!(formatter, " from step {}", count(step)),
            How::StartOver | How::RunAgain => write!(formatter, " from the beginning"),
            How::TakeOver | How::Nothing => Ok(()),
        }
    }
}

/// The commands that can continue a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// `downshift resume` with the run's name.
    pub resume: String,
    /// How the command of the run starts again in a new run; none for a built-in worker.
    pub again: Option<NewRun>,
    /// Abilities of the worker, as far as the run file tells.
    pub capability: Capability,
}

/// How the command of a run starts again in a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// The command to type.
    pub command: String,
    /// The command that writes a run file; none if the run has one.
    pub init: Option<String>,
}

impl NewRun {
    /// Says what makes the command go on after a failure.
    #[must_use]
    pub fn advice(&self) -> String {
        match &self.init {
            Some(init) => format!("`{init}` writes a run file that says how the script can continue"),
            None => {
                "`checkpoints` and `resume` in its run file, or `downshift.attach` in a PyTorch loop, let it continue; \
                     `restart: from_start` lets it start over"
                    .to_owned()
            }
        }
    }
}

impl Commands {
    /// Returns the commands of a run with a built-in worker.
    #[must_use]
    pub fn built_in(resume: impl Into<String>) -> Self {
        Self { resume: resume.into(), again: None, capability: Capability::BUILT_IN }
    }

    /// Returns how a run continues of which nothing but this status is known.
    #[must_use]
    pub fn after_status(&self, status: &Status, is_watched: bool) -> Continuation {
        let has_harness = status.state == RunState::Unattended && status.pid_worker.is_some();
        if has_harness || is_watched {
            return self.by_resume(How::TakeOver);
        }
        if status.is_trained() {
            return self.by_resume(How::Nothing);
        }
        // A paused command has lost nothing: a pause that would lose steps is refused. Nor has one that never ran.
        let has_run = status.state != RunState::Paused && status.attempts > 0;
        let capability = self.capability.as_recorded(status);
        let is_lost = has_run && !capability.may_restart();
        // Checkpoints of a command without arguments to resume are watched, and never given to it.
        let mut way = self.after(is_lost, status.durable_step.filter(|_| capability.can_resume()));
        if let Some(rung) = status.proven_rung().and_then(|rung| status.rungs.get(rung)).filter(|_| !is_lost) {
            way.command = format!("{} --rung {}", way.command, quoted(&rung.name));
        }
        way
    }

    /// Returns how a run continues that has steps left. `is_lost`: its command can neither resume nor start over; `durable`: the
    /// step of the newest checkpoint that it resumes from.
    #[must_use]
    pub fn after(&self, is_lost: bool, durable: Option<u64>) -> Continuation {
        match self.again.as_ref().filter(|_| is_lost) {
            Some(again) => Continuation { how: How::RunAgain, command: again.command.clone() },
            None => self.by_resume(durable.map_or(How::StartOver, How::Resume)),
        }
    }

    /// Returns what `resume` does.
    #[must_use]
    pub fn by_resume(&self, how: How) -> Continuation {
        Continuation { how, command: self.resume.clone() }
    }
}

impl Status {
    /// Reports whether `resume` has nothing left to train. Nobody knows how a command would train on, and a built-in worker has
    /// steps left after a checkpoint before its end.
    #[must_use]
    pub fn is_trained(&self) -> bool {
        self.state == RunState::Finished && (self.level.is_some() || self.durable_step == Some(self.step))
    }
}

#[cfg(test)]
mod tests {
    use super::{Commands, NewRun};
    use crate::protocol::blank;
    use crate::protocol::capability::{Capability, Resumption};
    use crate::protocol::control::RunState;
    use serde_json::{from_value, json};

    #[test]
    fn a_run_continues_as_far_as_something_resumes_it() {
        let again = NewRun { command: "downshift run -- ./train".to_owned(), init: None };
        let nothing = Capability { resumes: Resumption::Nothing, may_start_over: false, ..Capability::BUILT_IN };
        let commands = Commands { resume: "downshift resume x".to_owned(), again: Some(again), capability: nothing };
        let files = Capability { resumes: Resumption::Checkpoints, ..nothing };
        let mut status = blank::status();
        let mut way = |state, level, durable, attempts| {
            (status.state, status.level, status.durable_step, status.attempts) = (state, level, durable, attempts);
            let capability = if level == Some(1) { files } else { nothing };
            Commands { capability, ..commands.clone() }.after_status(&status, false).to_string()
        };
        let anew = "`downshift run -- ./train` starts it anew from the beginning";
        for state in [RunState::Stopped, RunState::Failed, RunState::NeedsPerson, RunState::Interrupted] {
            assert_eq!(way(state, Some(0), Some(40), 1), anew);
            assert_eq!(way(state, Some(1), Some(4000), 1), "`downshift resume x` continues it from step 4 000");
            let over = "`downshift resume x` starts it over from the beginning";
            assert_eq!(way(state, Some(1), None, 1), over);
            assert_eq!(way(state, Some(0), None, 0), over, "it never ran, so it has nothing to lose");
            assert_eq!(way(state, Some(0), Some(40), 0), over, "nothing gives the checkpoint to the command");
        }
        assert_eq!(way(RunState::Finished, Some(1), Some(40), 1), "it has trained to its end");
        assert_eq!(way(RunState::Finished, None, Some(0), 1), "it has trained to its end");
    }

    #[test]
    fn a_run_file_that_was_edited_after_the_end_counts_as_it_is_now() {
        let nothing = Capability { resumes: Resumption::Nothing, may_start_over: false, ..Capability::BUILT_IN };
        let again = Some(NewRun { command: "downshift run -- ./train".to_owned(), init: None });
        let edited = Capability { may_start_over: true, ..nothing };
        let commands = Commands { resume: "downshift resume x".to_owned(), again, capability: edited };
        let mut status = blank::status();
        (status.state, status.level, status.capability) = (RunState::Failed, Some(0), Some(nothing));
        assert_eq!(commands.after_status(&status, false).how, super::How::StartOver);
    }

    #[test]
    fn a_run_that_ended_on_a_rung_without_a_step_goes_on_with_the_rung_that_carried_it() {
        let mut status = blank::status();
        (status.state, status.rung, status.durable_step) = (RunState::NeedsPerson, 1, Some(500));
        let mut way = |steps: u64| {
            let record = |name: &str, steps: u64| {
                from_value(json!({ "name": name, "steps": steps, "fault": ["exit code 2", 500] })).unwrap()
            };
            status.rungs = vec![record("full", 500), record("small batch", steps)];
            Commands::built_in("downshift resume x").after_status(&status, false).command
        };
        assert_eq!(way(0), "downshift resume x --rung full");
        assert_eq!(way(3), "downshift resume x");
    }
}
