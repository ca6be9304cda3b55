//! Clock units per step. The typical step counts: not the shorter one at the end of an epoch, and not
//! the one behind skipped data, where the clock jumps.

use std::collections::VecDeque;

/// Newest steps that define the typical step.
const WINDOW: usize = 9;

/// The newest steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pace {
    units: VecDeque<u64>,
}

impl Pace {
    /// Records that a step advanced the clock by `units`.
    pub fn step(&mut self, units: u64) {
        self.units.push_back(units);
        if self.units.len() > WINDOW {
            self.units.pop_front();
        }
    }

    /// Returns the units of a typical step; 1 until any step is known.
    #[must_use]
    pub fn units_per_step(&self) -> u64 {
        let mut sorted: Vec<u64> = self.units.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    #[test]
    fn jumps_and_short_steps_are_not_usual() {
        let mut pace = Pace::default();
        assert_eq!(pace.units_per_step(), 1);
        for units in [32, 32, 32, 9, 32, 6432, 32, 32] {
            pace.step(units);
        }
        assert_eq!(pace.units_per_step(), 32);
        (0..9).for_each(|_| pace.step(16));
        assert_eq!(pace.units_per_step(), 16, "another rung has another batch");
    }
}
