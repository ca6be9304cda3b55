//! A shift is on trial until its rung takes a step. A rung that cannot start costs the run nothing: it goes back to the
//! rung that it left, with the newest checkpoint, and the keeper does not choose that rung again by itself.
//!
//! ```text
//!  begin ─▶ open ── first step ─▶ over
//!            └──── failure before it ─▶ back to the rung it left; or, if that one failed too,
//!                                       on to the next rung that relieves the fault, else to you
//! ```

use super::climb::Climb;
use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::{Outcome, Start};
use super::machine::Policy;
use super::moves::Move;
use super::reason::{NoEffect, Reason};
use crate::config::knobs::Relief;
use crate::faults::of_class;
use crate::faults::response::Response;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A shift whose rung has not taken a step yet. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// The rung that the run left.
    from: usize,
    /// The rung that has to prove itself.
    to: usize,
    /// The way back up the ladder as it was before the shift.
    climb: Climb,
    /// The fault of the rung it left, if the shift answers one.
    answers: Option<Answered>,
    /// Rungs that were tried since, and took no step either.
    failed: Vec<usize>,
    /// The rung failed once for a reason that may pass.
    is_retry: bool,
}

/// A fault that a shift answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The relief that the rung has to offer.
    pub relief: Relief,
    /// The fault, as a sentence.
    pub text: String,
}

impl Shift {
    /// Returns the rung that has to prove itself.
    #[cfg(test)]
    pub(super) fn target(&self) -> usize {
        self.to
    }
}

impl Answered {
    /// Reports whether the rung that failed would meet the fault again, with no chance that a restart survives it.
    fn comes_back(&self) -> bool {
        matches!(self.relief, Relief::Memory | Relief::Numerics)
    }
}

impl Policy {
    /// Begins a shift, before anything else changes. A rung that was not proven yet is skipped on the way back.
    pub(super) fn begin_shift(&mut self, to: usize, answers: Option<Answered>) {
        let new = Shift {
            from: self.rung,
            to,
            climb: self.ledger.climb.clone(),
            answers,
            failed: Vec::new(),
            is_retry: false,
        };
        let shift = match self.ledger.shift.take() {
            // The fault of a rung in between is not that of the rung to go back to.
            Some(open) => Shift { to, is_retry: false, ..open },
            None => new,
        };
        self.ledger.shift = Some(shift).filter(|shift| shift.from != to);
    }

    /// Puts a rung on trial that has not taken a step in a run that took its steps on rung `from`: an earlier version, which
    /// knew no trial, ended there.
    pub fn put_on_trial(&mut self, from: usize) {
        let to = self.rung;
        let (climb, failed) = (self.ledger.climb.clone(), Vec::new());
        let new = || Shift { from, to, climb, answers: None, failed, is_retry: false };
        if from != to {
            self.ledger.shift.get_or_insert_with(new);
        }
    }

    /// Takes back a shift whose first worker was never started, because the one before it could not save.
    pub(super) fn cancel_shift(&mut self) {
        let running = self.worker.rung;
        self.rung = running;
        if let Some(shift) = self.ledger.shift.take() {
            self.ledger.climb = shift.climb.clone();
            self.ledger.shift = Some(Shift { to: running, ..shift }).filter(|shift| shift.from != running);
        }
    }

    /// Forgets a shift that does not fit the ladder, which may be another one since the run file was edited.
    pub(super) fn check_shift(&mut self) {
        let (rung, rungs) = (self.rung, self.limits.rungs.len());
        self.ledger.shift.take_if(|shift| shift.to != rung || shift.from >= rungs);
    }

    /// Ends the trial: the rung of the living worker takes steps.
    pub(super) fn prove_rung(&mut self) {
        let rung = self.worker.rung;
        self.ledger.shift.take_if(|shift| shift.to == rung);
        self.ledger.unusable.remove(&rung);
    }

    /// Returns why a rung cannot start here, if it was tried.
    #[must_use]
    pub fn unusable(&self, rung: usize) -> Option<&str> {
        self.ledger.unusable.get(&rung).map(String::as_str)
    }

    /// Returns the lower rung that would relieve a problem if it could start.
    pub(super) fn find_unusable(&self, relief: Relief) -> Option<NoEffect> {
        let may_help = |rung: &usize| relief == Relief::Kernels || self.relieves(*rung, relief);
        let mut below = (self.rung + 1..self.limits.rungs.len()).filter(may_help);
        below.find_map(|rung| {
            let fault = self.unusable(rung)?.to_owned();
            Some(NoEffect::CannotStart { rung: self.rung_name(rung).to_owned(), fault })
        })
    }

    /// Reports whether the keeper may choose a rung by itself: it has not failed to start.
    pub(super) fn may_choose(&self, rung: usize) -> bool {
        let failed = self.ledger.shift.as_ref().is_some_and(|shift| shift.failed.contains(&rung));
        !failed && self.unusable(rung).is_none()
    }

    /// Returns the lower rung that is most likely to end a fault: the nearest one with this relief. Many causes look like
    /// one of kernels, so then the safest rung may help, too.
    pub(super) fn lower_rung(&self, relief: Relief) -> Option<usize> {
        let careful = || self.safest_rung().filter(|_| relief == Relief::Kernels);
        self.nearest_rung(relief).or_else(careful)
    }

    /// Answers a fault of a rung that has taken no step since the shift to it; none if another rule answers it.
    pub(super) fn answer_failed_shift(
        &mut self,
        fault: &Fault,
        response: Response,
        now: Duration,
    ) -> Option<Vec<Effect>> {
        let running = self.worker.rung;
        self.ledger.shift.as_ref().filter(|shift| shift.to == running)?;
        let may_restart = self.end_of_command(fault).is_none();
        if !may_restart || is_beyond_rungs(fault.class, response) || self.may_pass_on_retry(fault, response, now) {
            return None;
        }
        if let Some(shift) = &mut self.ledger.shift {
            shift.failed.push(running);
        }
        let is_too_large = response == Response::Relieve(Relief::Memory);
        if is_too_large && self.autopilot() && self.nearest_rung(Relief::Memory).is_some() {
            return None;
        }
        Some(self.end_shift(fault, now))
    }

    /// Reports whether the rung is started once more, as the failure may pass.
    fn may_pass_on_retry(&mut self, fault: &Fault, response: Response, now: Duration) -> bool {
        let is_passing = fault.may_pass || of_class(fault.class).outside || fault.class == FailureClass::Collective;
        let restarts = !(response == Response::Lean && self.ledger.failures.count(fault.class) > 1)
            && self.ledger.budget.allows_restart(self.position.durable, now, &self.limits.watch);
        let first = self.ledger.shift.as_mut().is_some_and(|shift| !std::mem::replace(&mut shift.is_retry, true));
        is_passing && restarts && first
    }

    /// Ends a shift whose rung cannot start. Costs no restart: each rung fails so once.
    fn end_shift(&mut self, fault: &Fault, now: Duration) -> Vec<Effect> {
        let Some(shift) = self.ledger.shift.clone() else { return Vec::new() };
        let (failed, back) = (self.rung_name(shift.to).to_owned(), self.rung_name(shift.from).to_owned());
        self.ledger.unusable.insert(shift.to, fault.text.clone());
        self.ledger.failures.forget_trial();
        self.ledger.proposal.take_if(|proposal| leads_to(&proposal.what, shift.to));
        self.ledger.climb = shift.climb.clone();
        self.ledger.climb.record_disturbance(self.current_step());
        self.rung = shift.from;
        let next = shift.answers.as_ref().filter(|_| self.autopilot());
        match next.map(|answered| (answered, self.lower_rung(answered.relief))) {
            Some((answered, Some(to))) => {
                let why = format!("{failed} cannot start here");
                self.start_below(to, &why, answered.clone(), now)
            }
            Some((answered, None)) if answered.comes_back() => {
                self.ledger.shift = None;
                let (answers, fault) = (answered.clone(), fault.clone());
                self.finish_run(Outcome::NeedsPerson(Reason::RungCannotStart { answers, rung: failed, fault }))
            }
            _ => {
                self.ledger.shift = None;
                let way = format!("shift back: {failed} → {back}");
                let text = format!(
                    "{way}, by the keeper: {failed} cannot start here; it is used again only if you shift to it"
                );
                let mut effects = vec![Effect::Journal(Level::Warn, JournalKind::Shift, text)];
                effects.extend(self.start_worker(Start::on(shift.from, format!("{way} after: {}", fault.text)), now));
                effects
            }
        }
    }

    /// Shifts down from a rung whose worker has ended.
    pub(super) fn start_below(&mut self, to: usize, why: &str, answers: Answered, now: Duration) -> Vec<Effect> {
        let after = answers.text.clone();
        let (start, told) = self.plan_downshift(to, why, &after, Some(answers));
        let mut effects = vec![told];
        effects.extend(self.start_worker(start, now));
        effects
    }

    /// Records a shift down after a fault. Returns the start and the journal line.
    pub(super) fn plan_downshift(
        &mut self,
        to: usize,
        why: &str,
        after: &str,
        answers: Option<Answered>,
    ) -> (Start, Effect) {
        let (from, step) = (self.rung, self.current_step());
        self.begin_shift(to, answers);
        self.ledger.climb.record_downshift(from, to, step);
        self.rung = to;
        self.ledger.proposal = None;
        let way = format!("shift down: {} → {}", self.rung_name(from), self.rung_name(to));
        let told = Effect::Journal(Level::Warn, JournalKind::Shift, format!("{way}, by the keeper: {why}"));
        (Start::on(to, format!("{way} after: {after}")), told)
    }
}

/// Reports whether a failure says nothing about the rung: the GPU or the disk has failed. A driver that refuses a rung may
/// have carried the one before.
fn is_beyond_rungs(class: FailureClass, response: Response) -> bool {
    response == Response::Stop && class != FailureClass::Driver
}

/// Reports whether a move leads to this rung.
fn leads_to(what: &Move, rung: usize) -> bool {
    match what {
        Move::Shift { to } | Move::Climb { to } | Move::RollBack { to, .. } => *to == rung,
        Move::Stage { .. } | Move::Cool | Move::TakeTunedKernels => false,
    }
}
