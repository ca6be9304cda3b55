//! Steps that were not finite: skipped by a guard, or taken by a script that has none.

use super::Recorder;
use crate::keeper::sentences;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{Level, Skipped};
use std::mem;

/// Steps between journal notes in a streak of such steps; the first one is always noted.
const NOTE_EVERY: u64 = 100;
/// The loss, among what may not be finite.
const LOSS: &str = "loss";

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
        let continues = self.skips.count > 0 && step > self.skips.steps.1;
        let (count, first) = if continues { (self.skips.count + 1, self.skips.steps.0) } else { (1, step) };
        self.skips = Streak { count, steps: (first, step), what: skipped.what.clone(), was_taken, rescaled };
        let counted = if skipped.applied { &mut self.status.unguarded } else { &mut self.status.skipped };
        *counted += 1;
        self.proving.skipped(step);
        self.record_non_finite(skipped);
        if self.skips.count % NOTE_EVERY == 1 {
            let level = if skipped.rescaled { Level::Info } else { Level::Warn };
            self.note(level, JournalKind::Skip, sentences::skipped(skipped));
        }
    }

    /// Returns the number of steps in a row, up to the newest, that were not finite. A loss scale that is being lowered does
    /// not count.
    pub(crate) fn open_streak(&self) -> u64 {
        if self.skips.rescaled { 0 } else { self.skips.count }
    }

    /// Returns how many of them had a loss that was not finite, if that was so for the newest.
    pub(crate) fn open_streak_of_losses(&self) -> u64 {
        if self.skips.what == LOSS { self.open_streak() } else { 0 }
    }

    /// Returns what was not finite in the newest step, and the first step of that streak.
    pub(crate) fn not_finite_since(&self) -> Option<(&str, u64)> {
        (self.open_streak() > 0).then_some((self.skips.what.as_str(), self.skips.steps.0))
    }

    /// Ends a streak before a step that is finite.
    pub(super) fn end_skips(&mut self) {
        let Streak { count, steps, was_taken, .. } = mem::take(&mut self.skips);
        if count > 1 {
            self.note(Level::Warn, JournalKind::Skip, sentences::end_of_skips(steps, was_taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::protocol::blank;
    use crate::protocol::control::Update;
    use crate::protocol::worker::{Event, Skipped, Step};
    use crate::store::writer::Writer;
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
        (recorder.status.skipped, recorder.status.unguarded, last)
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
