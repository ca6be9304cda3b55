//! The keeper's own moves while a worker lives: performed with the autopilot on, proposed with it off.
//! Both come from the same decision.

use super::event::Effect;
use super::lifecycle::{Back, Lifecycle, Pressure, Start, Then};
use super::machine::Policy;
use super::reason::{NoEffect, Unrelieved};
use crate::config::knobs::Relief;
use crate::format::count;
use crate::outlook::request::Refusal;
use crate::protocol::control::{self, JournalKind, Request, Target};
use crate::protocol::worker::Level;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Steps after which a proposal expires.
const EXPIRES: u64 = 2000;

/// A move of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// Shift to a safer rung.
    Shift {
        /// The target rung.
        to: usize,
    },
    /// Climb back up to a rung the run came from.
    Climb {
        /// The target rung.
        to: usize,
    },
    /// Roll back to an older checkpoint.
    RollBack {
        /// The rollback and the data to skip.
        back: Back,
        /// The rung to continue on.
        to: usize,
    },
    /// Enter the next stage of the climb plan.
    Stage {
        /// Index of the stage, from 0.
        stage: usize,
    },
    /// Pause until the GPU has cooled.
    Cool,
    /// Restart on the same rung, with tuned kernels in place of those taken without tuning.
    TakeTunedKernels,
}

/// A move that waits for your approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// The move.
    pub what: Move,
    /// The reason, as a sentence.
    pub why: String,
    /// The step at which it was proposed.
    pub step: u64,
}

impl Proposal {
    /// Returns the rollback that it proposes, if it does.
    #[must_use]
    pub fn way_back(&self) -> Option<Back> {
        match self.what {
            Move::RollBack { back, .. } => Some(back),
            _ => None,
        }
    }
}

impl Policy {
    /// Performs a move, or proposes it when the autopilot is off.
    pub(super) fn suggest_move(&mut self, what: Move, why: &str, now: Duration) -> Vec<Effect> {
        if !self.may_end_worker() {
            return self.note_unmade_move(what, why);
        }
        let may = self.wishes.may_save() || matches!(what, Move::RollBack { .. });
        if self.autopilot() && may && matches!(self.life, Lifecycle::Running(_)) {
            return self.make_move(what, why, now);
        }
        self.propose_move(what, why)
    }

    /// Stores a proposal; an identical one is stored only once. An open rollback stays when a shift for numerics is proposed: the
    /// weights it would undo are still loaded.
    pub(super) fn propose_move(&mut self, what: Move, why: &str) -> Vec<Effect> {
        let open = self.ledger.proposal.as_ref().map(|open| (open.what, open.why.clone()));
        let (what, why) = match (open, what) {
            (Some((Move::RollBack { back, .. }, before)), Move::Shift { to })
                if Some(to) == self.nearest_rung(Relief::Numerics) =>
            {
                (Move::RollBack { back, to }, format!("{before}; {why}"))
            }
            (_, what) => (what, why.to_owned()),
        };
        if self.ledger.proposal.as_ref().is_some_and(|known| known.what == what) {
            return Vec::new();
        }
        let text = format!("proposal: {why}; would {}", self.describe_move(&what));
        self.ledger.proposal = Some(Proposal { what, why, step: self.current_step() });
        vec![Effect::Journal(Level::Warn, JournalKind::Request, text)]
    }

    /// Describes a move as an infinitive: `shift down to safe`.
    fn describe_move(&self, what: &Move) -> String {
        match what {
            Move::Shift { to } => format!("shift down to {}", self.rung_name(*to)),
            Move::Climb { to } => format!("climb to {}", self.rung_name(*to)),
            Move::RollBack { back, to } => {
                let onto = if *to == self.rung { String::new() } else { format!(", on to {}", self.rung_name(*to)) };
                let old = match back.before.saturating_sub(back.steps) {
                    0 => "the oldest checkpoint".to_owned(),
                    step => format!("a checkpoint from step {} or before, else to the oldest", count(step)),
                };
                format!("go back to {old}{}{onto}", describe_skip(back))
            }
            Move::Stage { stage } => {
                let name = self.rung_name(self.rung_of_stage(*stage));
                format!("continue on {name}, stage {} of the climb plan", stage + 1)
            }
            Move::Cool => "pause until the GPU has cooled".to_owned(),
            Move::TakeTunedKernels => "restart with tuned kernels".to_owned(),
        }
    }

    /// Returns the proposal for display.
    #[must_use]
    pub fn proposal(&self) -> Option<control::Proposal> {
        let proposal = self.ledger.proposal.as_ref()?;
        Some(control::Proposal {
            why: proposal.why.clone(),
            does: format!("would {}", self.describe_move(&proposal.what)),
        })
    }

    /// Returns the rollback that waits for approval, or for the end of the worker.
    #[must_use]
    pub fn way_back(&self) -> Option<Back> {
        let planned = match &self.life {
            Lifecycle::Stopping { then: Then::Start(start) | Then::Cool(start), .. }
            | Lifecycle::AwaitingTurn { start, .. }
            | Lifecycle::AwaitingVram { start, .. }
            | Lifecycle::BackingOff { start, .. }
            | Lifecycle::Cooling { start, .. } => start.back,
            _ => None,
        };
        planned.or_else(|| self.ledger.proposal.as_ref()?.way_back())
    }

    /// Drops an expired proposal.
    pub(super) fn expire_proposal(&mut self) {
        let now = self.current_step();
        self.ledger.proposal.take_if(|proposal| now > proposal.step + EXPIRES);
    }

    fn make_move(&mut self, what: Move, why: &str, now: Duration) -> Vec<Effect> {
        self.ledger.proposal = None;
        let (step, from) = (self.current_step(), self.rung);
        // The run file asks for these, so they deserve no warning.
        let level = if matches!(what, Move::Stage { .. } | Move::TakeTunedKernels) { Level::Info } else { Level::Warn };
        let here = self.rung_name(from).to_owned();
        let (kind, text, then) = match what {
            Move::Shift { to } => {
                self.begin_shift(to, None);
                self.ledger.climb.record_downshift(from, to, step);
                let reason = format!("shift down: {here} → {}", self.rung_name(to));
                let text = format!("{reason}, by the keeper: {why}");
                (JournalKind::Shift, text, Then::Start(Start::on(to, format!("{reason} because {why}"))))
            }
            Move::Climb { to } => {
                self.begin_shift(to, None);
                self.ledger.climb.record_climb(from, to, step);
                let reason = format!("climb: {here} → {}", self.rung_name(to));
                let text = format!("{reason}, by the keeper: {why}");
                (JournalKind::Shift, text, Then::Start(Start::on(to, format!("{reason} after {why}"))))
            }
            Move::Stage { stage } => {
                let to = self.rung_of_stage(stage);
                self.begin_shift(to, None);
                self.ledger.climb.record_stage(from, to, step, self.limits.watch.climb);
                self.ledger.climb.plan.enter_stage(stage, self.position.clock.unwrap_or(0), step);
                let reason = format!("climb plan: {here} → {}", self.rung_name(to));
                let text = format!("{reason}, stage {} of {}: {why}", stage + 1, self.limits.plan.len());
                (JournalKind::Shift, text, Then::Start(Start::on(to, format!("{reason} after {why}"))))
            }
            Move::RollBack { back, to } => {
                if to == from {
                    // The rung stays the same, so only the budget keeps this from happening again and again.
                    let _ = self.ledger.budget.fault(self.position.durable, now, &self.limits.watch);
                } else {
                    self.begin_shift(to, None);
                    self.ledger.climb.record_downshift(from, to, step);
                }
                let text = format!("{}: {why}", self.describe_move(&Move::RollBack { back, to }));
                let start = Start { back: Some(back), ..Start::on(to, format!("roll back because {why}")) };
                (JournalKind::Restart, text, Then::Start(start))
            }
            Move::Cool => {
                self.ledger.heat_pauses += 1;
                let reason = format!("continue after a pause to cool: {why}");
                (JournalKind::Health, format!("pause to cool: {why}"), Then::Cool(Start::on(from, reason)))
            }
            Move::TakeTunedKernels => {
                let reason = "restart with tuned kernels".to_owned();
                (JournalKind::Restart, format!("{reason}: {why}"), Then::Start(Start::on(from, reason)))
            }
        };
        if let Then::Start(start) = &then {
            self.rung = start.rung;
        }
        let mut effects = vec![Effect::Journal(level, kind, text)];
        effects.extend(self.end_worker(then, Pressure::Asked, now));
        effects
    }

    /// Settles the open proposal after the autopilot came back on: performs it, or drops it when it is no
    /// longer possible.
    pub(super) fn settle_proposal(&mut self, now: Duration) -> Vec<Effect> {
        let Some(proposal) = self.ledger.proposal.clone() else { return Vec::new() };
        let past = matches!(proposal.what, Move::Shift { to } if to <= self.rung)
            || matches!(proposal.what, Move::Climb { to } if to >= self.rung)
            || matches!(proposal.what, Move::Stage { stage } if self.stage_due(self.current_step()) != Some(stage));
        let done = if past { Err(Refusal::MovedOn) } else { self.accept_proposal("the autopilot", now) };
        match done {
            Ok((_, effects)) => effects,
            Err(refusal) => {
                self.ledger.proposal = None;
                let text = format!("proposal dropped ({}): {refusal}", proposal.why);
                vec![Effect::Journal(Level::Info, JournalKind::Request, text)]
            }
        }
    }

    /// Accepts the proposal, on behalf of the user or the autopilot.
    pub(super) fn accept_proposal(&mut self, by: &str, now: Duration) -> Result<(String, Vec<Effect>), Refusal> {
        let Some(Proposal { what, why, .. }) = self.ledger.proposal.clone() else { return Err(Refusal::NoProposal) };
        self.situation(now).check_end()?;
        if matches!(self.life, Lifecycle::Running(_)) {
            let answer = format!("accepted: will {}", self.describe_move(&what));
            return Ok((answer, self.make_move(what, &format!("{why}, accepted by {by}"), now)));
        }
        let Move::Shift { to } = what else { return Err(Refusal::NoWorker) };
        let (from, step) = (self.rung, self.current_step());
        let to_rung = Target::Rung(self.rung_name(to).to_owned());
        self.situation(now).check(&Request::Shift { to: to_rung.clone() })?;
        let plan = self.ledger.climb.plan;
        let answer = self.request_shift(&to_rung, now);
        // It was the keeper's own move: the plan continues after it.
        self.ledger.climb.plan = plan;
        if self.rung == to && to > from {
            self.ledger.climb.record_downshift(from, to, step);
        }
        answer
    }

    /// Returns the nearest reachable lower rung that offers this relief.
    pub(super) fn nearest_rung(&self, relief: Relief) -> Option<usize> {
        let below = self.rung + 1..self.limits.rungs.len();
        below.filter(|rung| self.relieves(*rung, relief)).find(|rung| self.may_help(*rung))
    }

    pub(super) fn relieves(&self, rung: usize, relief: Relief) -> bool {
        self.limits.relieves.get(rung).is_some_and(|list| list.contains(&relief))
    }

    /// Returns the last reachable rung of the ladder, if it is below the current one.
    pub(super) fn safest_rung(&self) -> Option<usize> {
        (self.rung + 1..self.limits.rungs.len()).rev().find(|rung| self.may_help(*rung))
    }

    /// Returns the rung `back`, or the nearest rung below it that is reachable from here.
    pub(super) fn next_rung_up(&self, back: usize) -> Option<usize> {
        (back..self.rung).find(|rung| self.may_help(*rung))
    }

    /// Writes one journal line, once, that no lower rung offers the relief, and what you can do.
    pub(super) fn note_no_relief(&mut self, relief: Relief, so: &str) -> Option<Effect> {
        if self.ledger.unrelieved.contains(&relief) {
            return None;
        }
        self.ledger.unrelieved.push(relief);
        let unrelieved = self.unrelieved(relief);
        let resume = self.continuation().command;
        let text = match (unrelieved.suggestion(), &unrelieved.again) {
            (suggestion, None) => format!("{unrelieved}, so {so}; stop the run, {suggestion}, then `{resume}`"),
            (suggestion, Some(_)) => format!("{unrelieved}, so {so}; {suggestion}"),
        };
        Some(Effect::Journal(Level::Warn, JournalKind::Shift, text))
    }

    /// Returns the lack of a lower rung that offers this relief, and why if the script or the machine is to blame.
    pub(super) fn unrelieved(&self, relief: Relief) -> Unrelieved {
        let ignored = Some(self.ignored_relief(relief)).filter(|ignored| !ignored.is_empty());
        let why = ignored.map(NoEffect::Ignored).or_else(|| self.find_idle(relief));
        Unrelieved {
            rung: self.rung_name(self.rung).to_owned(),
            relief,
            why: why.or_else(|| self.find_unusable(relief)),
            is_script: self.capability.is_command(),
            again: self.if_lost().cloned(),
        }
    }

    /// Reports whether the run can move to a rung, and would change by it.
    fn may_help(&self, rung: usize) -> bool {
        self.barrier(self.rung, rung).is_none() && self.has_effect(self.rung, rung) && self.may_choose(rung)
    }
}

fn describe_skip(back: &Back) -> String {
    if back.skip.is_none() { String::new() } else { ", and skip the data around the jump".to_owned() }
}
