//! The restart budget. It counts durable progress, not signs of life.

use super::reason::Exhausted;
use crate::config::watch::Watch;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Restarts used since the newest durable step and within a time window. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// Faults since the last durable progress.
    pub faults: u32,
    /// The furthest durable step at any fault; redoing steps after a rollback does not count as progress.
    pub durable: Option<u64>,
    /// Start times of workers, in milliseconds on the keeper's clock.
    #[serde(default)]
    pub recent: Vec<u64>,
}

impl Budget {
    /// Reports whether a restart at time `now` would be within the budget, without counting it.
    #[must_use]
    pub fn allows_restart(&self, durable: Option<u64>, now: Duration, watch: &Watch) -> bool {
        self.clone().fault(durable, now, watch).is_ok()
    }

    /// Counts a fault at time `now`, with `durable` as the newest durable step. Returns the wait before the restart.
    ///
    /// # Errors
    /// Returns how the budget was used up.
    pub fn fault(&mut self, durable: Option<u64>, now: Duration, watch: &Watch) -> Result<Duration, Exhausted> {
        if durable > self.durable {
            self.faults = 0;
        }
        self.durable = self.durable.max(durable);
        self.faults += 1;
        let (limit, most) = (watch.restarts_without_progress, watch.restarts_in_window);
        if self.faults > limit {
            return Err(if limit == 0 { Exhausted::Off } else { Exhausted::WithoutProgress(limit) });
        }
        let (now_ms, window) = (now.as_millis() as u64, watch.restart_window.duration());
        if let Some(window) = window {
            // The clock restarts with the machine: times in the future count as just now.
            self.recent.retain(|at| now_ms.saturating_sub(*at) < window.as_millis() as u64);
        }
        if self.recent.len() >= most as usize {
            return Err(Exhausted::TooMany(most, window));
        }
        self.recent.push(now_ms);
        Ok(back_off(self.faults))
    }
}

/// Returns the wait before a restart: none after the first fault, then 1, 2, 4 … 60 seconds.
fn back_off(faults: u32) -> Duration {
    match faults {
        0 | 1 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 2).min(6)).min(Duration::from_mins(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Exhausted};
    use crate::config::units::Every;
    use crate::config::watch::Watch;
    use std::time::Duration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_durable_progress_opens_a_fresh_budget() {
        let (mut budget, watch) = (Budget::default(), Watch::default());
        let waits: Vec<_> = (0..3).map(|_| budget.fault(Some(100), seconds(1), &watch)).collect();
        assert_eq!(waits, [Ok(seconds(0)), Ok(seconds(1)), Ok(seconds(2))]);
        let why = budget.fault(Some(100), seconds(1), &watch).unwrap_err();
        assert_eq!(why.to_string(), "3 restarts without progress");
        assert_eq!(budget.fault(Some(101), seconds(1), &watch), Ok(seconds(0)));
        assert_eq!(
            budget.fault(Some(50), seconds(1), &watch),
            Ok(seconds(1)),
            "an older checkpoint does not count as progress"
        );
    }

    #[test]
    fn five_restarts_in_half_an_hour_are_the_limit_despite_progress() {
        let (mut budget, watch) = (Budget::default(), Watch::default());
        for count in 1..=5 {
            assert_eq!(budget.fault(Some(count * 100), seconds(count * 60), &watch), Ok(seconds(0)));
        }
        let why = budget.fault(Some(900), seconds(1800), &watch).unwrap_err();
        assert_eq!(why.to_string(), "5 restarts within 30 min");
        assert_eq!(budget.fault(Some(1000), seconds(1860), &watch), Ok(seconds(0)), "the first is long ago");
        let stored = serde_json::to_string(&budget).unwrap();
        let mut later: Budget = serde_json::from_str(&stored).unwrap();
        assert!(later.fault(Some(2000), seconds(1861), &watch).is_err(), "it survives the keeper");
        assert!(later.fault(Some(3000), seconds(3), &watch).is_err(), "and a fresh clock");
    }

    #[test]
    fn without_a_window_no_restart_is_forgotten() {
        let watch = Watch { restart_window: Every::Never, restarts_in_window: 2, ..Watch::default() };
        let mut budget = Budget::default();
        for day in 1..=2 {
            assert_eq!(budget.fault(Some(day), seconds(day * 86_400), &watch), Ok(seconds(0)));
        }
        let last = budget.fault(Some(3), seconds(1000 * 86_400), &watch);
        assert_eq!(last, Err(Exhausted::TooMany(2, None)));
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let mut budget = Budget::default();
        let watch = Watch { restarts_without_progress: 100, restarts_in_window: 100, ..Watch::default() };
        let waits: Vec<_> = (0..10).map(|_| budget.fault(None, seconds(1), &watch)).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60].map(|wait| Ok(seconds(wait))));
    }
}
