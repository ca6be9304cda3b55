//! Steps in the output beside those of a companion that sees no losses: which of the two count, and the notes about
//! losses whose step is unknown.

use super::super::Purpose;
use super::super::run_loop::Harness;
use crate::log_metrics::Reading;
use crate::protocol::worker::{Event, Level};
use std::borrow::Cow;

/// Why steps that begin again do not count, and what helps.
const BEGUN_AGAIN: &str = "the number of steps before it is not certain, so the curve waits. Print a step that counts over all \
                           epochs, or the epoch and its length, as in `epoch 2 step 10/100 loss 0.5`";
/// Losses without a step after which the output is taken to name none.
const STEPLESS: u32 = 3;

/// The steps that the output names.
#[derive(Debug, Default)]
pub(in crate::harness) struct OutputSteps {
    /// They count, although a companion counts its own.
    pub(super) has_steps: bool,
    /// They started over, and none is certain any more.
    pub(super) is_uncertain: bool,
    /// Losses that no step was named for.
    stepless: u32,
    /// An output without a step was reported.
    pub(in crate::harness) is_unread_noted: bool,
}

impl Harness {
    /// Returns a reading whose count is not certain with its step, if the companion counts the same: a resumed script that
    /// prints a later epoch may count within it.
    fn confirm_count(&mut self, reading: &Reading) -> Option<Reading> {
        let count = reading.count_started_over?;
        let OutputSteps { has_steps, is_uncertain, .. } = self.companion.output;
        let is_same = count.abs_diff(self.progress.step) <= 1;
        if has_steps || is_uncertain || !is_same || !self.counts_steps_alone() {
            return None;
        }
        self.reader.confirm_count();
        Some(Reading { step: Some(count), count_started_over: None, ..reading.clone() })
    }

    /// Decides from a reading whose steps count, and reports losses whose step is unknown, once. Returns the reading, with
    /// its step if that has become certain.
    pub(in crate::harness) fn notice_steps_in_output<'a>(&mut self, reading: &'a Reading) -> Cow<'a, Reading> {
        let reading = self.confirm_count(reading).map_or(Cow::Borrowed(reading), Cow::Owned);
        match (reading.step, reading.count_started_over) {
            (_, Some(count)) => self.notice_count_started_over(count),
            (Some(step), None) if step > 0 => self.notice_step_in_output(step),
            (None, None) if reading.value("loss").is_some() => {
                let is_placed = self.progress.places(&reading);
                if !is_placed || reading.is_partial {
                    self.notice_loss_without_step(is_placed);
                }
            }
            (_, None) => {}
        }
        reading
    }

    /// Lets the steps in the output count from now on, if the companion sees no losses.
    fn notice_step_in_output(&mut self, step: u64) {
        self.companion.output.stepless = STEPLESS;
        let is_first = !self.companion.output.has_steps && !self.companion.output.is_uncertain;
        if is_first && self.counts_steps_alone() {
            self.companion.output.has_steps = true;
            self.progress.follow_output();
            self.progress.step = self.progress.step.min(step.saturating_sub(1));
        }
    }

    fn notice_count_started_over(&mut self, count: u64) {
        if std::mem::replace(&mut self.companion.output.is_uncertain, true) {
            return;
        }
        let step = self.progress.step;
        // Nothing begins again before anything was counted: a resumed or an adopted script is in the middle of its epochs.
        let (begun, why) = if count > step && self.reader.step().is_none() {
            let begun = format!("the output begins at {count} in a later epoch");
            (begun, "whether it counts over all epochs shows when the next one begins; until then the curve waits")
        } else {
            let begun = format!("the steps in the output begin again at {count} after step {step}");
            (begun, BEGUN_AGAIN)
        };
        let companion = self.companion.introduction.clone().filter(|_| self.counts_steps_alone());
        match companion.filter(|_| self.args.purpose != Purpose::Trial) {
            Some(introduction) => {
                self.companion.output.has_steps = false;
                let last = self.progress.follow_on(&introduction);
                if let Some(event) = last {
                    self.send(&event);
                }
                self.send_length();
                let text = format!("{begun}; from here on, the optimizer steps of the script count");
                self.link.send(&Event::Note { level: Level::Info, text });
            }
            None if self.companion.introduction.is_none() => self.warn(format!("{begun}; {why}")),
            None => {}
        }
    }

    /// Reports losses without a step; `is_placed`: they belong to an epoch.
    fn notice_loss_without_step(&mut self, is_placed: bool) {
        if self.companion.introduction.is_some() || self.companion.output.stepless >= STEPLESS {
            return;
        }
        self.companion.output.stepless += 1;
        if self.companion.output.stepless == STEPLESS {
            let so = if is_placed { "the curve counts epochs" } else { "the curve stays empty" };
            self.warn(format!(
                "the output names losses and no step, so {so}; print the step beside the loss, as in `step 10 loss 0.5`"
            ));
        }
    }

    /// Reports whether the companion counts steps and sees no losses.
    fn counts_steps_alone(&self) -> bool {
        self.companion.introduction.as_ref().is_some_and(|introduction| !introduction.framework.sees_losses())
    }
}
