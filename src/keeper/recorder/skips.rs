//! Steps that were not finite: skipped by a guard, or taken by a script that has none.

use super::Recorder;
use crate::keeper::sentences;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{Level, Skipped};

/// Steps between journal notes in a streak of such steps; the first one is always noted.
const NOTE_EVERY: u64 = 100;

impl Recorder {
    pub(super) fn record_skip(&mut self, skipped: &Skipped) {
        self.skips_in_a_row += 1;
        self.last_was_taken = skipped.applied;
        let counted = if skipped.applied { &mut self.status.unguarded } else { &mut self.status.skipped };
        *counted += 1;
        self.record_non_finite(skipped);
        if self.skips_in_a_row % NOTE_EVERY == 1 {
            let level = if skipped.rescaled { Level::Info } else { Level::Warn };
            self.note(level, JournalKind::Skip, sentences::skipped(skipped));
        }
    }

    /// Ends a streak before a step that is finite.
    pub(super) fn end_skips(&mut self, step: u64) {
        if self.skips_in_a_row > 1 {
            let text = sentences::end_of_skips(self.skips_in_a_row, step, self.last_was_taken);
            self.note(Level::Warn, JournalKind::Skip, text);
        }
        self.skips_in_a_row = 0;
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
        assert_eq!(record(false), (2, 0, "skipped 2 steps in a row, up to step 3".to_owned()));
        assert_eq!(record(true), (0, 2, "2 steps in a row were not finite and not skipped, up to step 3".to_owned()));
    }
}
