//! Records what the companion of a command reports.

use super::{Recorder, known, now_ms};
use crate::protocol::companion::CompanionNews;
use crate::protocol::control::StageName;
use crate::protocol::ranks::RankRow;
use crate::protocol::worker::CommandNews;
use std::time::Duration;

impl Recorder {
    /// Records news that only a command has.
    pub(super) fn record_news(&mut self, news: &CommandNews, now: Duration) {
        match news {
            CommandNews::Length { steps, units } => {
                (self.status.total_steps, self.status.total_samples) = (known(*steps), known(*units));
                self.status.ends_ms = None;
            }
            CommandNews::Companion(companion) => self.record_companion(companion, now),
            CommandNews::WentBack { step, samples } => self.record_going_back(*step, *samples),
            CommandNews::Resumed { resumed, samples } => self.record_resumed(resumed, *samples),
            CommandNews::Measured { checkpoint, evaluation } => self.record_measured(*checkpoint, *evaluation),
            CommandNews::TimeLeft { ms } => {
                let left = i64::try_from(*ms).unwrap_or(i64::MAX);
                self.status.ends_ms =
                    Some(now_ms().saturating_add(left)).filter(|_| self.status.total_samples.is_none());
            }
            CommandNews::Unread(unread) => self.status.unread = Some(unread.clone()),
            CommandNews::Active
            | CommandNews::Stacks { .. }
            | CommandNews::Ranks { .. }
            | CommandNews::Epoch { .. }
            | CommandNews::Unmatched { .. }
            | CommandNews::Fingerprint(_)
            | CommandNews::Updates(_)
            | CommandNews::Ended { .. } => {}
        }
    }

    /// Records the part of a companion's introduction that a worker's hello holds.
    pub(super) fn record_companion(&mut self, companion: &CompanionNews, now: Duration) {
        if let Some(passage) = &mut self.passage {
            passage.finish_start(now);
        }
        self.begin_counting(companion.counts_skips);
        self.status.parameters = companion.parameters.or(self.status.parameters);
        self.status.epoch_samples = companion.epoch_units.or(self.status.epoch_samples);
        if let Some(unit) = &companion.unit {
            self.status.unit.clone_from(unit);
        }
    }

    /// Begins to time the first step of a worker that has introduced itself. The harness of a command does so before the
    /// command has imported anything, so its start is timed until its companion reports.
    pub(super) fn await_first_step(&mut self, now: Duration) {
        // Only a command has a level.
        if self.status.level.is_none() {
            return self.passage_part(StageName::FirstStep, now);
        }
        if let Some(passage) = &mut self.passage {
            passage.start_command();
        }
    }

    /// Takes back the newest shift, which changed nothing.
    pub fn uncount_shift(&mut self) {
        self.status.shifts = self.status.shifts.saturating_sub(1);
    }

    /// Records where the ranks of the worker stand.
    pub fn record_ranks(&mut self, rows: &[RankRow]) {
        // A message may be read after the end of the worker that sent it.
        if self.status.pid_worker.is_some() {
            self.status.ranks = rows.to_vec();
        }
    }

    /// Forgets the knobs that the script ignored in the last attempt, and its ranks: those of this one are not known yet.
    pub(super) fn forget_last_processes(&mut self) {
        self.status.ranks.clear();
        self.forget_updates();
        if let Some(companion) = &mut self.status.companion {
            companion.ignored.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recorder;
    use crate::protocol::blank;
    use crate::protocol::blank::rank as row;
    use crate::protocol::ranks::RankPhase;
    use crate::store::writer::Writer;
    use std::time::Duration;

    #[test]
    fn the_ranks_of_a_worker_are_forgotten_once_it_is_gone() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut recorder = Recorder::new(Writer::open(&path).unwrap(), blank::status()).unwrap();
        let rows = [row(0, 9, RankPhase::Compute), row(1, 9, RankPhase::Compute)];
        for attempt in 1..=2 {
            recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
            recorder.record_worker(70 + attempt);
            recorder.record_ranks(&rows);
            assert_eq!(recorder.status.ranks, rows);
            recorder.record_exit("exit code 1", true);
            assert!(recorder.status.ranks.is_empty(), "attempt {attempt}");
        }
        recorder.record_ranks(&rows);
        assert!(recorder.status.ranks.is_empty(), "a late message");
        recorder.record_worker(73);
        recorder.record_ranks(&rows);
        let stored = recorder.status.clone();
        recorder.put_fact("status", &stored);
        recorder.flush();
        drop(recorder);
        let next = Recorder::new(Writer::open(&path).unwrap(), blank::status()).unwrap();
        assert!(next.status.ranks.is_empty(), "those that an earlier keeper stored");
    }
}
