//! Feeds every step and temperature reading to the watches, and turns their findings into moves.

use super::age::format_span;
use super::event::Effect;
use super::fault::Fault;
use super::heat;
use super::idle::{News, Reason, Unfused};
use super::lifecycle::{Back, Lifecycle};
use super::machine::Policy;
use super::moves::Move;
use crate::config::knobs::Relief;
use crate::config::watch::Spike;
use crate::faults;
use crate::format::apart;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Phase, Skipped, Step};
use std::time::Duration;

impl Policy {
    pub(super) fn handle_step(&mut self, step: &Step, now: Duration) -> Vec<Effect> {
        self.advance_clock(step.step, step.samples, now);
        self.watches.idle.step(step);
        self.expire_proposal();
        let (watch, mut effects) = (self.limits.watch.clone(), self.end_silence());
        let _ = self.watches.skips.observe(false, &watch);
        let _ = self.watches.updates.observe_step(false, &watch);
        if step.loss.is_some() {
            self.ledger.failures.record_progress();
        }
        if self.ledger.climb.record_step(step.step, watch.climb) {
            let text = format!("{} passed its probation", self.rung_name(self.rung));
            effects.push(Effect::Journal(Level::Info, JournalKind::Shift, text));
        }
        let spill = self.watches.spill.step(step, watch.spill, now);
        let which = usize::from(step.searches);
        let (spike, drift) = (&mut self.watches.spikes[which], &mut self.watches.drifts[which]);
        let first = &mut self.ledger.first_losses[which];
        first.observe(step.loss);
        if let Some(spike) = step.loss.and_then(|loss| spike.observe(loss, first.mean(), watch.spike)) {
            let (mean, loss) = apart(spike.mean, spike.loss);
            let why = format!("the loss jumped from {mean} to {loss}, {:.1} standard deviations", spike.sigmas);
            let back = self.back_before(spike.steps, step, watch.spike);
            let done = self.answer_spike(back, &why, now);
            effects.extend(with_trouble(FailureClass::LossSpike, why, done));
        } else if let Some(why) = step.loss.and_then(|loss| drift.observe(loss, watch.divergence)) {
            let back = Back { before: step.step, steps: watch.divergence.steps, skip: None };
            let to = self.nearest_rung(Relief::Numerics).unwrap_or(self.rung);
            let done = self.propose_move(Move::RollBack { back, to }, &why);
            effects.extend(with_trouble(FailureClass::Divergence, why, done));
        } else if let Some(spill) = spill {
            effects.extend(self.answer_spill(&spill.to_string(), now));
        } else if let Some(to) = self.climb_target(step.step) {
            let why = format!(
                "{} clean steps",
                watch.climb.after.saturating_mul(1 << self.ledger.climb.failed_climbs().min(32))
            );
            effects.extend(self.suggest_move(Move::Climb { to }, &why, now));
        } else if let Some(stage) = self.stage_due(step.step) {
            effects.extend(self.next_stage(stage, now));
        } else {
            effects.extend(self.note_stalled_plan(step.step));
        }
        effects
    }

    /// Shifts to a rung that helps against lack of memory; where there is none, says so. Nothing has failed, so the rung's
    /// record is kept clean. The clock of a command counts steps or samples, and longer sequences slow those down too: it
    /// gets a proposal only.
    fn answer_spill(&mut self, why: &str, now: Duration) -> Vec<Effect> {
        let done = match self.nearest_rung(Relief::Memory) {
            Some(to) if self.capability.is_command() && self.may_end_worker() => {
                self.propose_move(Move::Shift { to }, why)
            }
            Some(to) => self.suggest_move(Move::Shift { to }, why, now),
            None => self.note_no_relief(Relief::Memory, "training continues, slowly").into_iter().collect(),
        };
        let advice = faults::advice(FailureClass::Spilled, None);
        let text = format!("{why}; {advice}");
        let alarm = Effect::Alarm { key: "spill", title: "GPU memory spilled", text };
        with_trouble(FailureClass::Spilled, why.to_owned(), [vec![alarm], done].concat())
    }

    /// Returns the way back before a jump of the loss that has lasted this many steps. The data that is left out lies around
    /// its first step, half of it before, however old the checkpoint is.
    fn back_before(&self, lasted: u64, newest: &Step, knobs: Spike) -> Back {
        let in_units = |steps: u64| steps.saturating_mul(self.position.pace.units_per_step());
        let ahead = (knobs.skip / 2).saturating_add(lasted);
        let from = newest.samples.saturating_sub(in_units(ahead));
        // The data of a command is not ours to choose.
        let skips = !self.capability.is_command() && knobs.skip > 0;
        let skip = skips.then(|| (from, from.saturating_add(in_units(knobs.skip.max(ahead)))));
        Back { before: (newest.step + 1).saturating_sub(lasted), steps: knobs.back, skip }
    }

    /// Rolls back after a jump of the loss, as often as the restart budget allows. Without a checkpoint the same steps would
    /// follow on the same data, so then, and once the budget is used up, a rung that helps against NaN losses continues. So it does
    /// where a rollback that left out no data led to the same jump.
    fn answer_spike(&mut self, back: Back, why: &str, now: Duration) -> Vec<Effect> {
        let durable = self.position.durable;
        // A command may print every tenth step only, so the same jump may seem to begin a little later.
        let near = self.limits.watch.spike.in_a_row.max(back.before / 20);
        let repeats = back.skip.is_none() && self.ledger.failures.has_jumped_near(back.before, near);
        let budget = self.ledger.budget.allows_restart(durable, now, &self.limits.watch);
        let allows = durable.is_some() && !repeats && budget;
        if self.autopilot() && back.skip.is_none() {
            self.record_failure(&Fault::new(FailureClass::LossSpike, why), back.before);
        }
        let to = if allows { Some(self.rung) } else { self.nearest_rung(Relief::Numerics) };
        match to {
            Some(to) => self.suggest_move(Move::RollBack { back, to }, why, now),
            None => self.note_no_relief(Relief::Numerics, "training continues unchanged").into_iter().collect(),
        }
    }

    pub(super) fn handle_skip(&mut self, skipped: &Skipped, now: Duration) -> Vec<Effect> {
        self.advance_clock(skipped.step, skipped.samples, now);
        if skipped.rescaled {
            let why = self.watches.updates.observe_step(true, &self.limits.watch);
            return self.relieve_numerics(why, now);
        }
        self.ledger.climb.record_disturbance(skipped.step);
        let watch = self.limits.watch.clone();
        let why = self.watches.skips.observe(true, &watch);
        self.relieve_numerics(why, now)
    }

    /// Shifts to a rung that helps against NaN losses, if there is a reason.
    pub(super) fn relieve_numerics(&mut self, why: Option<String>, now: Duration) -> Vec<Effect> {
        let Some(why) = why else { return Vec::new() };
        let Some(to) = self.nearest_rung(Relief::Numerics) else {
            let told = self.note_no_relief(Relief::Numerics, "training continues unchanged");
            return with_trouble(FailureClass::NonFinite, why, told.into_iter().collect());
        };
        let done = self.suggest_move(Move::Shift { to }, &why, now);
        with_trouble(FailureClass::NonFinite, why, done)
    }

    fn advance_clock(&mut self, step: u64, samples: u64, now: Duration) {
        self.position.advance(step, samples);
        self.prove_rung();
        self.watches.hang.step(now);
    }

    fn climb_target(&self, step: u64) -> Option<usize> {
        let knobs = self.limits.watch.climb;
        let due = matches!(self.life, Lifecycle::Running(_)) && self.ledger.climb.is_due(self.rung, step, knobs);
        let (_, home) = self.ledger.climb.next_climb(self.rung, step, knobs).filter(|_| due)?;
        // A climb that the run is too short to prove only costs a restart.
        let time = self.position.steps_left() >= self.ledger.climb.required_calm(knobs)?;
        self.next_rung_up(home).filter(|_| time)
    }

    /// Describes the next climb.
    #[must_use]
    pub fn describe_climb(&self) -> Option<String> {
        let (knobs, climb) = (self.limits.watch.climb, &self.ledger.climb);
        if climb.failed_climbs() > 0 && climb.failed_climbs() >= knobs.failures {
            return Some(format!("stays on {}: {} climbs failed", self.rung_name(self.rung), climb.failed_climbs()));
        }
        let Some((left, home)) = climb.next_climb(self.rung, self.current_step(), knobs) else {
            return self.describe_plan();
        };
        let name = self.rung_name(self.next_rung_up(home)?);
        if self.position.steps_left() < left.saturating_add(climb.required_calm(knobs)?) {
            return Some(format!("stays on {}: the run ends before a climb", self.rung_name(self.rung)));
        }
        Some(match left {
            0 => format!("climb to {name} once training is well past a checkpoint"),
            1 => format!("climb to {name} in 1 clean step"),
            left => format!("climb to {name} in {left} clean steps"),
        })
    }

    /// Handles a reading of the GPU's utilisation.
    pub(super) fn handle_utilisation(&mut self, share: Option<f64>, now: Duration) -> Vec<Effect> {
        const ALARM: &str = "utilisation";
        let knobs = self.limits.watch.utilisation;
        if !matches!(self.life, Lifecycle::Running(Phase::Training)) {
            return Vec::new();
        }
        match self.watches.idle.measured(share, knobs, now) {
            Some(News::Idle(reason)) => {
                let (below, long) = (knobs.below * 100.0, format_span(knobs.after.duration()));
                let soon = match reason {
                    Reason::NoSteps => {
                        let left = self.watches.hang.deadline().saturating_sub(now);
                        format!("; it counts as a hang after {} more without a step", format_span(left))
                    }
                    _ => "; training continues".to_owned(),
                };
                let reason = self.name_idle_reason(reason);
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

    /// Returns the reason why the GPU idles as text: fused kernels that are off come before the host in general.
    fn name_idle_reason(&self, reason: Reason) -> String {
        let unfused = |rung: usize| self.limits.unfused.get(rung).and_then(Option::as_deref);
        let (Reason::HostBound(steps), Some(knob)) = (reason, unfused(self.rung)) else { return reason.to_string() };
        let faster = (0..self.rung).rev().find(|rung| unfused(*rung).is_none()).map(|rung| self.rung_name(rung));
        Unfused { steps, knob, faster }.to_string()
    }

    /// Handles a reading of the GPU's temperature and its slowdown threshold.
    pub(super) fn handle_temperature(
        &mut self,
        celsius: Option<f64>,
        slowdown_c: Option<f64>,
        now: Duration,
    ) -> Vec<Effect> {
        let (watch, knobs) = (self.limits.watch.temperature_c, self.limits.watch.heat);
        self.watches.heat.measured(celsius, heat::limit_c(watch, slowdown_c, knobs), knobs, now);
        match &self.life {
            Lifecycle::Cooling { start, .. } if self.watches.heat.is_cool() => {
                let start = start.clone();
                let text = format!("the GPU has cooled to {:.0} °C", self.watches.heat.temperatures().0);
                let mut effects = vec![Effect::Journal(Level::Info, JournalKind::Health, text)];
                effects.extend(self.start_worker(start, now));
                effects
            }
            Lifecycle::Running(_) if self.watches.heat.must_cool(knobs, now) => {
                let limit = heat::limit_c(watch, slowdown_c, knobs);
                let why = format!("the GPU is at {:.0} °C (limit {limit:.0} °C)", self.watches.heat.temperatures().0);
                self.watches.heat.reset();
                let often = self.ledger.heat_pauses >= knobs.pauses;
                let rung = self.nearest_rung(Relief::Heat).filter(|_| often);
                let told = (often && rung.is_none()).then(|| self.note_no_relief(Relief::Heat, "it will pause again"));
                let mut done = self.suggest_move(rung.map_or(Move::Cool, |to| Move::Shift { to }), &why, now);
                if rung == Some(self.rung) {
                    self.ledger.heat_pauses = 0;
                }
                done.extend(told.flatten());
                with_trouble(FailureClass::Overheating, why, done)
            }
            _ => Vec::new(),
        }
    }
}

/// Prepends the trouble to the effects of a problem that ends no worker.
fn with_trouble(class: FailureClass, why: String, done: Vec<Effect>) -> Vec<Effect> {
    let trouble = (!done.is_empty()).then_some(Effect::Trouble(class, why));
    trouble.into_iter().chain(done).collect()
}
