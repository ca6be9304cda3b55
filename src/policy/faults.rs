//! Response to a worker that ended unasked.

use super::budget::Verdict;
use super::event::Effect;
use super::fault::Fault;
use super::ledger::Raised;
use super::lifecycle::{Lifecycle, Outcome, Start};
use super::machine::Policy;
use super::moves::{At, Move};
use super::relapse::is_soon;
use super::response::{Response, is_outside, response};
use crate::config::knobs::Relief;
use crate::format::count;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level};
use std::time::Duration;

/// Two hangs within this many steps count as one problem.
const HANGS_TOGETHER: u64 = 2000;

impl Policy {
    /// Restarts within the budget, on another rung when that relieves the cause; otherwise ends the run.
    pub(super) fn handle_fault(&mut self, fault: &Fault, now: Duration) -> Vec<Effect> {
        let place = self.position.step.map_or_else(String::new, |step| format!(" at step {}", count(step)));
        let text = format!("worker ended{place}: {}", fault.text);
        let mut effects = vec![Effect::Journal(Level::Error, JournalKind::Worker, text)];
        let response = self.response_of_task(response(fault.class, fault.xid));
        let restarts = self.limits.watch.restarts_without_progress;
        let end = match response {
            Response::Fail => Some(Outcome::Failed(fault.class, fault.text.clone())),
            // A full disk costs only the steps since the newest checkpoint.
            Response::Stop(advice) if fault.class == FailureClass::DiskFull => {
                let advice = advice.sentence(self.go_on_command());
                Some(Outcome::NeedsPerson(format!("{}; {}; {advice}", fault.text, self.unsaved_steps())))
            }
            Response::Stop(advice) => {
                Some(Outcome::NeedsPerson(format!("{}; {}", fault.text, advice.sentence(self.go_on_command()))))
            }
            _ if restarts == 0 && fault.class.exit_code() != 1 => {
                Some(Outcome::Failed(fault.class, fault.text.clone()))
            }
            Response::Lean if self.ledger.lean => Some(Outcome::NeedsPerson(format!(
                "{}, again with the smallest loader: lower training.loader, or free host memory",
                fault.text
            ))),
            _ => self
                .end_of_command(fault)
                .or_else(|| self.end_of_ignored(fault, response))
                .or_else(|| self.end_of_exceptions(fault))
                .or_else(|| self.end_of_nan(fault)),
        };
        if let Some(outcome) = end {
            // A failed run announces itself when it ends.
            effects.retain(|_| matches!(outcome, Outcome::NeedsPerson(_)));
            effects.extend(self.acquit_checkpoints(fault));
            effects.extend(self.finish_run(outcome));
            return effects;
        }
        let (rung, reason, shift) = self.rung_after(fault, response);
        effects.extend(shift);
        effects.extend(self.suspect_checkpoint_or_data(fault));
        if response == Response::Lean {
            self.ledger.lean = true;
            let text = "from now on one thread loads the data, one batch ahead".to_owned();
            effects.push(Effect::Journal(Level::Warn, JournalKind::Health, text));
        }
        effects.extend(self.restart_within_budget(Start::on(rung, reason), fault, now));
        effects
    }

    /// Returns the end of the run if its script raised the same exception twice before the first step, or at one step after
    /// different checkpoints: a mistake in the script, which another start repeats. Else the checkpoint may be the cause, or
    /// the order of the data.
    fn end_of_exceptions(&mut self, fault: &Fault) -> Option<Outcome> {
        let (step, loaded) = (self.position.step.unwrap_or(0), self.position.loaded);
        let raised =
            (fault.class == FailureClass::Exception).then(|| Raised { text: fault.text.clone(), step, loaded });
        let is_same = |before: &Raised, now: &Raised| {
            let is_at_begin = now.step == 0 && now.loaded.is_none();
            before.text == now.text && before.step == now.step && (is_at_begin || now.loaded != before.loaded)
        };
        let again =
            self.ledger.raised_at.as_ref().zip(raised.as_ref()).is_some_and(|(before, now)| is_same(before, now));
        self.ledger.raised_at = raised;
        again.then(|| {
            let place =
                if step == 0 { "before the first step".to_owned() } else { format!("after step {}", count(step)) };
            let way = format!("correct the script, then `{}`", self.go_on_command());
            Outcome::NeedsPerson(format!("{}, twice in the same way {place}: {way}", fault.text))
        })
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
            let (unrelieved, rung) = (self.describe_unrelieved(relief), self.suggest_rung(relief, At::End));
            Outcome::NeedsPerson(format!("{}, and no finite loss since the restart; {unrelieved}: {rung}", fault.text))
        })
    }

    /// Returns the rung for the next start, the reason for it, and the effects that announce it.
    fn rung_after(&mut self, fault: &Fault, response: Response) -> (usize, String, Vec<Effect>) {
        let (from, step) = (self.rung, self.current_step());
        let mut failed_climb = None;
        if !is_outside(fault.class) {
            failed_climb = self.ledger.climb.record_fault(from, step);
        }
        let relief = match response {
            Response::Relieve(relief) => Some(relief),
            Response::AgainThen(relief) => {
                let again = self.ledger.hung_at.is_some_and(|at| step.abs_diff(at) < HANGS_TOGETHER);
                self.ledger.hung_at = Some(step);
                again.then_some(relief)
            }
            _ => None,
        };
        let careful = || self.safest_rung().filter(|_| response == Response::Relieve(Relief::Kernels));
        let wanted = failed_climb.or_else(|| relief.and_then(|relief| self.nearest_rung(relief).or_else(careful)));
        let unchanged = format!("restart after: {}", fault.text);
        let Some(to) = wanted.filter(|to| *to > from) else {
            let told = relief.and_then(|relief| self.note_no_relief(relief, "the worker restarts unchanged"));
            return (from, unchanged, told.into_iter().collect());
        };
        let why = if failed_climb.is_some() {
            let again = self.ledger.climb.next_climb(to, step, self.limits.watch.climb);
            let next =
                again.map_or("no further climb".to_owned(), |(left, _)| format!("next one after {left} clean steps"));
            format!("the climb failed; {next}")
        } else {
            "it relieves the cause".to_owned()
        };
        if !self.autopilot() {
            let effects = self.propose_move(Move::Shift { to }, &format!("{}: {why}", fault.text));
            return (from, unchanged, effects);
        }
        if failed_climb.is_none() {
            self.ledger.climb.record_downshift(from, to, step);
        }
        self.ledger.proposal = None;
        let way = format!("shift down: {} → {}", self.rung_name(from), self.rung_name(to));
        let told = Effect::Journal(Level::Warn, JournalKind::Shift, format!("{way}, by the keeper: {why}"));
        (to, format!("{way} after: {}", fault.text), vec![told])
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
                    && self.limits.command.is_none()
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
            Verdict::Restart(Duration::ZERO) => self.start_worker(start, now),
            Verdict::Restart(wait) => {
                let text = format!("no progress since the last fault; the next start is in {} s", wait.as_secs());
                self.life = Lifecycle::BackingOff { start, until: now + wait };
                vec![Effect::Journal(Level::Warn, JournalKind::Run, text)]
            }
            Verdict::Exhausted(what) => {
                let proposed = self.proposal().map_or_else(String::new, |it| format!("; the keeper {}", it.does));
                let relief = match response(fault.class, fault.xid) {
                    Response::Relieve(relief) if self.nearest_rung(relief).is_none() => Some(relief),
                    _ => None,
                };
                let advice = relief.map_or_else(String::new, |relief| {
                    format!("; {}: {}", self.describe_unrelieved(relief), self.suggest_rung(relief, At::End))
                });
                let innocent = self.ledger.budget.relapse.take_innocent(self.position.durable);
                let acquitted = match &innocent[..] {
                    [] => "",
                    _ => "; an older checkpoint failed in the same way, so the newest is put back if it is whole",
                };
                let why = format!("{what}; the last worker: {}{proposed}{advice}{acquitted}", fault.text);
                let put_back = Some(innocent).filter(|steps| !steps.is_empty()).map(Effect::PutBack);
                put_back.into_iter().chain(self.finish_run(Outcome::NeedsPerson(why))).collect()
            }
        }
    }
}
