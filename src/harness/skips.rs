//! Counts the updates that a command left out, where no companion reports each of them. Pure.
//!
//! The companion, sentences in the output and the trainer's own counts tell of the same updates, and each may miss some:
//! the largest of them counts. None says nothing, and then nothing is known.

use super::run_loop::Harness;
use crate::log_metrics::{Reading, Skip, Span, skip_counts};
use crate::protocol::skips::UpdateCounts;
use crate::protocol::worker::{CommandNews, Event};
use std::collections::BTreeMap;

/// The updates of an attempt, as far as they are known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SkipCounter {
    /// As a companion that sees optimizer steps counts them.
    told: UpdateCounts,
    /// It sees those that are left out.
    is_certain: bool,
    /// Sentences.
    said: UpdateCounts,
    /// Counts of the trainer, by name.
    counted: BTreeMap<&'static str, Counted>,
    /// The trainer began to count before this attempt.
    is_continued: bool,
    sent: Option<UpdateCounts>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Counted {
    newest: Option<u64>,
    skipped: u64,
}

impl SkipCounter {
    /// Creates the counter of an attempt; `is_continued` if its trainer may continue its counts.
    pub fn new(is_continued: bool) -> Self {
        Self { is_continued, ..Self::default() }
    }

    /// Takes in an event of a companion that sees optimizer steps alone.
    pub fn take_told(&mut self, event: &Event) {
        match event {
            Event::Step(_) => self.told.due += 1,
            Event::Skipped(skipped) if !skipped.applied => {
                self.told.due += 1;
                self.told.skipped += 1;
                self.told.rescaled += u64::from(skipped.rescaled);
            }
            _ => {}
        }
    }

    /// Notes whether the companion sees updates that are left out.
    pub fn trust_told(&mut self, is_certain: bool) {
        self.is_certain = is_certain;
    }

    /// Takes in a reading of the output or of a file.
    pub fn read(&mut self, reading: &Reading) {
        if let Some(skip) = reading.skip.filter(|skip| *skip != Skip::OutOfMemory) {
            self.said.skipped += 1;
            self.said.rescaled += u64::from(skip == Skip::ByScaler);
        }
        for (name, span, count) in skip_counts(reading) {
            let counted = self.counted.entry(name).or_default();
            let before = match span {
                // The first count of a training that continues is that of its checkpoint.
                Span::Start => counted.newest.unwrap_or(if self.is_continued { count } else { 0 }).min(count),
                Span::LastReport => 0,
            };
            counted.skipped += count - before;
            counted.newest = Some(count);
        }
    }

    /// Returns the counts, once `taken` steps were counted in this attempt; none if nothing is known.
    pub fn counts(&self, taken: u64) -> Option<UpdateCounts> {
        let counted = self.counted.values().map(|counted| counted.skipped).max();
        if !self.is_certain && self.said.skipped == 0 && counted.is_none() {
            return None;
        }
        let by_trainer = UpdateCounts { due: 0, skipped: counted.unwrap_or(0), rescaled: counted.unwrap_or(0) };
        let most = [by_trainer, self.said, self.told].into_iter().max_by_key(|counts| counts.skipped)?;
        let due = if self.told.due > 0 { self.told.due - self.told.skipped + most.skipped } else { taken };
        Some(UpdateCounts { due: due.max(most.skipped), ..most })
    }

    /// Returns counts that the keeper does not have yet.
    pub fn news(&mut self, taken: u64) -> Option<UpdateCounts> {
        let counts = self.counts(taken).filter(|counts| self.sent != Some(*counts))?;
        self.sent = Some(counts);
        Some(counts)
    }
}

impl Harness {
    /// Sends the counts of updates, where no companion reports each of them.
    pub(super) fn send_skips(&mut self) {
        if self.companion.reports_each_step() {
            return;
        }
        if let Some(counts) = self.progress.skip_news() {
            self.link.send_unkept(&Event::Command { news: CommandNews::Updates(counts) });
        }
    }

    /// Sends the last step of the command, and the last counts.
    pub(super) fn send_last_step(&mut self) {
        if let Some(event) = self.progress.flush() {
            self.link.send(&event);
        }
        self.send_skips();
    }
}

#[cfg(test)]
mod tests {
    use super::SkipCounter;
    use crate::harness::progress::tests::step_event;
    use crate::log_metrics::{Reading, Skip};
    use crate::protocol::skips::UpdateCounts;
    use crate::protocol::worker::{Event, Skipped};

    fn sentence(skip: Skip) -> Reading {
        Reading { skip: Some(skip), ..Reading::default() }
    }

    fn count(name: &str, value: f64) -> Reading {
        Reading { values: vec![(name.to_owned(), value)], ..Reading::default() }
    }

    fn skipped(rescaled: bool) -> Event {
        let (what, place) = ("gradient".to_owned(), String::new());
        let (step, samples, epoch, lr, parameter, applied) = (1, 1, 0, 0.1, None, false);
        Event::Skipped(Skipped { step, samples, epoch, lr, what, place, parameter, rescaled, applied })
    }

    fn counts(due: u64, skipped: u64, rescaled: u64) -> UpdateCounts {
        UpdateCounts { due, skipped, rescaled }
    }

    #[test]
    fn nothing_is_known_until_something_tells_of_skips() {
        let mut counter = SkipCounter::default();
        assert_eq!(counter.counts(500), None);
        (0..10).for_each(|step| counter.take_told(&step_event(step)));
        assert_eq!(counter.counts(500), None, "a companion that sees some steps does not see those that never came");
        counter.trust_told(true);
        assert_eq!(counter.counts(500), Some(counts(10, 0, 0)));
        let mut silent = SkipCounter::default();
        silent.read(&count("skipped_steps", 0.0));
        assert_eq!(silent.counts(50), Some(counts(50, 0, 0)), "the trainer says that it left out none");
    }

    #[test]
    fn sources_tell_of_the_same_updates() {
        let mut counter = SkipCounter::default();
        for _ in 0..4 {
            counter.read(&sentence(Skip::ByScaler));
        }
        counter.read(&count("skipped_steps", 4.0));
        assert_eq!(counter.counts(40), Some(counts(40, 4, 4)));
        counter.read(&count("skipped_steps", 6.0));
        assert_eq!(counter.counts(40), Some(counts(40, 6, 6)), "two were not printed");
        for number in 0..90 {
            counter.take_told(&step_event(number));
        }
        counter.trust_told(true);
        (0..10).for_each(|_| counter.take_told(&skipped(true)));
        assert_eq!(counter.counts(40), Some(counts(100, 10, 10)), "the companion counts them all");
        assert_eq!(counter.news(40), Some(counts(100, 10, 10)));
        assert_eq!(counter.news(40), None);
    }

    #[test]
    fn counts_of_a_trainer_go_on_from_its_checkpoint_or_start_anew_with_each_line() {
        let mut counter = SkipCounter::new(true);
        counter.read(&count("skipped_steps", 30.0));
        counter.read(&count("skipped_steps", 32.0));
        assert_eq!(counter.counts(20), Some(counts(20, 2, 2)));
        let mut megatron = SkipCounter::default();
        for (skipped, nan) in [(1.0, 0.0), (2.0, 1.0), (0.0, 0.0)] {
            megatron.read(&count("number_of_skipped_iterations", skipped));
            megatron.read(&count("number_of_nan_iterations", nan));
        }
        assert_eq!(megatron.counts(30), Some(counts(30, 3, 3)));
    }

    #[test]
    fn a_script_that_counts_only_its_updates_may_leave_out_more_than_it_takes() {
        let mut counter = SkipCounter::default();
        (0..8).for_each(|_| counter.read(&sentence(Skip::NotFinite)));
        assert_eq!(counter.counts(2), Some(counts(8, 8, 0)));
    }
}
