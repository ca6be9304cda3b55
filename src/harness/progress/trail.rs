//! When the output counted which step. It tells the step of a checkpoint whose name has none.

use std::collections::VecDeque;
use std::time::Duration;

/// Most steps that are remembered.
const MOST: usize = 16_384;
/// Uncertainty of a step that is read off the trail: a bar is drawn before its step or after it, and not for each one.
const STEPS: f64 = 1.0;
/// Difference below which a number and the step beside it may be the same.
const NEAR: u64 = 4;
/// Intervals at which scripts save.
const ROUND: [u64; 4] = [1000, 500, 100, 10];

/// The newest steps, with the time of each on the harness's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trail(VecDeque<(Duration, u64)>);

impl Trail {
    /// Records that the output counts a step, if it is a later one.
    pub fn record(&mut self, step: u64, now: Duration) {
        if self.0.back().is_some_and(|(_, newest)| step <= *newest) {
            return;
        }
        self.0.push_back((now, step));
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Reports whether a number in the name of a checkpoint is too low to be the step of a file written at this time: it
    /// counts epochs. A count with wide gaps around that time proves nothing.
    #[must_use]
    pub fn is_beyond(&self, number: u64, at: Duration) -> bool {
        let after = self.0.partition_point(|(time, _)| *time < at).min(self.0.len().saturating_sub(1));
        let (Some((_, before)), Some((_, behind))) =
            (after.checked_sub(1).and_then(|at| self.0.get(at)), self.0.get(after))
        else {
            return false;
        };
        let gap = behind - before;
        number < before / 2 && before - number > 2 * gap + NEAR
    }

    /// Returns the step that had been taken at a time; none if that is not remembered. Among those that it may be, a round
    /// number is the likeliest: scripts save every 10 or 100 steps.
    #[must_use]
    pub fn find_step(&self, at: Duration) -> Option<u64> {
        let after = self.0.partition_point(|(time, _)| *time < at);
        let (begun, before) = *self.0.get(after.checked_sub(1)?)?;
        let Some((ended, behind)) = self.0.get(after) else { return Some(before) };
        let share = at.saturating_sub(begun).as_secs_f64() / ended.saturating_sub(begun).as_secs_f64();
        let likeliest = before as f64 + share * (behind - before) as f64;
        let least = before.max((likeliest - STEPS).ceil() as u64);
        let most = (*behind).min((likeliest + STEPS).floor() as u64);
        let round = ROUND.iter().map(|interval| most / interval * interval).find(|step| *step >= least.max(1));
        Some(round.unwrap_or(likeliest.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::Trail;
    use std::time::Duration;

    fn trail(readings: &[(u64, u64)]) -> Trail {
        let mut trail = Trail::default();
        for (ms, step) in readings {
            trail.record(*step, Duration::from_millis(*ms));
        }
        trail
    }

    #[test]
    fn a_checkpoint_has_the_step_at_which_it_was_written_and_not_that_at_which_it_was_found() {
        for (readings, written_ms, step) in [
            // A bar counts a step once the next one begins; then the script evaluates.
            (&[(0, 48), (60, 49), (9000, 50), (9060, 51)][..], 130, 50),
            // A line for each step, and the save behind it.
            (&[(0, 49), (60, 50), (120, 51), (180, 52)], 65, 50),
            // A bar that is drawn ten times a second.
            (&[(0, 48), (100, 51), (200, 54)], 70, 50),
            // A line for each hundredth step.
            (&[(0, 100), (5000, 200)], 2500, 150),
            (&[(0, 100), (5000, 200), (10_000, 300)], 5010, 200),
            // The last save, and one at the end of an epoch.
            (&[(0, 1095), (60, 1096)], 70, 1096),
            (&[(0, 136), (60, 137), (120, 138)], 62, 137),
        ] {
            let found = trail(readings).find_step(Duration::from_millis(written_ms));
            assert_eq!(found, Some(step), "{readings:?} at {written_ms} ms");
        }
        assert_eq!(trail(&[(100, 1)]).find_step(Duration::from_millis(50)), None, "before the first step");
        assert_eq!(Trail::default().find_step(Duration::ZERO), None);
    }

    #[test]
    fn a_number_counts_epochs_if_it_is_far_below_the_steps_around_it() {
        let every = |gap: u64| -> Vec<(u64, u64)> { (1..=60).map(|step| (step * 100, step * gap)).collect() };
        for (readings, number, written_ms, counts_epochs) in [
            (&every(1)[..], 1, 5050, true),
            (&every(3), 3, 5050, true),
            (&every(1), 12, 6100, true),
            (&every(1), 50, 5050, false),
            (&every(1), 60, 6100, false),
            // Lines are printed for the first step and then for every hundredth, or every fifth.
            (&[(0, 1)], 40, 4000, false),
            (&[(0, 1), (9900, 100)], 40, 4000, false),
            (&[(0, 1), (9900, 100)], 140, 14_000, false),
            (&every(1000), 1900, 195, false),
            (&every(5), 2, 150, false),
            // A count that begins again in each epoch, of which the trail has the first.
            (&every(1), 120, 12_000, false),
            (&[], 7, 100, false),
        ] {
            let found = trail(readings).is_beyond(number, Duration::from_millis(written_ms));
            assert_eq!(found, counts_epochs, "{number} at {written_ms} ms in {readings:?}");
        }
    }

    #[test]
    fn only_the_newest_steps_are_remembered() {
        let mut trail = Trail::default();
        for step in 1..=20_000 {
            trail.record(step, Duration::from_millis(step));
        }
        assert_eq!(trail.find_step(Duration::from_millis(100)), None);
        assert_eq!(trail.find_step(Duration::from_millis(19_001)), Some(19_000));
    }
}
