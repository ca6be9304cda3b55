//! Time lost by the keeper: blocked in the store, suspended or starved, it heard nothing from the worker.

use super::keeper_state::Keeper;
use crate::policy::event::Event;
use std::time::Duration;
use tokio::time::Instant;

/// Shortest delay that moves a deadline.
const LEAST: Duration = Duration::from_millis(50);

/// Distinguishes the loop's own delays from intended sleep.
#[derive(Debug)]
pub struct DelayWatch {
    /// All time before this is accounted for.
    seen: Instant,
}

impl DelayWatch {
    /// Starts the watch now.
    pub fn new() -> Self {
        Self { seen: Instant::now() }
    }

    /// Starts over now.
    pub fn restart(&mut self) {
        *self = Self::new();
    }

    /// Records a sleep from `asleep` until `now`, which was meant to last until `next` at most.
    pub fn slept(&mut self, asleep: Instant, next: Instant, now: Instant) {
        self.seen += next.min(now).saturating_duration_since(asleep);
    }

    /// Returns the delay since the last call, if it is long enough to count.
    pub fn lost(&mut self, now: Instant) -> Option<Duration> {
        let delay = now.saturating_duration_since(std::mem::replace(&mut self.seen, now));
        Some(delay).filter(|delay| *delay > LEAST)
    }
}

impl Keeper {
    /// Extends the worker's deadlines by the time in which the keeper could not hear it.
    pub(super) fn extend_deadlines(&mut self) {
        if let Some(delay) = self.clock.delay.lost(Instant::now()) {
            self.decide(Event::StoodStill(delay), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DelayWatch;
    use std::time::Duration;

    #[test]
    fn only_time_that_was_not_meant_to_be_slept_is_lost() {
        let (second, mut watch) = (Duration::from_secs(1), DelayWatch::new());
        let begun = watch.seen;
        let at = |seconds: u32| begun + second * seconds;
        watch.slept(begun, at(1), at(1));
        assert_eq!(watch.lost(at(1)), None, "slept as long as it meant to");
        assert_eq!(watch.lost(at(6)), Some(second * 5), "blocked between two sleeps");
        watch.slept(at(6), at(7), at(9));
        assert_eq!(watch.lost(at(9)), Some(second * 2), "suspended in its sleep");
        assert_eq!(watch.lost(at(9)), None, "counted once");
    }
}
