//! Knobs that a script ignores. A companion reports the values in force; where one differs from the rung, a shift
//! that changes this knob alone changes nothing, and neither would the next one.

use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::Outcome;
use super::machine::Policy;
use super::reason::{NoEffect, Reason};
use crate::config::knobs::Relief;
use crate::faults::response::Response;
use crate::outlook::effect::Surroundings;
use crate::protocol::companion::{CompanionNews, IgnoredKnob};
use crate::protocol::control::JournalKind;
use crate::protocol::resume::describe_ignored;
use crate::protocol::worker::Level;
use crate::recipe::class::ranks;
use serde_json::Value;

impl Policy {
    /// Takes in the values in force: the journal names each ignored knob once, and a shift that changed nothing else.
    pub(super) fn compare_knobs(&mut self, companion: &CompanionNews) -> Vec<Effect> {
        self.ledger.sharded = companion.sharded;
        // A knob that has another value now follows the rung after all; null is a value that cannot be seen.
        let is_stuck = |value: &Value, stuck: &Value| value.is_null() || value == stuck;
        self.ledger.ignored.retain(|name, stuck| companion.knobs.get(name).is_none_or(|value| is_stuck(value, stuck)));
        let ignored = companion.ignored.iter().map(|knob| (knob.name.clone(), knob.in_force.clone()));
        self.ledger.ignored.extend(ignored);
        let known = std::mem::replace(&mut self.worker.companion.ignored, companion.ignored.clone());
        let news: Vec<IgnoredKnob> = companion.ignored.iter().filter(|knob| !known.contains(knob)).cloned().collect();
        let Some(text) = describe_ignored(&news) else { return Vec::new() };
        let Some(from) = self.shift_in_vain() else {
            return vec![Effect::Journal(Level::Warn, JournalKind::Shift, text)];
        };
        self.worker.companion.shifted_in_vain = true;
        let (from, to) = (self.rung_name(from), self.rung_name(self.rung));
        let text = format!("{text}. The shift {from} → {to} changed nothing else, so it does not count");
        vec![Effect::Journal(Level::Warn, JournalKind::Shift, text), Effect::UncountShift]
    }

    /// Returns the rung that the newest shift left, if that shift changed nothing and this is not noted yet.
    fn shift_in_vain(&self) -> Option<usize> {
        let from = self.worker.before.filter(|_| !self.worker.companion.shifted_in_vain)?;
        (from != self.rung && !self.has_effect(from, self.rung)).then_some(from)
    }

    /// Reports whether a change between two rungs has an effect, as far as known.
    pub(super) fn has_effect(&self, from: usize, to: usize) -> bool {
        let (Some(from), Some(to)) = (self.limits.knobs.get(from), self.limits.knobs.get(to)) else { return true };
        self.surroundings().has_effect(from, to)
    }

    /// Returns what decides about the effect of a rung.
    pub(super) fn surroundings(&self) -> Surroundings<impl Fn(&str) -> bool> {
        Surroundings {
            is_without_gpu: self.gpu.is_absent,
            ignores: |path: &str| self.ledger.ignored.contains_key(path),
        }
    }

    /// Returns why the run cannot go on from one rung to another; none if it can.
    pub(super) fn barrier(&self, from: usize, to: usize) -> Option<String> {
        let of_shape = self.limits.barriers.get(&(from, to)).cloned();
        of_shape.or_else(|| {
            let (had, has) = (ranks(self.limits.knobs.get(from)?), ranks(self.limits.knobs.get(to)?));
            (self.ledger.sharded && had != has).then(|| {
                let name = self.rung_name(to);
                format!("the weights are spread over {had} ranks and resume on as many only, and {name} has {has}")
            })
        })
    }

    /// Returns the ignored knobs for which no rung from here on relieves a problem; empty if some rung does.
    pub(super) fn ignored_relief(&self, relief: Relief) -> Vec<IgnoredKnob> {
        if self.nearest_rung(relief).is_some() {
            return Vec::new();
        }
        let mut rungs = (self.rung..self.limits.rungs.len()).filter(|rung| self.relieves(*rung, relief)).rev();
        rungs.find_map(|rung| Some(self.ignored_on(rung)).filter(|ignored| !ignored.is_empty())).unwrap_or_default()
    }

    /// Returns the lower rung that would relieve a problem on a GPU alone; none on a GPU.
    pub(super) fn find_idle(&self, relief: Relief) -> Option<NoEffect> {
        let below = self.rung + 1..self.limits.rungs.len();
        let idle = below.filter(|rung| self.relieves(*rung, relief)).find(|rung| !self.has_effect(self.rung, *rung))?;
        self.gpu.is_absent.then(|| NoEffect::NoGpu(self.rung_name(idle).to_owned()))
    }

    /// Returns the knobs of a rung that the script ignores: it has other values in force.
    fn ignored_on(&self, rung: usize) -> Vec<IgnoredKnob> {
        let Some(tree) = self.limits.knobs.get(rung) else { return Vec::new() };
        let ignored = self.ledger.ignored.iter().filter_map(|(name, in_force)| {
            let wanted = knob_of(tree, name).filter(|wanted| *wanted != in_force)?;
            Some(IgnoredKnob { name: name.clone(), rung: wanted.clone(), in_force: in_force.clone() })
        });
        ignored.collect()
    }

    /// Returns the end of a run whose script ignores every knob that would relieve the cause: another start would
    /// fail in the same way.
    pub(super) fn end_of_ignored(&self, fault: &Fault, response: Response) -> Option<Outcome> {
        let Response::Relieve(relief) = response else { return None };
        let ignored = Some(self.ignored_relief(relief)).filter(|ignored| !ignored.is_empty())?;
        Some(Outcome::NeedsPerson(Reason::IgnoredKnobs { fault: fault.clone(), ignored, relief }))
    }
}

/// Returns the knob of a dotted name.
fn knob_of<'a>(tree: &'a Value, name: &str) -> Option<&'a Value> {
    name.split('.').try_fold(tree, |section, key| section.get(key))
}

#[cfg(test)]
mod tests;
