//! Progress as a companion reports it: its steps are certain, so steps and bars in the output count no more. A companion
//! that sees no losses leaves them to the output: a loss printed around a step is merged into it.

use super::burst::StepTimer;
use super::{CommandProgress, Pending, is_eval};
use crate::log_metrics::Reading;
use crate::protocol::companion::{Framework, Introduction};
use crate::protocol::metrics::Metrics;
use crate::protocol::worker::{Event, Phase, Skipped, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of a training that a companion reports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReportedState {
    framework: Framework,
    /// A step, and the run's clock after it.
    pub(super) clock: (u64, u64),
    /// Samples of the newest step.
    pub(super) per_step: Option<u64>,
    /// Values printed since the last step, for the next one.
    printed: BTreeMap<String, f64>,
    /// The count in the output.
    count: Count,
    /// It reports evaluations, so those in the output are the same again.
    evaluates: bool,
    /// The training took its own last step.
    pub(super) ended: bool,
}

/// The count that the output prints beside the steps of a companion.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Count {
    newest: Option<u64>,
    /// The widest gap between two of them.
    gap: u64,
    /// How far the companion is ahead, at least: 1 where a script counts from 0.
    ahead: Option<u64>,
}

impl Count {
    /// Takes in a count that was printed while the companion is at `step`.
    fn observe(&mut self, printed: u64, step: u64) {
        if let Some(before) = self.newest.replace(printed) {
            self.gap = self.gap.max(printed.saturating_sub(before));
        }
        let ahead = step.saturating_sub(printed);
        self.ahead = Some(self.ahead.map_or(ahead, |least| least.min(ahead)));
    }

    /// Returns the step of an evaluation printed behind this count, while the companion is at `step`. Where the script
    /// counts something else, the two drift apart.
    fn place(&self, printed: u64, step: u64) -> Option<u64> {
        let placed = printed.checked_add(self.ahead?)?;
        (placed <= step.saturating_add(1) && step.saturating_sub(placed) <= self.gap).then_some(placed)
    }
}

impl CommandProgress {
    /// Follows a companion that begins to report. It resumed from the step it names, which may be an earlier one than
    /// was intended, or none.
    pub fn follow(&mut self, introduction: &Introduction) {
        if self.told.is_none() {
            self.step = introduction.resumed_from.unwrap_or(0);
            self.pending = None;
        }
        let framework = introduction.framework;
        let before = self.told.take();
        // The clock is known at the step of the resume, and later from the steps themselves.
        let known = introduction.samples.filter(|samples| *samples > 0);
        let first = known.map_or((0, 0), |samples| (self.step, samples));
        let (clock, per_step) = before.as_ref().map_or((first, None), |told| (told.clock, told.per_step));
        // The Trainers of Hugging Face and Lightning always do.
        let evaluates = before.as_ref().is_some_and(|told| told.evaluates)
            || matches!(framework, Framework::Transformers | Framework::Lightning);
        let (printed, count) = before.map(|told| (told.printed, told.count)).unwrap_or_default();
        self.told = Some(ReportedState { framework, clock, per_step, printed, count, evaluates, ended: false });
        self.total = introduction.total_steps.filter(|total| *total > 0).or(self.total);
    }

    /// Reads steps from the output again: the companion is gone.
    pub fn follow_output(&mut self) {
        (self.told, self.timer) = (None, StepTimer::default());
    }

    /// Reports whether a companion reports the steps.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Follows a companion from here on: the steps in the output, which counted so far, are not certain any more.
    pub fn follow_on(&mut self, introduction: &Introduction) -> Option<Event> {
        let (step, last) = (self.step, self.flush());
        self.follow(introduction);
        (self.step, self.total) = (step, introduction.total_steps.filter(|total| *total > 0));
        last
    }

    /// Forgets what an earlier process of the command reported: another one trains on from the checkpoint of a step.
    pub fn go_back(&mut self, step: u64) {
        self.trail.go_back(step);
        (self.told, self.pending, self.timer) = (None, None, StepTimer::default());
        self.nan_in_a_row = 0;
    }

    /// Counts on from the step at which the command really trains on, before it has taken one.
    pub fn go_on_from(&mut self, step: u64, samples: u64) {
        self.trail.go_back(step);
        (self.step, self.first, self.pending) = (step, Some(step).filter(|step| *step > 0), None);
        if let Some(told) = &mut self.told {
            told.clock = (step, samples);
        }
    }

    /// Returns the epoch of the newest step.
    pub fn epoch(&self) -> u64 {
        self.epoch as u64
    }

    /// Records that the training took its own last step.
    pub fn end_training(&mut self, step: u64) {
        self.step = self.step.max(step);
        if let Some(told) = &mut self.told {
            told.ended = true;
        }
    }

    /// Reports whether the companion has reported the end of the training.
    pub fn training_has_ended(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.ended)
    }

    /// Takes an event of the companion. Returns what to send on.
    pub fn take_told(&mut self, event: Event, now: Duration) -> Vec<Event> {
        match event {
            Event::Step(mut step) => {
                step.metrics = self.normalise(step.metrics);
                self.take_step(step, now)
            }
            Event::Skipped(skipped) => self.take_skipped(skipped),
            Event::Phase { phase } => {
                self.began |= phase == Phase::Training;
                self.flush().into_iter().chain([Event::Phase { phase }]).collect()
            }
            Event::Eval(mut eval) => {
                eval.metrics = self.normalise(eval.metrics);
                if let Some(told) = &mut self.told {
                    told.evaluates = true;
                }
                self.flush().into_iter().chain([Event::Eval(eval)]).collect()
            }
            other => self.flush().into_iter().chain([other]).collect(),
        }
    }

    /// Turns the percentages of a companion into shares.
    fn normalise(&mut self, metrics: Metrics) -> Metrics {
        let share = |(name, value): (String, f64)| Some((self.shares.share(&name, value)?, name));
        metrics.into_iter().filter_map(share).map(|(value, name)| (name, value)).collect()
    }

    fn take_step(&mut self, mut step: Step, now: Duration) -> Vec<Event> {
        let mut events: Vec<Event> = self.flush().into_iter().collect();
        // A second training in the same command counts again from 1.
        if step.step <= self.step {
            return events;
        }
        // A companion that sees only optimizer steps does not know the samples.
        if self.told.as_ref().is_some_and(|told| step.samples <= told.clock.1) {
            step.samples = self.samples(step.step);
        }
        events.extend(self.advance((step.step, step.samples), step.epoch));
        self.trail.record(step.step, now);
        let waits = self.told.as_ref().is_some_and(|told| !told.framework.sees_losses()) && step.loss.is_none();
        if !waits {
            if step.loss.is_some() {
                self.nan_in_a_row = 0;
            }
            events.push(Event::Step(step));
            return events;
        }
        let mut values = step.metrics.clone();
        values.extend(step.lr.map(|lr| ("lr".to_owned(), lr)));
        values.extend(step.grad_norm.map(|norm| ("grad_norm".to_owned(), norm)));
        if let Some(told) = &mut self.told {
            values.extend(std::mem::take(&mut told.printed));
        }
        let took = Duration::from_secs_f64(step.compute_ms.clamp(0.0, 1e9) / 1000.0);
        self.pending = Some(Pending {
            step: step.step,
            since: now,
            took: Some(took),
            values,
            is_partial: false,
            told: Some(step),
        });
        events
    }

    fn take_skipped(&mut self, skipped: Skipped) -> Vec<Event> {
        let mut events: Vec<Event> = self.flush().into_iter().collect();
        if skipped.step > self.step {
            events.extend(self.advance((skipped.step, skipped.samples), skipped.epoch));
            self.nan_in_a_row += u64::from(!skipped.rescaled);
            events.push(Event::Skipped(skipped));
        }
        events
    }

    /// Moves on to a step; announces the first one.
    fn advance(&mut self, clock: (u64, u64), epoch: u64) -> Option<Event> {
        self.step = clock.0;
        self.epoch = epoch as f64;
        // A companion that sees only optimizer steps knows no epochs.
        if self.told.as_ref().is_some_and(|told| told.framework.sees_losses()) {
            self.reported_epoch = Some(epoch);
        }
        if let Some(told) = &mut self.told {
            let (before, steps) = (told.clock.1, clock.0.saturating_sub(told.clock.0));
            told.per_step = clock.1.saturating_sub(before).checked_div(steps);
            told.clock = clock;
        }
        let first = !std::mem::replace(&mut self.began, true);
        first.then_some(Event::Phase { phase: Phase::Training })
    }

    /// Takes a reading of the output while a companion reports the training: values that the companion does not see.
    pub(super) fn take_beside_companion(&mut self, reading: &Reading) -> Vec<Event> {
        let Some(told) = &mut self.told else { return Vec::new() };
        if is_eval(reading) {
            if told.evaluates {
                return Vec::new();
            }
            let step = reading.step.and_then(|printed| told.count.place(printed, self.step)).unwrap_or(self.step);
            return self.flush().into_iter().chain([self.eval(step, reading)]).collect();
        }
        if let Some(printed) = reading.step {
            told.count.observe(printed, self.step);
            // The loop is kept without knowing where it ends.
            if told.framework == Framework::AccelerateLoop {
                self.total = self.total.or(reading.total_steps.filter(|total| *total >= self.step.max(1)));
            }
        }
        // A loss printed for step 0 is that of no update: the count begins before the first one.
        if !told.framework.sees_losses() && reading.step != Some(0) {
            let values = self.pending.as_mut().map_or(&mut told.printed, |pending| &mut pending.values);
            values.extend(reading.values.iter().cloned());
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
