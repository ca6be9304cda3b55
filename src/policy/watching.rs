//! Feeds every step and temperature reading to the watches, and turns their findings into moves.

use super::age::words;
use super::event::Effect;
use super::heat;
use super::idle::{News, Reason};
use super::life::{Back, Life};
use super::machine::Policy;
use super::moves::Move;
use crate::config::knobs::Relief;
use crate::config::watch::span;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Phase, Skipped, Step};
use std::time::Duration;

impl Policy {
    pub(super) fn stepped(&mut self, step: &Step, now: Duration) -> Vec<Effect> {
        self.advance(step.step, step.samples, now);
        self.idle.step(step);
        self.expire_proposal();
        let (watch, mut effects) = (self.limits.watch.clone(), Vec::new());
        let _ = self.skips.observe(false, &watch);
        if self.ledger.climb.stepped(step.step, watch.climb) {
            let text = format!("{} has proven itself", self.rung_name(self.rung));
            effects.push(Effect::Journal(Level::Info, JournalKind::Shift, text));
        }
        if let Some(spike) = self.spike.observe(step.loss, watch.spike) {
            let why = format!(
                "the loss jumped from {:.4} to {:.4}, {:.1} standard deviations",
                spike.mean, spike.loss, spike.sigmas
            );
            let before = (step.step + 1).saturating_sub(spike.steps);
            let skip_units = watch.spike.skip.saturating_mul(self.pace.units_per_step());
            let back = Back { before, steps: watch.spike.back, skip_units };
            let done = self.suggest(Move::RollBack { back, to: self.rung }, &why, now);
            effects.extend(caused(FailureClass::LossSpike, why, done));
        } else if let Some(why) = self.drift.observe(step.loss, watch.divergence) {
            let back = Back { before: step.step, steps: watch.divergence.steps, skip_units: 0 };
            let to = self.nearest(Relief::Numerics).unwrap_or(self.rung);
            let done = self.propose(Move::RollBack { back, to }, &why);
            effects.extend(caused(FailureClass::Divergence, why, done));
        } else if let Some(to) = self.climbs_to(step.step) {
            let why =
                format!("{} calm steps", watch.climb.after.saturating_mul(1 << self.ledger.climb.failed().min(32)));
            effects.extend(self.suggest(Move::Climb { to }, &why, now));
        } else if let Some(stage) = self.stage_due(step.step) {
            effects.extend(self.next_stage(stage, now));
        }
        effects
    }

    pub(super) fn skipped(&mut self, skipped: &Skipped, now: Duration) -> Vec<Effect> {
        self.advance(skipped.step, skipped.samples, now);
        // At most 16 of these occur before the scale is 1; after that, one in 2000 steps.
        if skipped.rescaled {
            return Vec::new();
        }
        self.ledger.climb.disturbed(skipped.step);
        let watch = self.limits.watch.clone();
        let Some(why) = self.skips.observe(true, &watch) else { return Vec::new() };
        let Some(to) = self.nearest(Relief::Numerics) else {
            let told = self.no_relief(Relief::Numerics, "training goes on as it is");
            return caused(FailureClass::NonFinite, why, told.into_iter().collect());
        };
        let done = self.suggest(Move::Shift { to }, &why, now);
        caused(FailureClass::NonFinite, why, done)
    }

    fn advance(&mut self, step: u64, samples: u64, now: Duration) {
        if let Some(before) = self.clock.filter(|before| *before < samples) {
            self.pace.step(samples - before);
        }
        (self.step, self.clock) = (Some(step), Some(samples));
        self.hang.step(now);
    }

    fn climbs_to(&self, step: u64) -> Option<usize> {
        let knobs = self.limits.watch.climb;
        let due = matches!(self.life, Life::Running(_)) && self.ledger.climb.is_due(self.rung, step, knobs);
        let (_, home) = self.ledger.climb.ahead(self.rung, step, knobs).filter(|_| due)?;
        // A climb that the run is too short to prove only costs a restart.
        let time = self.steps_left() >= self.ledger.climb.patience(knobs)?;
        self.next_up(home).filter(|_| time)
    }

    /// Describes the next climb.
    #[must_use]
    pub fn climb_words(&self) -> Option<String> {
        let (knobs, climb) = (self.limits.watch.climb, &self.ledger.climb);
        if climb.failed() > 0 && climb.failed() >= knobs.failures {
            return Some(format!("stays on {}: {} climbs failed", self.rung_name(self.rung), climb.failed()));
        }
        let Some((left, home)) = climb.ahead(self.rung, self.at(), knobs) else { return self.plan_words() };
        let name = self.rung_name(self.next_up(home)?);
        Some(match left {
            0 => format!("climb to {name} once a checkpoint is proven"),
            1 => format!("climb to {name} in 1 clean step"),
            left => format!("climb to {name} in {left} clean steps"),
        })
    }

    /// Handles a reading of the GPU's utilisation.
    pub(super) fn used(&mut self, share: Option<f64>, now: Duration) -> Vec<Effect> {
        const ALARM: &str = "utilisation";
        let knobs = self.limits.watch.utilisation;
        if !matches!(self.life, Life::Running(Phase::Training)) {
            return Vec::new();
        }
        match self.idle.measured(share, knobs, now) {
            Some(News::Idle(reason)) => {
                let (below, long) = (knobs.below * 100.0, words(span(knobs.after)));
                let soon = match reason {
                    Reason::NoSteps => {
                        let left = self.hang.deadline().saturating_sub(now);
                        format!("; it counts as one after {} more without a step", words(left))
                    }
                    _ => "; training goes on".to_owned(),
                };
                let text = format!("the GPU has been below {below:.0} % for {long}: {reason}{soon}");
                vec![Effect::Alarm { key: ALARM, title: "GPU idle", text }]
            }
            Some(News::Busy) => {
                let text = "the GPU is busy again".to_owned();
                vec![Effect::AlarmOver(ALARM), Effect::Journal(Level::Info, JournalKind::Health, text)]
            }
            None => Vec::new(),
        }
    }

    /// Handles a reading of the GPU's temperature and its slowdown threshold.
    pub(super) fn felt(&mut self, celsius: Option<f64>, slowdown_c: Option<f64>, now: Duration) -> Vec<Effect> {
        let (watch, knobs) = (self.limits.watch.temperature_c, self.limits.watch.heat);
        self.heat.measured(celsius, heat::limit_c(watch, slowdown_c, knobs), knobs, now);
        match &self.life {
            Life::Cooling { start, .. } if self.heat.is_cool() => {
                let start = start.clone();
                let text = format!("the card has cooled to {:.0} °C", self.heat.words().0);
                let mut effects = vec![Effect::Journal(Level::Info, JournalKind::Health, text)];
                effects.extend(self.start(start, now));
                effects
            }
            Life::Running(_) if self.heat.must_cool(knobs, now) => {
                let limit = heat::limit_c(watch, slowdown_c, knobs);
                let why = format!("the GPU is at {:.0} °C (limit {limit:.0} °C)", self.heat.words().0);
                self.heat.rest();
                let often = self.ledger.heat_pauses >= knobs.pauses;
                let rung = self.nearest(Relief::Heat).filter(|_| often);
                let told = (often && rung.is_none()).then(|| self.no_relief(Relief::Heat, "it pauses again and again"));
                let mut done = self.suggest(rung.map_or(Move::Cool, |to| Move::Shift { to }), &why, now);
                if rung == Some(self.rung) {
                    self.ledger.heat_pauses = 0;
                }
                done.extend(told.flatten());
                caused(FailureClass::Overheating, why, done)
            }
            _ => Vec::new(),
        }
    }
}

/// Prepends the trouble to the effects of a problem that ends no worker.
fn caused(class: FailureClass, why: String, done: Vec<Effect>) -> Vec<Effect> {
    let trouble = (!done.is_empty()).then_some(Effect::Trouble(class, why));
    trouble.into_iter().chain(done).collect()
}
