//! Everything that one start of a command showed of each step.

use crate::protocol::companion::Fingerprint;
use crate::protocol::worker::{CommandNews, Event, Skipped, Step};
use std::collections::BTreeMap;

/// The steps of one start, by number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    steps: BTreeMap<u64, Seen>,
    /// The companion reports the rate at the border behind each step. The rate of the step itself may be another, and the
    /// output may round it, so they are not mixed.
    at_borders: bool,
}

/// Everything seen of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Its loss; NaN if the step was skipped for it.
    pub loss: Option<f64>,
    /// Its learning rate.
    pub rate: Option<f64>,
    /// The norm of its gradient.
    pub norm: Option<f64>,
    /// The scale of its loss.
    pub scale: Option<f64>,
    /// The samples that it read, as a digest.
    pub ids: Option<String>,
    /// The states of the random number generators, as digests joined by `-`.
    pub random: Option<String>,
}

impl Trace {
    /// Takes an event of the harness.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Step(step) => self.take_step(step),
            Event::Skipped(Skipped { step, rescaled: false, .. }) => self.at(*step).loss = Some(f64::NAN),
            Event::Command { news: CommandNews::Fingerprint(print) } => self.take_fingerprint(print),
            _ => {}
        }
    }

    fn take_fingerprint(&mut self, print: &Fingerprint) {
        let seen = self.at(print.step);
        seen.ids.clone_from(&print.ids);
        seen.random.clone_from(&print.random);
        seen.scale = print.scale;
        if let Some(rate) = print.lr {
            if !std::mem::replace(&mut self.at_borders, true) {
                self.steps.values_mut().for_each(|seen| seen.rate = None);
            }
            self.at(print.step).rate = Some(rate);
        }
    }

    fn take_step(&mut self, step: &Step) {
        let rate = step.lr.filter(|_| !self.at_borders);
        let seen = self.at(step.step);
        seen.loss = step.loss.or(seen.loss);
        seen.rate = seen.rate.or(rate);
        seen.norm = step.grad_norm.or(seen.norm);
    }

    /// Returns the record of a step, for writing.
    pub fn at(&mut self, step: u64) -> &mut Seen {
        self.steps.entry(step).or_default()
    }

    /// Returns what was seen of a step.
    pub fn get(&self, step: u64) -> Option<&Seen> {
        self.steps.get(&step)
    }

    /// Returns the steps in order.
    pub fn steps(&self) -> impl Iterator<Item = (u64, &Seen)> {
        self.steps.iter().map(|(step, seen)| (*step, seen))
    }

    /// Returns the losses in order.
    pub fn losses(&self) -> impl Iterator<Item = (u64, f64)> {
        self.steps().filter_map(|(step, seen)| Some((step, seen.loss?)))
    }

    /// Returns the newest step.
    pub fn last(&self) -> u64 {
        self.steps.last_key_value().map_or(0, |(step, _)| *step)
    }

    /// Counts the losses after a step.
    pub fn losses_after(&self, step: u64) -> u64 {
        self.losses().filter(|(at, _)| *at > step).count() as u64
    }

    /// Returns the same steps, counted on from `offset`.
    pub fn shifted(&self, offset: u64) -> Self {
        Self { steps: self.steps.iter().map(|(step, seen)| (step + offset, seen.clone())).collect(), ..*self }
    }

    /// Returns the most decimals of any loss.
    pub fn decimals(&self) -> usize {
        let decimals = |(_, loss): (u64, f64)| loss.to_string().split_once('.').map_or(0, |(_, rest)| rest.len());
        self.losses().map(decimals).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Trace;
    use crate::protocol::companion::Fingerprint;
    use crate::protocol::worker::{CommandNews, Event, Step};

    #[test]
    fn a_rate_that_the_companion_saw_counts_before_one_that_the_output_rounds() {
        let print: Fingerprint = serde_json::from_value(serde_json::json!({ "step": 4, "lr": 0.002_998 })).unwrap();
        let printed = Event::Step(Step { step: 4, lr: Some(0.003), loss: Some(0.5), ..Step::default() });
        let told = Event::Command { news: CommandNews::Fingerprint(print) };
        for events in [[&printed, &told], [&told, &printed]] {
            let mut trace = Trace::default();
            for event in events {
                trace.take(event);
            }
            let seen = trace.get(4).unwrap();
            assert_eq!((seen.rate, seen.loss), (Some(0.002_998), Some(0.5)));
            // The last step before a kill may have no border behind it.
            trace.take(&Event::Step(Step { step: 5, lr: Some(0.003), ..Step::default() }));
            assert_eq!(trace.get(5).unwrap().rate, None);
        }
    }
}
