//! The restart budget. It counts durable progress, not signs of life.

use super::age::format_span;
use super::relapse::Relapse;
use crate::config::watch::Watch;
use crate::format::counted;
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
    /// Failures shortly after loading a checkpoint.
    #[serde(default)]
    pub relapse: Relapse,
}

/// Verdict of the budget on a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Restart after this wait.
    Restart(Duration),
    /// The budget is used up; a sentence says how.
    Exhausted(String),
}

impl Budget {
    /// Reports whether a restart at time `now` would be within the budget, without counting it.
    #[must_use]
    pub fn allows_restart(&self, durable: Option<u64>, now: Duration, watch: &Watch) -> bool {
        matches!(self.clone().fault(durable, now, watch), Verdict::Restart(_))
    }

    /// Counts a fault at time `now`, with `durable` as the newest durable step.
    pub fn fault(&mut self, durable: Option<u64>, now: Duration, watch: &Watch) -> Verdict {
        if durable > self.durable {
            self.faults = 0;
        }
        self.durable = self.durable.max(durable);
        self.faults += 1;
        let (limit, most) = (watch.restarts_without_progress, watch.restarts_in_window);
        if self.faults > limit {
            return Verdict::Exhausted(match limit {
                0 => "restarts are off (watch.restarts_without_progress: 0)".to_owned(),
                limit => format!("{} without progress", counted(limit.into(), "restart")),
            });
        }
        let (now_ms, window) = (now.as_millis() as u64, watch.restart_window.duration());
        if let Some(window) = window {
            // The clock restarts with the machine: times in the future count as just now.
            self.recent.retain(|at| now_ms.saturating_sub(*at) < window.as_millis() as u64);
        }
        if self.recent.len() >= most as usize {
            let allowed = || ", as many as allowed".to_owned();
            let within = window.map_or_else(allowed, |window| format!(" within {}", format_span(window)));
            return Verdict::Exhausted(format!("{}{within}", counted(most.into(), "restart")));
        }
        self.recent.push(now_ms);
        Verdict::Restart(back_off(self.faults))
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
    use super::{Budget, Verdict};
    use crate::config::units::Every;
    use crate::config::watch::Watch;
    use std::time::Duration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn restart(wait: u64) -> Verdict {
        Verdict::Restart(seconds(wait))
    }

    #[test]
    fn only_durable_progress_opens_a_fresh_budget() {
        let (mut budget, watch) = (Budget::default(), Watch::default());
        let waits: Vec<Verdict> = (0..3).map(|_| budget.fault(Some(100), seconds(1), &watch)).collect();
        assert_eq!(waits, [restart(0), restart(1), restart(2)]);
        let Verdict::Exhausted(why) = budget.fault(Some(100), seconds(1), &watch) else { panic!("three at most") };
        assert_eq!(why, "3 restarts without progress");
        assert_eq!(budget.fault(Some(101), seconds(1), &watch), restart(0));
        assert_eq!(
            budget.fault(Some(50), seconds(1), &watch),
            restart(1),
            "an older checkpoint does not count as progress"
        );
    }

    #[test]
    fn five_restarts_in_half_an_hour_are_the_limit_despite_progress() {
        let (mut budget, watch) = (Budget::default(), Watch::default());
        for count in 1..=5 {
            assert_eq!(budget.fault(Some(count * 100), seconds(count * 60), &watch), restart(0));
        }
        let Verdict::Exhausted(why) = budget.fault(Some(900), seconds(1800), &watch) else { panic!("five at most") };
        assert_eq!(why, "5 restarts within 30 min");
        assert_eq!(budget.fault(Some(1000), seconds(1860), &watch), restart(0), "the first is long ago");
        let stored = serde_json::to_string(&budget).unwrap();
        let mut later: Budget = serde_json::from_str(&stored).unwrap();
        assert!(
            matches!(later.fault(Some(2000), seconds(1861), &watch), Verdict::Exhausted(_)),
            "it survives the keeper"
        );
        assert!(matches!(later.fault(Some(3000), seconds(3), &watch), Verdict::Exhausted(_)), "and a fresh clock");
    }

    #[test]
    fn without_a_window_no_restart_is_forgotten() {
        let watch = Watch { restart_window: Every::Never, restarts_in_window: 2, ..Watch::default() };
        let mut budget = Budget::default();
        for day in 1..=2 {
            assert_eq!(budget.fault(Some(day), seconds(day * 86_400), &watch), restart(0));
        }
        let last = budget.fault(Some(3), seconds(1000 * 86_400), &watch);
        assert_eq!(last, Verdict::Exhausted("2 restarts, as many as allowed".to_owned()));
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let mut budget = Budget::default();
        let watch = Watch { restarts_without_progress: 100, restarts_in_window: 100, ..Watch::default() };
        let waits: Vec<Verdict> = (0..10).map(|_| budget.fault(None, seconds(1), &watch)).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60].map(restart));
    }
}
