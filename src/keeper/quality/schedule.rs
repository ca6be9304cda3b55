//! Decides when the quality of a checkpoint is measured.

use crate::config::units::Every;
use serde::{Deserialize, Serialize};

/// The checkpoint that was measured last, or was tried and failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Its step.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// When its measurement began, in Unix milliseconds.
    pub time_ms: i64,
}

/// The rhythm of measurements. A border of steps or epochs is crossed once, however late its checkpoint comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    every: Every,
    mark: Mark,
}

impl Schedule {
    /// Continues from a measurement of an earlier keeper; without one, at the beginning of the run.
    pub fn new(every: Every, mark: Mark) -> Self {
        Self { every, mark }
    }

    /// Reports whether a checkpoint, as it would be marked now, is due. `epoch` is the length of an epoch on the run's
    /// clock, if it is known.
    pub fn is_due(&self, checkpoint: Mark, epoch: Option<u64>) -> bool {
        let crosses = |length: u64, from: u64, to: u64| length > 0 && to / length > from / length;
        let due = match self.every {
            Every::Steps(steps) => crosses(steps, self.mark.step, checkpoint.step),
            Every::Epochs(epochs) => {
                let length = epoch.unwrap_or(0).saturating_mul(epochs);
                crosses(length, self.mark.samples, checkpoint.samples)
            }
            Every::Seconds(seconds) => (checkpoint.time_ms - self.mark.time_ms) as f64 >= seconds * 1000.0,
            Every::Auto | Every::Never => false,
        };
        due && self.is_new(checkpoint)
    }

    /// Reports whether a checkpoint is newer than the last one measured: at its end, a run is measured regardless of
    /// the rhythm.
    pub fn is_new(&self, checkpoint: Mark) -> bool {
        checkpoint.step > self.mark.step
    }

    /// Records a measurement, and returns what the next keeper has to know.
    pub fn record(&mut self, mark: Mark) -> Mark {
        self.mark = mark;
        mark
    }

    /// Forgets measurements beyond a step that the run went back to. Returns what the next keeper has to know, if
    /// anything changed.
    pub fn go_back(&mut self, step: u64, samples: u64) -> Option<Mark> {
        let gone = self.mark.step > step;
        gone.then(|| self.record(Mark { step, samples, ..self.mark }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Schedule};
    use crate::config::units::Every;

    fn at(step: u64) -> Mark {
        Mark { step, samples: step * 10, time_ms: step as i64 * 100 }
    }

    /// Returns the checkpoints that are measured of those that are offered in turn.
    fn measured(every: Every, offered: &[u64], epoch: Option<u64>) -> Vec<u64> {
        let mut schedule = Schedule::new(every, Mark::default());
        let due = |step: &u64| {
            let due = schedule.is_due(at(*step), epoch);
            if due {
                schedule.record(at(*step));
            }
            due
        };
        offered.iter().copied().filter(due).collect()
    }

    #[test]
    fn each_border_is_measured_once_at_the_first_checkpoint_behind_it() {
        let offered = [7, 40, 49, 55, 55, 98, 101, 149, 330, 340, 350];
        assert_eq!(measured(Every::Steps(50), &offered, None), [55, 101, 330, 350]);
        // 25 steps in an epoch.
        assert_eq!(measured(Every::Epochs(2), &offered, Some(250)), [55, 101, 330, 350]);
        assert_eq!(measured(Every::Epochs(2), &offered, None), [0; 0], "the length of an epoch is not known yet");
        assert_eq!(measured(Every::Seconds(5.0), &offered, None), [55, 149, 330]);
        for every in [Every::Never, Every::Auto] {
            assert_eq!(measured(every, &offered, Some(1)), [0; 0]);
        }
    }

    #[test]
    fn a_run_that_goes_back_measures_again_what_it_repeats() {
        let mut schedule = Schedule::new(Every::Steps(50), at(120));
        assert!(!schedule.is_due(at(149), None) && schedule.is_due(at(150), None));
        assert_eq!(schedule.go_back(130, 1300), None);
        assert_eq!(schedule.go_back(80, 800).map(|mark| mark.step), Some(80));
        assert!(!schedule.is_due(at(99), None) && schedule.is_due(at(100), None));
        assert!(schedule.is_new(at(81)) && !schedule.is_new(at(80)));
    }
}
