//! Response to a worker that ended unasked.

use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Outcome, Start};
use super::machine::Policy;
use super::moves::Move;
use super::reason::{Exhausted, Reason};
use super::recurrence::response_in_time;
use super::relapse::is_soon;
use super::shift::Answered;
use crate::config::knobs::Relief;
use crate::faults::response::Response;
use crate::faults::{of_class, plausible_relief};
use crate::format::count;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level};
use std::time::Duration;

/// Two hangs or crashes within this many steps count as one problem.
const ONE_PROBLEM: u64 = 2000;

impl Policy {
    /// Restarts within the budget, on another rung when that relieves the cause; otherwise ends the run.
    pub(super) fn handle_fault(&mut self, fault: &Fault, now: Duration) -> Vec<Effect> {
        let place = self.position.step.map_or_else(String::new, |step| format!(" at step {}", count(step)));
        let text = format!("worker ended{place}: {}", fault.text);
        let mut effects = vec![Effect::Journal(Level::Error, JournalKind::Worker, text)];
        if self.ended_by_user(fault) {
            return effects.into_iter().chain(self.end_as_asked()).collect();
        }
        let comes_back = self.comes_back(fault);
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
            Response::Lean if self.ledger.lean => Some(Outcome::NeedsPerson(Reason::HostMemory(fault.clone()))),
            _ => self
                .end_of_command(fault)
                .or_else(|| self.end_of_ignored(fault, response))
                .or_else(|| self.end_of_exceptions(fault, comes_back && response == Response::UnlessSame))
                .or_else(|| self.end_of_nan(fault)),
        };
        if let Some(outcome) = end {
            // A failed run announces itself when it ends.
            effects.retain(|_| matches!(outcome, Outcome::NeedsPerson(_)));
            effects.extend(self.acquit_checkpoints(fault));
            effects.extend(self.finish_run(outcome));
            return effects;
        }
        let (start, shift) = self.start_after(fault, response);
        effects.extend(shift);
        effects.extend(self.suspect_checkpoint_or_data(fault));
        if response == Response::Lean {
            self.ledger.lean = true;
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

    /// Returns the end of the run if its script raised the same exception twice before the first step, or at one step after
    /// different checkpoints: a mistake in the script, which another start repeats. Else the checkpoint may be the cause, or
    /// the order of the data.
    fn end_of_exceptions(&self, fault: &Fault, comes_back: bool) -> Option<Outcome> {
        let step = self.position.step.unwrap_or(0);
        comes_back.then(|| Outcome::NeedsPerson(Reason::SameException { fault: fault.clone(), step }))
    }

    /// Puts checkpoints back that an exception of the script seemed to blame, now that it came after another one, too.
    fn acquit_checkpoints(&mut self, fault: &Fault) -> Option<Effect> {
        let (loaded, step) = (self.position.loaded, self.position.step);
        let kind = fault.kind.as_deref().filter(|_| fault.class == FailureClass::Exception);
        let relapse = &mut self.ledger.budget.relapse;
        relapse.fault(loaded, step, kind);
        Some(relapse.take_innocent(self.position.durable)).filter(|steps| !steps.is_empty()).map(Effect::PutBack)
    }

    /// Returns the end of the run if no loss was finite since the last restart for this reason, and no rung helps: checkpoints
    /// that are saved meanwhile are no progress. Soon after a load, the checkpoint may be the cause, and an older one helps.
    fn end_of_nan(&mut self, fault: &Fault) -> Option<Outcome> {
        let relief = Relief::Numerics;
        let is_unrelieved = fault.class == FailureClass::NonFinite && self.nearest_rung(relief).is_none();
        let again = is_unrelieved && self.ledger.ended_in_nan && !is_soon(self.position.loaded, self.position.step);
        self.ledger.ended_in_nan = is_unrelieved;
        again.then(|| {
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
            Response::AgainThen(relief) => {
                let again = self.ledger.restarted_at.is_some_and(|at| step.abs_diff(at) < ONE_PROBLEM);
                self.ledger.restarted_at = Some(step);
                again.then_some(relief)
            }
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
            if helps { "it relieves the cause" } else { "a safer rung may help" }.to_owned()
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
    fn suspect_checkpoint_or_data(&mut self, fault: &Fault) -> Vec<Effect> {
        let (loaded, step) = (self.position.loaded, self.position.step);
        if self.ledger.budget.relapse.fault(loaded, step, fault.kind.as_deref()) {
            return loaded.map(Effect::GoBack).into_iter().collect();
        }
        let may_be_data = matches!(fault.class, FailureClass::Panic | FailureClass::Crash | FailureClass::Unknown);
        let Some((step, kind)) = step.zip(fault.kind.clone()).filter(|_| may_be_data) else { return Vec::new() };
        let again = self.ledger.poison.as_ref() == Some(&(step, kind.clone()));
        self.ledger.poison = Some((step, kind)).filter(|_| !again);
        match self.position.clock {
            Some(clock)
                if again
                    && !self.capability.is_command()
                    && self.autopilot()
                    && self.ledger.left_out != Some(clock) =>
            {
                self.ledger.left_out = Some(clock);
                let text =
                    format!("step {} failed twice in the same way; its data is skipped from now on", count(step + 1));
                let told = Effect::Journal(Level::Warn, JournalKind::Skip, text);
                vec![told, Effect::LeaveOut { from: clock, units: self.position.pace.units_per_step() }]
            }
            _ => Vec::new(),
        }
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
        let innocent = self.ledger.budget.relapse.take_innocent(self.position.durable);
        let (proposed, put_back) = (self.proposal().map(|proposal| proposal.does), !innocent.is_empty());
        let why = Reason::NoProgress { spent, fault: fault.clone(), proposed, unrelieved, put_back };
        let put_back = put_back.then_some(Effect::PutBack(innocent));
        put_back.into_iter().chain(self.finish_run(Outcome::NeedsPerson(why))).collect()
    }
}
