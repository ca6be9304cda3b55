//! How often a worker may be started again: counted by durable progress, not by signs of life.

use super::relapse::Relapse;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The restarts used up since the newest durable step. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// Faults since a checkpoint last got further.
    pub faults: u32,
    /// The durable step at the last fault.
    pub durable: Option<u64>,
    /// Failures shortly after a load.
    #[serde(default)]
    pub relapse: Relapse,
}

/// What a fault leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start again after this wait.
    Restart(Duration),
    /// The budget is used up.
    Exhausted,
}

impl Budget {
    /// Counts a fault that struck when `durable` was the newest durable step.
    pub fn fault(&mut self, durable: Option<u64>, limit: u32) -> Verdict {
        if durable > self.durable {
            self.faults = 0;
        }
        self.durable = durable;
        self.faults += 1;
        if self.faults > limit { Verdict::Exhausted } else { Verdict::Restart(back_off(self.faults)) }
    }
}

/// No wait after the first fault, then 1, 2, 4 … 60 seconds.
fn back_off(faults: u32) -> Duration {
    match faults {
        0 | 1 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 2).min(6)).min(Duration::from_mins(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Verdict};
    use std::time::Duration;

    #[test]
    fn only_durable_progress_opens_a_fresh_budget() {
        let mut budget = Budget::default();
        let waits: Vec<Verdict> = (0..4).map(|_| budget.fault(Some(100), 3)).collect();
        let restart = |seconds| Verdict::Restart(Duration::from_secs(seconds));
        assert_eq!(waits, [restart(0), restart(1), restart(2), Verdict::Exhausted]);
        assert_eq!(budget.fault(Some(101), 3), restart(0));
        assert_eq!(budget.fault(Some(50), 3), restart(1), "an older checkpoint is no progress");
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let mut budget = Budget::default();
        let waits: Vec<u64> = (0..10)
            .map(|_| match budget.fault(None, 100) {
                Verdict::Restart(wait) => wait.as_secs(),
                Verdict::Exhausted => panic!("budget of 100"),
            })
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
