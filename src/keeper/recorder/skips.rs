//! Steps that were not finite: skipped by a guard, or taken by a script that has none.

use super::Recorder;
use crate::keeper::sentences;
use crate::protocol::control::{JournalKind, Status};
use crate::protocol::skips::{RecentUpdates, UpdateCounts, UpdateStatus};
use crate::protocol::worker::{Level, Skipped};
use std::mem;

/// Steps between journal notes in a streak of such steps; the first one is always noted.
const NOTE_EVERY: u64 = 100;
/// The loss, among what may not be finite.
const LOSS: &str = "loss";

/// The steps of an attempt that were not finite.
#[derive(Debug, Default)]
pub(super) struct Skips {
    streak: Streak,
    /// Those that the run skipped before the attempt.
    before: u64,
    /// Those whose rows say that they were skipped, and all that were counted: the same steps, as far as both know them.
    rows: u64,
    counts: UpdateCounts,
    recent: RecentUpdates,
}

impl Skips {
    /// Returns those of a run that an earlier keeper recorded, within an attempt.
    pub(super) fn of(status: &Status) -> Self {
        let counts = status.updates.as_ref().map_or_else(UpdateCounts::default, |updates| updates.attempt);
        Self { before: status.skipped.unwrap_or(0).saturating_sub(counts.skipped), counts, ..Self::default() }
    }
}

/// Steps in a row that were not finite, skipped or taken.
#[derive(Debug, Default)]
pub(super) struct Streak {
    /// How many were reported: a script may print every tenth step only.
    count: u64,
    /// The first and the last of them.
    steps: (u64, u64),
    /// The part of the last that was not finite: `loss`, `gradient`.
    what: String,
    /// The script took it anyway.
    was_taken: bool,
    /// The loss scale was lowered for it.
    rescaled: bool,
}

impl Recorder {
    pub(super) fn record_skip(&mut self, skipped: &Skipped) {
        let Skipped { step, applied: was_taken, rescaled, .. } = *skipped;
        // A run that went back begins another.
        let before = &self.skips.streak;
        let continues = before.count > 0 && step > before.steps.1;
        let (count, first) = if continues { (before.count + 1, before.steps.0) } else { (1, step) };
        self.skips.streak = Streak { count, steps: (first, step), what: skipped.what.clone(), was_taken, rescaled };
        if skipped.applied {
            self.status.unguarded += 1;
        } else {
            self.skips.rows += 1;
            self.count_skipped();
        }
        self.proving.skipped(step);
        self.record_non_finite(skipped);
        if count % NOTE_EVERY == 1 {
            let level = if skipped.rescaled { Level::Info } else { Level::Warn };
            self.note(level, JournalKind::Skip, sentences::skipped(skipped));
        }
    }

    /// Records the updates of the attempt that a command has counted.
    pub fn record_updates(&mut self, counts: UpdateCounts) {
        let new = counts.since(self.skips.counts);
        self.skips.recent.add(new.skipped, new.due);
        self.skips.counts = counts;
        self.status.updates = Some(UpdateStatus { attempt: counts, recent: self.skips.recent.share() });
        self.count_skipped();
    }

    /// Notes whether skipped updates are counted from here on: then none were skipped yet.
    pub(super) fn begin_counting(&mut self, is_counted: bool) {
        if is_counted {
            self.status.skipped.get_or_insert(0);
        } else if self.status.updates.is_none() && self.skips.rows == 0 {
            self.status.skipped.take_if(|skipped| *skipped == 0);
        }
    }

    /// Begins an attempt, whose updates are counted anew.
    pub(super) fn forget_updates(&mut self) {
        let before = self.status.skipped.unwrap_or(0);
        let streak = mem::take(&mut self.skips.streak);
        self.skips = Skips { streak, before, ..Skips::default() };
        self.status.updates = None;
    }

    fn count_skipped(&mut self) {
        let Skips { before, rows, counts, .. } = &self.skips;
        self.status.skipped = Some(before + counts.skipped.max(*rows));
    }

    /// Returns the number of steps in a row, up to the newest, that were not finite. A loss scale that is being lowered does
    /// not count.
    pub(crate) fn open_streak(&self) -> u64 {
        let Streak { rescaled, count, .. } = self.skips.streak;
        if rescaled { 0 } else { count }
    }

    /// Returns how many of them had a loss that was not finite, if that was so for the newest.
    pub(crate) fn open_streak_of_losses(&self) -> u64 {
        if self.skips.streak.what == LOSS { self.open_streak() } else { 0 }
    }

    /// Returns what was not finite in the newest step, and the first step of that streak.
    pub(crate) fn not_finite_since(&self) -> Option<(&str, u64)> {
        let Streak { what, steps, .. } = &self.skips.streak;
        (self.open_streak() > 0).then_some((what.as_str(), steps.0))
    }

    /// Ends a streak before a step that is finite.
    pub(super) fn end_skips(&mut self) {
        let Streak { count, steps, was_taken, .. } = mem::take(&mut self.skips.streak);
        if count > 1 {
            self.note(Level::Warn, JournalKind::Skip, sentences::end_of_skips(steps, was_taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::protocol::blank;
    use crate::protocol::control::{Status, Update};
    use crate::protocol::skips::{SkipShare, UpdateCounts};
    use crate::protocol::worker::{Event, Skipped, Step};
    use crate::store::writer::Writer;
    use serde_json::json;
    use std::time::Duration;

    /// Returns the counts of skipped and taken steps and the last line of the journal, after two of them and a good one.
    fn record(applied: bool) -> (u64, u64, String) {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), blank::status()).unwrap();
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        let skipped = |step| {
            let (what, place) = ("loss".to_owned(), "NaN in the output".to_owned());
            let (parameter, rescaled) = (None, false);
            let skipped = Skipped { step, samples: step, epoch: 0, lr: 0.1, what, place, parameter, rescaled, applied };
            Event::Skipped(skipped)
        };
        let good = Event::Step(Step { step: 3, samples: 3, loss: Some(1.0), ..Step::default() });
        for event in [skipped(1), skipped(2), good] {
            recorder.record_event(&event, Duration::ZERO);
        }
        let mut texts = recorder.take_updates().into_iter().filter_map(|update| match update {
            Update::Journal(row) => Some(row.text),
            _ => None,
        });
        let last = texts.next_back().unwrap();
        (recorder.status.skipped.unwrap(), recorder.status.unguarded, last)
    }

    #[test]
    fn updates_that_are_counted_and_those_with_rows_are_the_same() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let fresh = || Status { skipped: None, ..blank::status() };
        let mut recorder = Recorder::new(Writer::open(&path).unwrap(), fresh()).unwrap();
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        assert_eq!(recorder.status.skipped, None, "nobody tells");
        recorder.begin_counting(true);
        assert_eq!(recorder.status.skipped, Some(0));
        recorder.begin_counting(false);
        assert_eq!(recorder.status.skipped, None, "it cannot tell any more");
        let counts = |due, skipped| UpdateCounts { due, skipped, rescaled: 0 };
        recorder.record_updates(counts(100, 10));
        recorder.record_updates(counts(400, 11));
        let updates = recorder.status.updates.clone().unwrap();
        assert_eq!((recorder.status.skipped, updates.recent), (Some(11), SkipShare { skipped: 1, of: 300 }));
        let row = |step| -> Event {
            let skipped = json!({
                "event": "skipped", "step": step, "samples": step, "epoch": 0, "lr": 0.1, "what": "loss", "where": "the output",
            });
            serde_json::from_value(skipped).unwrap()
        };
        (401..=412).for_each(|step| recorder.record_event(&row(step), Duration::ZERO));
        assert_eq!(recorder.status.skipped, Some(12), "a row for each, and one more");
        let stored = recorder.status.clone();
        recorder.put_fact("status", &stored);
        recorder.flush();
        drop(recorder);
        // The next keeper hears of the same attempt, and then of another.
        let mut next = Recorder::new(Writer::open(&path).unwrap(), fresh()).unwrap();
        next.record_updates(counts(500, 14));
        assert_eq!(next.status.skipped, Some(15));
        next.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        next.record_updates(counts(10, 1));
        assert_eq!(next.status.skipped, Some(16));
    }

    #[test]
    fn a_step_that_the_script_took_anyway_is_not_called_skipped() {
        assert_eq!(record(false), (2, 0, "skipped steps 1 to 2".to_owned()));
        assert_eq!(
            record(true),
            (0, 2, "what was printed from step 1 to 2 was not finite, and the steps were taken".to_owned())
        );
    }
}
