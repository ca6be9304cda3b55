//! Response to a worker that ended unasked.

use super::event::Effect;
use super::failures::{Answer, response_in_time};
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Outcome, Start};
use super::machine::Policy;
use super::moves::Move;
use super::reason::{Exhausted, Reason};
use super::shift::Answered;
use crate::config::knobs::Relief;
use crate::faults::response::Response;
use crate::faults::{of_class, plausible_relief};
use crate::format::count;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level};
use std::time::Duration;

impl Policy {
    /// Restarts within the budget, on another rung when that helps against the cause; otherwise ends the run.
    pub(super) fn handle_fault(&mut self, fault: &Fault, now: Duration) -> Vec<Effect> {
        let place = self.position.step.map_or_else(String::new, |step| format!(" at step {}", count(step)));
        let text = format!("worker ended{place}: {}", fault.text);
        let mut effects = vec![Effect::Journal(Level::Error, JournalKind::Worker, text)];
        if self.ended_by_user(fault) {
            return effects.into_iter().chain(self.end_as_asked()).collect();
        }
        self.record_failure(fault, self.position.step.unwrap_or(0));
        let comes_back = self.ledger.failures.comes_back();
        let response = fault.response();
        let response = if self.capability.is_command() { response.of_command() } else { response };
        let response = response_in_time(response, fault, comes_back);
        if let Some(answer) = self.answer_failed_shift(fault, response, now) {
            effects.extend(answer);
            return effects;
        }
        let restarts = self.limits.watch.restarts_without_progress;
        let end = match response {
            Response::Fail => Some(Outcome::Failed(fault.class, Reason::Fault(fault.clone()))),
            Response::Stop => {
                // A full disk costs only the steps since the newest checkpoint.
                let unsaved = (fault.class == FailureClass::DiskFull).then(|| self.unsaved_steps());
                Some(Outcome::NeedsPerson(Reason::NoRestartHelps { fault: fault.clone(), unsaved }))
            }
            _ if restarts == 0 && fault.class.exit_code() != 1 => {
                Some(Outcome::Failed(fault.class, Reason::Fault(fault.clone())))
            }
            Response::Lean if self.ledger.failures.count(fault.class) > 1 => {
                Some(Outcome::NeedsPerson(Reason::HostMemory(fault.clone())))
            }
            _ => self
                .end_of_command(fault)
                .or_else(|| self.end_of_ignored(fault, response))
                .or_else(|| self.end_of_exceptions(fault, comes_back && response == Response::UnlessSame))
                .or_else(|| self.end_of_nan(fault)),
        };
        if let Some(outcome) = end {
            // A failed run announces itself when it ends.
            effects.retain(|_| matches!(outcome, Outcome::NeedsPerson(_)));
            effects.extend(self.put_checkpoints_back());
            effects.extend(self.finish_run(outcome));
            return effects;
        }
        let (start, shift) = self.start_after(fault, response);
        effects.extend(shift);
        effects.extend(self.suspect_checkpoint_or_data());
        if response == Response::Lean {
            let text = "from now on one thread loads the data, one batch ahead".to_owned();
            effects.push(Effect::Journal(Level::Warn, JournalKind::Health, text));
        }
        effects.extend(self.restart_within_budget(start, fault, now));
        effects
    }

    /// Reports whether the user ended an adopted command with Ctrl-C in its own terminal: nothing is wrong, and nothing starts
    /// it again. A command of the run has no terminal that a user types into.
    fn ended_by_user(&self, fault: &Fault) -> bool {
        fault.by_user && self.capability.is_command() && self.limits.times.companion_within.is_none()
    }

    /// Returns the end of the run if its script raised the same exception twice before the first step, at one step after
    /// different checkpoints, or again after the only checkpoint: a mistake in the script or in how it resumes, which another
    /// start repeats. Else the checkpoint may be the cause, or the order of the data.
    fn end_of_exceptions(&self, fault: &Fault, comes_back: bool) -> Option<Outcome> {
        let (fault, step) = (fault.clone(), self.position.step.unwrap_or(0));
        let is_at_load = self.position.loaded == Some(step);
        let reason =
            if is_at_load { Reason::CannotLoad { fault, step } } else { Reason::SameException { fault, step } };
        comes_back.then_some(Outcome::NeedsPerson(reason))
    }

    /// Puts the checkpoints back that the run went back from in vain.
    fn put_checkpoints_back(&self) -> Option<Effect> {
        Some(self.ledger.failures.blameless()).filter(|steps| !steps.is_empty()).map(Effect::PutBack)
    }

    /// Returns the end of the run if no loss was finite since the last restart for this reason, and no rung helps: checkpoints
    /// that are saved meanwhile are no progress.
    fn end_of_nan(&self, fault: &Fault) -> Option<Outcome> {
        let relief = Relief::Numerics;
        let is_unrelieved = fault.class == FailureClass::NonFinite && self.nearest_rung(relief).is_none();
        (is_unrelieved && self.ledger.failures.stays_nan()).then(|| {
            let (fault, unrelieved) = (fault.clone(), Box::new(self.unrelieved(relief)));
            Outcome::NeedsPerson(Reason::NoFiniteLoss { fault, unrelieved })
        })
    }

    /// Returns the next start, and the effects that announce it.
    fn start_after(&mut self, fault: &Fault, response: Response) -> (Start, Vec<Effect>) {
        let (from, step) = (self.rung, self.current_step());
        let mut failed_climb = None;
        if !of_class(fault.class).outside {
            failed_climb = self.ledger.climb.record_fault(from, step);
        }
        let relief = match response {
            Response::Relieve(relief) => Some(relief),
            Response::AgainThen(relief) => self.ledger.failures.is_one_problem(step).then_some(relief),
            _ => None,
        };
        let wanted = failed_climb.or_else(|| relief.and_then(|relief| self.lower_rung(relief)));
        let unchanged = Start::on(from, format!("restart after: {}", fault.text));
        let Some(to) = wanted.filter(|to| *to > from) else {
            let told = relief.and_then(|relief| self.note_no_relief(relief, "the worker restarts unchanged"));
            return (unchanged, told.into_iter().collect());
        };
        let why = if failed_climb.is_some() {
            let again = self.ledger.climb.next_climb(to, step, self.limits.watch.climb);
            let next =
                again.map_or("no further climb".to_owned(), |(left, _)| format!("next one after {left} clean steps"));
            format!("the climb failed; {next}")
        } else {
            let helps = relief.is_some_and(|relief| self.relieves(to, relief));
            if helps { "it helps against the cause" } else { "a safer rung may help" }.to_owned()
        };
        if !self.autopilot() {
            let effects = self.propose_move(Move::Shift { to }, &format!("{}: {why}", fault.text));
            return (unchanged, effects);
        }
        let answers = relief.map(|relief| Answered { relief, text: fault.text.clone() });
        let (start, told) = self.plan_downshift(to, &why, &fault.text, answers);
        (start, vec![told])
    }

    /// Detects bad checkpoints and bad data. The same failure shortly after the same load goes one
    /// checkpoint back. The same failure at the same step, at any distance from the load, skips the data
    /// of that step.
    fn suspect_checkpoint_or_data(&mut self) -> Vec<Effect> {
        if self.ledger.failures.blames_checkpoint() {
            self.ledger.failures.answer_newest(Answer::GoesBack);
            return self.position.loaded.map(Effect::GoBack).into_iter().collect();
        }
        let may_skip = !self.capability.is_command() && self.autopilot() && self.ledger.failures.may_blame_data();
        let place = self.position.step.zip(self.position.clock);
        let Some((step, clock)) = place.filter(|_| may_skip) else { return Vec::new() };
        self.ledger.failures.answer_newest(Answer::SkipsData);
        let text = format!("step {} failed twice in the same way; its data is skipped from now on", count(step + 1));
        let told = Effect::Journal(Level::Warn, JournalKind::Skip, text);
        vec![told, Effect::LeaveOut { from: clock, units: self.position.pace.units_per_step() }]
    }

    /// Plans the next start, as soon as the budget allows it.
    fn restart_within_budget(&mut self, start: Start, fault: &Fault, now: Duration) -> Vec<Effect> {
        match self.ledger.budget.fault(self.position.durable, now, &self.limits.watch) {
            Ok(Duration::ZERO) => self.start_worker(start, now),
            Ok(wait) => {
                let text = format!("no progress since the last fault; the next start is in {} s", wait.as_secs());
                self.life = Lifecycle::BackingOff { start, until: now + wait };
                vec![Effect::Journal(Level::Warn, JournalKind::Run, text)]
            }
            Err(spent) => self.try_safer_rung(start, fault, spent, now),
        }
    }

    /// Tries the safer rungs that the run has not used since its last progress, one after the other, before it ends the run.
    fn try_safer_rung(&mut self, start: Start, fault: &Fault, spent: Exhausted, now: Duration) -> Vec<Effect> {
        let may_start = self.limits.watch.restarts_without_progress > 0;
        if start.rung > self.worker.rung {
            if may_start {
                return self.start_worker(start, now);
            }
            self.cancel_shift();
        }
        let relief = plausible_relief(fault.class, fault.xid).filter(|_| may_start);
        let Some((relief, to)) = relief.and_then(|relief| Some((relief, self.lower_rung(relief)?))) else {
            return self.end_without_progress(fault, spent);
        };
        let why = format!("{spent}; a safer rung may help");
        if self.autopilot() {
            let answers = Answered { relief, text: fault.text.clone() };
            return self.start_below(to, &why, answers, now);
        }
        let mut effects = self.propose_move(Move::Shift { to }, &format!("{}: {why}", fault.text));
        effects.extend(self.end_without_progress(fault, spent));
        effects
    }

    /// Ends a run that makes no progress, and names all that was tried or proposed.
    fn end_without_progress(&mut self, fault: &Fault, spent: Exhausted) -> Vec<Effect> {
        let response = fault.response();
        let unrelieved = response.relief().or_else(|| plausible_relief(fault.class, fault.xid));
        let unrelieved = unrelieved.filter(|relief| self.nearest_rung(*relief).is_none());
        let unrelieved = unrelieved.map(|relief| Box::new(self.unrelieved(relief)));
        // Other causes seldom need a rung; if one was tried, its failure is worth a word.
        let unrelieved = unrelieved.filter(|it| matches!(response, Response::Relieve(_)) || it.why.is_some());
        let (proposed, restored) = (self.proposal().map(|proposal| proposal.does), self.put_checkpoints_back());
        let puts_back = restored.is_some();
        let why = Reason::NoProgress { spent, fault: fault.clone(), proposed, unrelieved, puts_back };
        restored.into_iter().chain(self.finish_run(Outcome::NeedsPerson(why))).collect()
    }
}
