//! Watches steps dropped by the guard: their rate over the last 200 steps, and the current streak.

use crate::config::watch::Watch;
use std::collections::VecDeque;

/// Steps in the rate's window.
const WINDOW: usize = 200;

/// Watches the skipped steps of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkipWatch {
    window: VecDeque<bool>,
    streak: u64,
}

impl SkipWatch {
    /// Records a step, taken or skipped. Returns a sentence when too many were skipped, and then restarts the count.
    pub fn observe(&mut self, skipped: bool, knobs: &Watch) -> Option<String> {
        self.streak = if skipped { self.streak + 1 } else { 0 };
        self.window.push_back(skipped);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        let many = self.window.iter().filter(|skipped| **skipped).count();
        let rate = many as f64 / WINDOW as f64;
        let text = if self.streak >= knobs.skips_to_shift {
            match self.streak {
                1 => "a step was not finite".to_owned(),
                streak => format!("{streak} steps in a row were not finite"),
            }
        } else if rate > knobs.skip_rate {
            format!("{many} of the last {} steps were not finite", self.window.len())
        } else {
            return None;
        };
        *self = Self::default();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::SkipWatch;
    use crate::config::watch::Watch;

    /// Returns the steps, counted from 1, at which the watch reports.
    fn speaks(steps: u64, is_skipped: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut watch = SkipWatch::default();
        (1..=steps).filter(|step| watch.observe(is_skipped(*step), &Watch::default()).is_some()).collect()
    }

    #[test]
    fn more_than_two_percent_of_two_hundred_or_five_in_a_row() {
        assert_eq!(speaks(1000, |_| false), [0_u64; 0]);
        assert_eq!(speaks(1000, |step| step == 500), [0_u64; 0], "one");
        assert_eq!(speaks(1000, |step| (500..504).contains(&step)), [0_u64; 0], "four in a row are two per cent");
        assert_eq!(speaks(1000, |step| (500..505).contains(&step)), [504], "five in a row");
        assert_eq!(speaks(2000, |step| step % 50 == 0), [0_u64; 0], "two per cent in the background");
        assert_eq!(speaks(400, |step| step % 40 == 0), [200, 400], "more than that");
        assert_eq!(speaks(23, |step| step > 3), [8, 13, 18, 23], "again and again while it lasts");
    }
}
