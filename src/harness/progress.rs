//! Turns readings of the command's output and files into events of the worker contract. Pure.
//!
//! Several readings may describe one step: a progress bar counts it, a log line brings its loss. They are merged until
//! another step begins, or nothing more arrives for a moment. Once a companion reports the training, its steps count and
//! those in the output do not.

mod burst;
mod epochs;
mod told;
pub mod trail;

use super::skips::SkipCounter;
use crate::log_metrics::{Reading, Shares};
use crate::protocol::progress::began_after;
use crate::protocol::skips::UpdateCounts;
use crate::protocol::worker::{Eval, Event, Phase, Skipped, Step};
use burst::StepTimer;
use epochs::EpochSteps;
use std::collections::BTreeMap;
use std::time::Duration;
use trail::Trail;

/// Time in which readings of one step are merged.
const MERGED: Duration = Duration::from_millis(500);
/// Names that belong to a pass over validation data, or begin such names.
const OF_EVAL: [&str; 4] = ["eval_", "val_", "valid_", "test_"];
/// Values that Hugging Face prints with an evaluation, and that say nothing about the model.
const TIMES: [&str; 4] = ["runtime", "samples_per_second", "steps_per_second", "model_preparation_time"];

/// Where the command is.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandProgress {
    /// Units of the run's clock in a step.
    units: u64,
    micro_batches: u32,
    /// The newest step that was read.
    pub step: u64,
    /// The last step of the run, once known.
    pub total: Option<u64>,
    /// The epochs of the run, as far as it declares them.
    declared_epochs: Option<u64>,
    /// Steps of a training that counts epochs alone.
    epochs: EpochSteps,
    /// The widest gap between reported steps.
    widest: u64,
    epoch: f64,
    /// The epoch that was reported last.
    reported_epoch: Option<u64>,
    /// The epoch that the keeper has.
    pub sent_epoch: Option<u64>,
    pending: Option<Pending>,
    /// Measures the steps that the output counts in this attempt.
    timer: StepTimer,
    /// The time of each step in the readings that are being taken; none after a start.
    step_time: Option<Duration>,
    lr: f64,
    began: bool,
    /// Losses in a row that were NaN or infinite.
    pub nan_in_a_row: u64,
    /// The step before the attempt, once a step was read.
    first: Option<u64>,
    /// The updates that were left out.
    pub skips: SkipCounter,
    /// The script said so of one, and its loss has not been seen.
    left_out: bool,
    /// Set once a companion reports the training.
    told: Option<told::ReportedState>,
    /// When which step was counted.
    pub trail: Trail,
    /// Which accuracies of the companion are percentages.
    shares: Shares,
}

#[derive(Debug, Clone, PartialEq)]
struct Pending {
    step: u64,
    since: Duration,
    took: Option<Duration>,
    values: BTreeMap<String, f64>,
    /// More of it follows, however long that takes.
    is_partial: bool,
    /// The step as a companion reported it, without a loss.
    told: Option<Step>,
}

impl CommandProgress {
    /// Creates the progress of a command that continues after step `from`. `units` is the number of samples in a
    /// step, or 1 if it is not known.
    #[must_use]
    pub fn new(from: u64, units: u64, micro_batches: u32, total: Option<u64>) -> Self {
        Self {
            units,
            micro_batches,
            step: from,
            total,
            declared_epochs: None,
            epochs: EpochSteps::new(from),
            widest: 1,
            epoch: 0.0,
            reported_epoch: None,
            sent_epoch: None,
            pending: None,
            timer: StepTimer::default(),
            step_time: None,
            lr: 0.0,
            began: false,
            nan_in_a_row: 0,
            first: Some(from).filter(|from| *from > 0),
            skips: SkipCounter::new(from > 0),
            left_out: false,
            told: None,
            trail: Trail::default(),
            shares: Shares::default(),
        }
    }

    /// Notes how many epochs the run declares.
    #[must_use]
    pub fn of_epochs(self, declared_epochs: Option<u64>) -> Self {
        Self { declared_epochs, ..self }
    }

    /// Reports whether the step of a reading is known, if only by its epoch.
    #[must_use]
    pub fn places(&self, reading: &Reading) -> bool {
        reading.step.or(self.epochs.place(reading)).is_some()
    }

    /// Returns the run's clock at a step.
    #[must_use]
    pub fn samples(&self, step: u64) -> u64 {
        let Some(told) = &self.told else { return step.saturating_mul(self.units) };
        let (known, samples) = told.clock;
        match step.checked_sub(known) {
            Some(more) => samples.saturating_add(more.saturating_mul(self.units)),
            None => samples.saturating_sub((known - step).saturating_mul(told.per_step.unwrap_or(self.units))),
        }
    }

    /// Measures the steps in readings that are taken next; the script's own count is that many steps behind the run's.
    pub fn time_steps(&mut self, readings: &[Reading], offset: u64, now: Duration) {
        let counted = readings.iter().filter(|reading| reading.count_started_over.is_none() && !is_eval(reading));
        let place = |reading: &Reading| Some(reading.step?.saturating_add(offset));
        let newest = counted.filter_map(|reading| place(reading).or(self.epochs.place(reading))).max().unwrap_or(0);
        if newest > self.step {
            self.step_time = self.timer.measure(self.step, newest, now);
        }
    }

    /// Takes a reading.
    pub fn take(&mut self, reading: &Reading, now: Duration) -> Vec<Event> {
        self.skips.read(reading);
        if reading.skip.is_some() {
            self.left_out = true;
            return Vec::new();
        }
        if self.told.is_some() {
            return self.take_beside_companion(reading);
        }
        self.epochs.observe(reading);
        if reading.count_started_over.is_some() {
            return Vec::new();
        }
        let placed = reading.step.or(self.epochs.place(reading));
        let is_before = self.is_before_first_step(reading);
        let mut events = self.begin(placed.filter(|step| *step > 0 || is_before));
        if is_before {
            self.merge_into(0, None, now);
        }
        self.learn_length(reading);
        if let Some(epoch) = reading.epoch {
            self.report_epoch(epoch);
        }
        if is_eval(reading) {
            let placed = if self.epochs.follows_losses() { Some(self.step) } else { placed };
            let is_unplaced = placed.is_none() && self.step == 0;
            let step = if is_unplaced { self.epochs.place_evaluation() } else { placed.unwrap_or(self.step) };
            if self.epochs.counts() {
                events.extend(self.open(step, now));
            }
            events.extend(self.flush());
            events.push(self.eval(step.max(self.step), reading));
            return events;
        }
        let step = placed.unwrap_or(self.step);
        events.extend(self.open(step, now));
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.step == step) {
            pending.values.extend(reading.values.iter().cloned());
            pending.is_partial |= reading.is_partial;
        }
        events
    }

    /// Begins to merge what is reported about a step; returns the event of the one before.
    fn open(&mut self, step: u64, now: Duration) -> Option<Event> {
        let is_another = self.pending.as_ref().is_some_and(|pending| pending.step != step);
        let before = if is_another { self.flush() } else { None };
        // A count that goes back belongs to another bar.
        if step > self.step {
            // The total was that of an epoch.
            self.total = self.total.filter(|total| step <= *total);
            self.widest = self.widest.max(step - self.step).min(step);
            self.step = step;
            self.merge_into(step, self.step_time, now);
        }
        before
    }

    fn merge_into(&mut self, step: u64, took: Option<Duration>, now: Duration) {
        self.pending = Some(Pending { step, since: now, took, values: BTreeMap::new(), is_partial: false, told: None });
    }

    /// Reports whether a reading is that of the weights before the first step, as scripts print it that count from 0. No step
    /// was taken for it.
    fn is_before_first_step(&self, reading: &Reading) -> bool {
        !self.began && self.first.is_none() && reading.step == Some(0) && reading.value("loss").is_some()
    }

    /// Learns the last step: as it was printed, or from the declared epochs and the size of one.
    fn learn_length(&mut self, reading: &Reading) {
        if self.epochs.counts() {
            // A unit is an epoch then.
            self.units = 1;
            self.total = self.declared_epochs.or(reading.epochs).filter(|epochs| *epochs > 0).or(self.total);
            return;
        }
        let by_epochs = self.declared_epochs.zip(reading.epoch_size).map(|(epochs, size)| epochs.saturating_mul(size));
        self.total = reading.total_steps.or(by_epochs).filter(|total| *total > 0).or(self.total);
    }

    /// Announces the first step.
    fn begin(&mut self, step: Option<u64>) -> Vec<Event> {
        let Some(step) = step.filter(|_| !self.began) else { return Vec::new() };
        self.began = true;
        self.first = self.first.or(Some(began_after(step)));
        vec![Event::Phase { phase: Phase::Training }]
    }

    /// Returns the event of a step once nothing more has arrived for a moment.
    pub fn tick(&mut self, now: Duration) -> Option<Event> {
        let is_due = |pending: &Pending| !pending.is_partial && now.saturating_sub(pending.since) >= MERGED;
        let waited = self.pending.as_ref().is_some_and(is_due);
        if waited { self.flush() } else { None }
    }

    /// Returns the event of the step that is being merged.
    pub fn flush(&mut self) -> Option<Event> {
        let Pending { step, took, mut values, told, .. } = self.pending.take()?;
        let (samples, epoch) = (self.samples(step), self.epoch as u64);
        let [loss, lr, grad_norm] = ["loss", "lr", "grad_norm"].map(|name| values.remove(name));
        self.lr = lr.filter(|lr| lr.is_finite()).unwrap_or(self.lr);
        let broken = [("loss", loss), ("gradient", grad_norm)];
        if let Some((what, value)) = broken.into_iter().find(|(_, value)| value.is_some_and(|value| !value.is_finite()))
        {
            self.nan_in_a_row += 1;
            let place = format!("{} in the command's output", value.unwrap_or(f64::NAN));
            let (what, lr) = (what.to_owned(), self.lr);
            return Some(Event::Skipped(Skipped {
                step,
                samples,
                epoch,
                lr,
                what,
                place,
                parameter: None,
                rescaled: false,
                applied: !std::mem::take(&mut self.left_out),
            }));
        }
        if loss.is_some() {
            self.nan_in_a_row = 0;
        }
        values.retain(|_, value| value.is_finite());
        let compute_ms = took.map_or(0.0, |took| took.as_secs_f64() * 1000.0);
        let lr = lr.filter(|lr| lr.is_finite());
        let micro_batches = self.micro_batches;
        let metrics = values;
        let own = Step { step, samples, epoch, micro_batches, data_wait_ms: 0.0, compute_ms, ..Step::default() };
        Some(Event::Step(Step { loss, lr, grad_norm, metrics, ..told.unwrap_or(own) }))
    }

    fn eval(&self, step: u64, reading: &Reading) -> Event {
        let mut metrics: BTreeMap<String, f64> = BTreeMap::new();
        for (name, value) in reading.values.iter().filter(|(_, value)| value.is_finite()) {
            let short = OF_EVAL.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            metrics.insert(short.to_owned(), *value);
        }
        metrics.retain(|name, _| !TIMES.contains(&name.as_str()));
        let loss = metrics.remove("loss");
        Event::Eval(Eval { step, samples: self.samples(step), loss, metrics, reduced: None })
    }

    /// Takes an epoch that the output names.
    pub fn report_epoch(&mut self, epoch: f64) {
        if epoch.is_finite() && epoch >= 0.0 {
            (self.epoch, self.reported_epoch) = (epoch, Some(epoch as u64));
        }
    }

    /// Returns the reported epoch, if the keeper does not have it yet.
    pub fn epoch_news(&mut self) -> Option<u64> {
        let epoch = self.reported_epoch.filter(|epoch| self.sent_epoch != Some(*epoch))?;
        self.sent_epoch = Some(epoch);
        Some(epoch)
    }

    /// Returns counts of updates that the keeper does not have yet.
    pub fn skip_news(&mut self) -> Option<UpdateCounts> {
        self.skips.news(self.step.saturating_sub(self.first.unwrap_or(self.step)))
    }

    /// Reports whether the command has taken its last step, as far as its output shows. The last steps are often not
    /// reported, if only every tenth one is.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        if let Some(told) = &self.told {
            return told.ended || self.total.is_none_or(|total| self.step >= total);
        }
        self.total.is_none_or(|total| self.step + self.widest >= total)
    }

    /// Reports whether the last step is known and was read.
    #[must_use]
    pub fn has_taken_last_step(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.ended) || self.total.is_some_and(|total| self.step >= total)
    }
}

/// Reports whether a reading is that of an evaluation.
pub fn is_eval(reading: &Reading) -> bool {
    let of_eval = |name: &str| OF_EVAL.iter().any(|prefix| name.starts_with(prefix));
    reading.values.iter().any(|(name, _)| of_eval(name))
}

#[cfg(test)]
pub(in crate::harness) mod tests;
