//! Progress as a companion reports it: its steps are certain, so steps and bars in the output count no more. A companion
//! that sees no losses leaves them to the output: a loss printed around a step is merged into it.

use super::{Pending, Progress, is_eval};
use crate::log_metrics::Reading;
use crate::protocol::companion::{Framework, Introduction};
use crate::protocol::worker::{Event, Phase, Skipped, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of a training that a companion reports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
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

impl Progress {
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
        self.told = Some(Told { framework, clock, per_step, printed, count, evaluates, ended: false });
        self.total = introduction.total_steps.filter(|total| *total > 0).or(self.total);
    }

    /// Reads steps from the output again: the companion is gone.
    pub fn follow_output(&mut self) {
        (self.told, self.stepped) = (None, None);
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

    /// Forgets what an earlier process of the command reported: another one trains on from a checkpoint.
    pub fn go_back(&mut self) {
        (self.told, self.pending, self.stepped) = (None, None, None);
        self.nan_in_a_row = 0;
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
            Event::Step(step) => self.take_step(step, now),
            Event::Skipped(skipped) => self.take_skipped(skipped),
            Event::Phase { phase } => {
                self.began |= phase == Phase::Training;
                self.flush().into_iter().chain([Event::Phase { phase }]).collect()
            }
            Event::Eval(eval) => {
                if let Some(told) = &mut self.told {
                    told.evaluates = true;
                }
                self.flush().into_iter().chain([Event::Eval(eval)]).collect()
            }
            other => self.flush().into_iter().chain([other]).collect(),
        }
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
        self.pending = Some(Pending { step: step.step, since: now, took: Some(took), values, told: Some(step) });
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
        }
        if !told.framework.sees_losses() {
            let values = self.pending.as_mut().map_or(&mut told.printed, |pending| &mut pending.values);
            values.extend(reading.values.iter().cloned());
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::MERGED;
    use super::super::tests::step_event;
    use super::Progress;
    use crate::log_metrics::Reading;
    use crate::protocol::companion::{Framework, Introduction};
    use crate::protocol::worker::{Eval, Event, Phase, Skipped, Step};
    use serde_json::json;
    use std::time::Duration;

    fn introduction(framework: &str, resumed_from: Option<u64>, total: Option<u64>) -> Introduction {
        let samples = resumed_from.map(|step| step * 10);
        serde_json::from_value(json!({
            "protocol": 1, "pid": 1, "framework": framework, "grade": "exact", "resumed_from": resumed_from,
            "samples": samples, "total_steps": total,
        }))
        .unwrap()
    }

    fn told(framework: &str, resumed_from: Option<u64>, total: Option<u64>) -> Progress {
        let mut progress = Progress::new(20, 4, 1, Some(1000));
        progress.follow(&introduction(framework, resumed_from, total));
        progress
    }

    fn reading(step: Option<u64>, values: &[(&str, f64)]) -> Reading {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Reading { step, total_steps: Some(7), values, ..Reading::default() }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn skipped(step: u64, rescaled: bool) -> Event {
        let (what, place) = ("loss".to_owned(), String::new());
        Event::Skipped(Skipped {
            step,
            samples: step * 10,
            epoch: 0,
            lr: 0.1,
            what,
            place,
            parameter: None,
            rescaled,
            applied: false,
        })
    }

    #[test]
    fn steps_of_a_companion_count_and_those_in_the_output_do_not() {
        let mut progress = told("transformers", Some(20), None);
        assert_eq!((progress.step, progress.samples(20), progress.samples(21)), (20, 200, 204));
        assert!(progress.take(&reading(Some(500), &[("loss", 3.0)]), at(1)).is_empty());
        assert!(progress.take(&reading(None, &[("eval_loss", 3.0)]), at(1)).is_empty(), "it reports that itself");
        let events = progress.take_told(step_event(21), at(2));
        assert!(matches!(&events[..], [Event::Phase { phase: Phase::Training }, Event::Step(_)]), "{events:?}");
        assert!(matches!(&progress.take_told(step_event(22), at(3))[..], [Event::Step(_)]));
        assert!(progress.take_told(step_event(22), at(3)).is_empty(), "a second training counts again");
        assert_eq!((progress.step, progress.total, progress.flush()), (22, Some(1000), None));
        assert_eq!(progress.samples(22), 208, "a clock that goes back is not believed");
    }

    #[test]
    fn an_evaluation_in_the_output_belongs_to_the_step_that_was_printed_before_it() {
        for (offset, drifts) in [(0, false), (1, false), (0, true)] {
            let mut progress = told("loop", None, None);
            for step in 1..=203 {
                progress.take_told(step_event(step), at(step));
                let printed = if drifts { step.div_ceil(2) } else { step - offset };
                if step % 20 == 0 {
                    progress.take(&reading(Some(printed), &[("loss", 1.0)]), at(step));
                }
            }
            let printed = if drifts { 100 } else { 200 - offset };
            let events = progress.take(&reading(Some(printed), &[("eval_loss", 0.5)]), at(204));
            let [Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
            let wanted = if drifts { 203 } else { 200 };
            assert_eq!((eval.step, eval.samples), (wanted, wanted), "{offset}, {drifts}");
            let events = progress.take(&reading(None, &[("eval_loss", 0.5)]), at(205));
            let [Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
            assert_eq!(eval.step, 203);
            progress.take_told(Event::Eval(Eval::default()), at(206));
            let again = progress.take(&reading(None, &[("eval_loss", 0.5)]), at(207));
            assert!(again.is_empty(), "the companion tells the same: {again:?}");
        }
    }

    #[test]
    fn a_companion_that_did_not_resume_is_believed() {
        let mut progress = told("loop", None, Some(5));
        assert_eq!(progress.step, 0);
        assert_eq!(progress.take_told(step_event(1), at(1)).len(), 2);
        assert_eq!((progress.total, progress.is_complete()), (Some(5), false));
        progress.follow(&introduction("loop", None, Some(1)));
        assert!(progress.is_complete() && progress.step == 1, "a change of its values moves nothing");
    }

    #[test]
    fn steps_that_another_process_takes_again_count_again() {
        let mut progress = told("loop", None, None);
        (1..=30).for_each(|step| drop(progress.take_told(step_event(step), at(0))));
        progress.go_back();
        progress.follow(&introduction("loop", Some(20), None));
        assert_eq!((progress.step, progress.samples(20)), (20, 200));
        assert!(matches!(&progress.take_told(step_event(21), at(1))[..], [Event::Step(_)]));
        assert!(progress.take_told(step_event(20), at(1)).is_empty());
    }

    #[test]
    fn a_loss_in_the_output_joins_the_step_that_has_none() {
        let mut progress = told("torch", None, None);
        let plain = |step| Event::Step(Step { step, samples: step, lr: Some(0.1), compute_ms: 8.0, ..Step::default() });
        assert!(matches!(&progress.take_told(plain(1), at(0))[..], [Event::Phase { .. }]), "it waits for a loss");
        progress.take(&reading(Some(99), &[("loss", 2.5)]), at(1));
        let events = progress.take_told(plain(2), at(10));
        let [Event::Step(step)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((step.step, step.loss, step.lr, step.compute_ms), (1, Some(2.5), Some(0.1), 8.0));
        let Some(Event::Step(step)) = progress.tick(at(10) + MERGED) else { panic!("time has passed") };
        assert_eq!((step.step, step.loss), (2, None));
        progress.take(&reading(None, &[("loss", f64::NAN)]), at(20));
        assert!(progress.take_told(plain(3), at(30)).is_empty());
        let Some(Event::Skipped(skipped)) = progress.flush() else { panic!("printed before its step") };
        assert_eq!((skipped.step, skipped.applied, progress.nan_in_a_row), (3, true, 1));
    }

    #[test]
    fn a_companion_goes_on_where_the_output_is_not_certain_any_more() {
        let mut progress = told("torch", None, None);
        progress.follow_output();
        progress.step = 0;
        progress.take(&reading(Some(100), &[("loss", 2.5)]), at(1));
        let Some(Event::Step(step)) = progress.follow_on(&introduction("torch", None, None)) else {
            panic!("step 100")
        };
        assert_eq!((step.step, progress.step, progress.total), (100, 100, None));
        let plain = |step| Event::Step(Step { step, samples: step, ..Step::default() });
        assert!(progress.take_told(plain(90), at(2)).is_empty());
        progress.take_told(plain(120), at(2));
        let lost = Reading { count_started_over: Some(20), ..reading(None, &[("loss", 1.5)]) };
        progress.take(&lost, at(3));
        let Some(Event::Step(step)) = progress.flush() else { panic!("step 120") };
        assert_eq!((step.step, step.loss), (120, Some(1.5)));
    }

    #[test]
    fn dropped_steps_count_in_a_row_unless_a_scale_was_halved() {
        let mut progress = told("loop", None, None);
        progress.take_told(skipped(1, false), at(0));
        progress.take_told(skipped(2, true), at(0));
        progress.take_told(skipped(3, false), at(0));
        assert_eq!(progress.nan_in_a_row, 2);
        progress.take_told(step_event(4), at(0));
        assert_eq!(progress.nan_in_a_row, 0);
    }

    #[test]
    fn only_the_end_of_the_training_or_its_last_step_completes_it() {
        let mut progress = told("loop", None, Some(5));
        (1..=4).for_each(|step| drop(progress.take_told(step_event(step), at(0))));
        assert!(!progress.is_complete(), "one step is missing, and every step is reported");
        progress.end_training(4);
        assert!(progress.is_complete() && progress.has_taken_last_step() && progress.training_has_ended());
        assert!(Framework::Loop.sees_losses());
    }
}
