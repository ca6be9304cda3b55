//! The record of each rung: its steps and its speed.

use super::Recorder;

/// The latest step that the first line of a training may name.
const FIRST_PRINTED: u64 = 1_000;

impl Recorder {
    pub(super) fn measure_rung(&mut self, taken: u64) {
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung) {
            record.steps += taken;
            if let Some(pace) = self.attempt.pace() {
                (record.steps_per_s, record.units_per_s) = (Some(pace.steps_per_s), Some(pace.units_per_s));
            }
        }
    }
}

/// Returns the steps that were taken since the last known one: a command may print only every tenth. A training that begins
/// far on was adopted, or resumed by itself, and took its earlier steps elsewhere.
pub(super) fn steps_taken(last: u64, step: u64) -> u64 {
    match step.saturating_sub(last) {
        taken if last == 0 && taken > FIRST_PRINTED => 1,
        taken => taken.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::steps_taken;

    #[test]
    fn lines_that_leave_out_steps_count_them_and_an_adopted_training_counts_its_own() {
        let cases = [(0, 1, 1), (0, 10, 10), (10, 20, 10), (20, 20, 1), (0, 12_000, 1), (12_000, 12_010, 10)];
        for (last, step, taken) in cases {
            assert_eq!(steps_taken(last, step), taken, "{last} to {step}");
        }
    }
}
