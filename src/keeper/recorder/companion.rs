//! Records what the companion of a command reports.

use super::Recorder;
use crate::protocol::companion::CompanionNews;
use crate::protocol::control::StageName;
use std::time::Duration;

impl Recorder {
    /// Records the part of a companion's introduction that a worker's hello holds.
    pub(super) fn record_companion(&mut self, companion: &CompanionNews, now: Duration) {
        if let Some(passage) = &mut self.passage {
            passage.finish_start(now);
        }
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

    /// Forgets the knobs that the script ignored on the last rung, and its ranks: those of this one are not known yet.
    pub(super) fn forget_last_processes(&mut self) {
        self.status.ranks.clear();
        if let Some(companion) = &mut self.status.companion {
            companion.ignored.clear();
        }
    }
}
