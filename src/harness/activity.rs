//! Detects whether the command is active: it prints, or it uses CPU time. Silence alone proves nothing, since many
//! scripts report a step only every quarter of an hour.

use crate::process_tree::{Family, Process, scan, ticks_in_seconds};
use std::time::{Duration, Instant};

/// Minimum interval between two reports.
const EVERY: Duration = Duration::from_secs(10);
/// Share of a CPU core that counts as work.
const WORKING: f64 = 0.05;

/// Watches the command.
#[derive(Debug)]
pub struct Activity {
    printed: bool,
    looked: Instant,
    ticks: Option<u64>,
}

impl Activity {
    /// Creates the watch of a command that starts now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { printed: false, looked: now, ticks: None }
    }

    /// Records output.
    pub fn printed(&mut self) {
        self.printed = true;
    }

    /// Reports, at intervals, whether the command was active. Reads /proc only when it was silent.
    pub fn look(&mut self, family: &Family, now: Instant) -> bool {
        let since = now.duration_since(self.looked);
        if since < EVERY {
            return false;
        }
        self.looked = now;
        if std::mem::take(&mut self.printed) {
            self.ticks = None;
            return true;
        }
        let all = scan();
        let ticks = family.among(&all).iter().map(|process: &&Process| process.cpu_ticks).sum();
        let before = self.ticks.replace(ticks);
        before.is_some_and(|before| is_work(ticks.saturating_sub(before), since))
    }
}

fn is_work(ticks: u64, time: Duration) -> bool {
    ticks_in_seconds(ticks) > WORKING * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::{Activity, EVERY, is_work};
    use crate::process_tree::Family;
    use std::time::{Duration, Instant};

    #[test]
    fn output_and_cpu_time_are_signs_of_life() {
        let now = Instant::now();
        let mut activity = Activity::new(now);
        let no_process = Family::Attempt { token: "no such token".to_owned(), root: 0 };
        activity.printed();
        assert!(!activity.look(&no_process, now + EVERY / 2), "too early");
        assert!(activity.look(&no_process, now + EVERY));
        assert!(!activity.look(&no_process, now + EVERY * 2), "silent, and no process uses CPU time");
        assert!(is_work(100, Duration::from_secs(10)));
        assert!(!is_work(10, Duration::from_secs(10)));
    }
}
