//! Detects whether the command is active: it prints, or it uses CPU time. Silence alone proves nothing, since many
//! scripts report a step only every quarter of an hour.

use crate::process_tree::{Family, Process, scan, ticks_in_seconds};
use std::time::{Duration, Instant};

/// Longest interval between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// Looks within the shortest silence that counts as a hang: one may come late, and a load may hide the work of another.
const LOOKS: u32 = 4;
/// Share of a CPU core that counts as work.
const WORKING: f64 = 0.05;

/// Watches the command.
#[derive(Debug)]
pub struct Activity {
    every: Duration,
    printed: bool,
    looked: Instant,
    ticks: u64,
}

impl Activity {
    /// Creates the watch of a command that is seen from now on. `silence` is the shortest that counts as a hang.
    #[must_use]
    pub fn new(family: &Family, silence: Duration, now: Instant) -> Self {
        Self { every: EVERY.min(silence / LOOKS), printed: false, looked: now, ticks: used(family) }
    }

    /// Records output.
    pub fn printed(&mut self) {
        self.printed = true;
    }

    /// Reports, at intervals, whether the command was active.
    pub fn look(&mut self, family: &Family, now: Instant) -> bool {
        let since = now.duration_since(self.looked);
        if since < self.every {
            return false;
        }
        self.looked = now;
        let ticks = used(family);
        let before = std::mem::replace(&mut self.ticks, ticks);
        std::mem::take(&mut self.printed) || is_work(ticks.saturating_sub(before), since)
    }
}

/// Returns the CPU time that the processes have used, in clock ticks.
fn used(family: &Family) -> u64 {
    family.among(&scan()).iter().map(|process: &&Process| process.cpu_ticks).sum()
}

fn is_work(ticks: u64, time: Duration) -> bool {
    ticks_in_seconds(ticks) > WORKING * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::{Activity, EVERY, is_work};
    use crate::process_tree::Family;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn output_and_cpu_time_are_signs_of_life() {
        let now = Instant::now();
        let no_process = Family::Attempt { token: "no such token".to_owned(), root: 0 };
        let mut activity = Activity::new(&no_process, EVERY * 18, now);
        activity.printed();
        assert!(!activity.look(&no_process, now + EVERY / 2), "too early");
        assert!(activity.look(&no_process, now + EVERY));
        assert!(!activity.look(&no_process, now + EVERY * 2), "silent, and no process uses CPU time");
        assert!(is_work(100, Duration::from_secs(10)));
        assert!(!is_work(10, Duration::from_secs(10)));
    }

    #[test]
    fn a_busy_process_is_active_well_within_the_shortest_hang() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (family, now, silence) = (Family::Adopted(busy.id()), Instant::now(), Duration::from_secs(2));
        let mut activity = Activity::new(&family, silence, now);
        let worked = || super::used(&family) > 10;
        while !worked() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let seen = activity.look(&family, now + silence / 4);
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(seen);
    }
}
