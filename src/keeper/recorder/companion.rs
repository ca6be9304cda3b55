//! Records what the companion of a command reports.

use super::Recorder;
use crate::protocol::companion::CompanionNews;

impl Recorder {
    /// Records the part of a companion's introduction that a worker's hello holds.
    pub(super) fn record_companion(&mut self, companion: &CompanionNews) {
        self.status.parameters = companion.parameters.or(self.status.parameters);
        self.status.epoch_samples = companion.epoch_units.or(self.status.epoch_samples);
        if let Some(unit) = &companion.unit {
            self.status.unit.clone_from(unit);
        }
    }

    /// Takes back the newest shift, which changed nothing.
    pub fn uncount_shift(&mut self) {
        self.status.shifts = self.status.shifts.saturating_sub(1);
    }

    /// Forgets the knobs that the script ignored on the last rung: those of this one are not known yet.
    pub(super) fn forget_ignored_knobs(&mut self) {
        if let Some(companion) = &mut self.status.companion {
            companion.ignored.clear();
        }
    }
}
