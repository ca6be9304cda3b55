//! When a plain loop is asked to save: at the interval that loses least, or every few epochs. Intervals in steps or
//! seconds are the companion's own, because it sees each step. Pure.

use crate::config::units::Every;
use crate::protocol::companion::SaveRhythm;
use crate::recipe::interval::{FIRST_S, Faults, SHORTEST_S, best_interval_s};
use std::time::Duration;

/// The saves that the harness asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SaveTimer {
    every: Every,
    faults: Faults,
    /// When the newest save was asked for, or the training began.
    asked: Duration,
    /// The epoch at that time.
    epoch: u64,
    /// Whether a save was asked for.
    has_asked: bool,
    /// The cost of the newest save, in seconds.
    cost_s: Option<f64>,
}

impl SaveTimer {
    /// Creates the timer of an attempt, after earlier ones that failed.
    pub fn new(every: Every, faults: Faults) -> Self {
        Self { every, faults, asked: Duration::ZERO, epoch: 0, has_asked: false, cost_s: None }
    }

    /// Returns the part of the rhythm that the companion follows on its own.
    pub fn rhythm(&self) -> SaveRhythm {
        match self.every {
            Every::Steps(steps) => SaveRhythm { every_steps: Some(steps), every_seconds: None },
            Every::Seconds(seconds) => SaveRhythm { every_steps: None, every_seconds: Some(seconds) },
            Every::Auto | Every::Epochs(_) | Every::Never => SaveRhythm::default(),
        }
    }

    /// Begins to count.
    pub fn begin(&mut self, now: Duration, epoch: u64) {
        (self.asked, self.epoch) = (now, epoch);
    }

    /// Records how long training stopped for a save.
    pub fn record_save(&mut self, pause_ms: f64) {
        self.cost_s = Some(pause_ms / 1000.0);
    }

    /// Reports whether a save is due, and counts from there.
    pub fn is_due(&mut self, now: Duration, epoch: u64) -> bool {
        let due = match self.every {
            Every::Auto => {
                let mtbf_s = self.faults.mtbf_s(now.as_secs_f64());
                let unmeasured_s = if self.has_asked { SHORTEST_S } else { FIRST_S };
                let interval_s = self.cost_s.map_or(unmeasured_s, |cost_s| best_interval_s(cost_s, mtbf_s));
                now.saturating_sub(self.asked).as_secs_f64() >= interval_s
            }
            Every::Epochs(epochs) => epoch >= self.epoch.saturating_add(epochs),
            Every::Steps(_) | Every::Seconds(_) | Every::Never => false,
        };
        if due {
            self.has_asked = true;
            self.begin(now, epoch);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::SaveTimer;
    use crate::config::units::Every;
    use crate::protocol::companion::SaveRhythm;
    use crate::recipe::interval::Faults;
    use std::time::Duration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_interval_follows_the_cost_of_saves() {
        let mut timer = SaveTimer::new(Every::Auto, Faults::default());
        timer.begin(seconds(100), 0);
        assert!(!timer.is_due(seconds(109), 0));
        assert!(timer.is_due(seconds(110), 0), "the first one soon");
        assert!(!timer.is_due(seconds(139), 0), "it may still be written");
        assert!(timer.is_due(seconds(140), 0), "the shortest interval until a save is measured");
        timer.record_save(1000.0);
        assert!(!timer.is_due(seconds(280), 0));
        assert!(timer.is_due(seconds(290), 0), "√(2 · 1 s · 3 h) = 147 s");
        assert_eq!(timer.rhythm(), SaveRhythm::default());
    }

    #[test]
    fn epochs_are_counted_here_and_steps_and_seconds_by_the_companion() {
        let mut timer = SaveTimer::new(Every::Epochs(2), Faults::default());
        timer.begin(seconds(0), 3);
        let due: Vec<bool> = [3, 4, 5, 6, 7].map(|epoch| timer.is_due(seconds(1), epoch)).to_vec();
        assert_eq!(due, [false, false, true, false, true]);
        for (every, rhythm) in [
            (Every::Steps(5), SaveRhythm { every_steps: Some(5), every_seconds: None }),
            (Every::Seconds(2.5), SaveRhythm { every_steps: None, every_seconds: Some(2.5) }),
            (Every::Never, SaveRhythm::default()),
        ] {
            let mut timer = SaveTimer::new(every, Faults::default());
            assert_eq!(timer.rhythm(), rhythm);
            assert!(!timer.is_due(seconds(1_000_000), 1000));
        }
    }
}
