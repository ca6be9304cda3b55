//! Host memory of measured processes, and the budget they must stay within: a program that takes all of it stops the
//! whole machine.

use crate::probe::host::resident_bytes;
use crate::protocol::exit::Exit;
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

/// Interval between two samples of a worker.
const INTERVAL: Duration = Duration::from_millis(200);

/// Lets the kernel end this process and those it starts before any other when memory runs out.
pub fn offer_to_oom_killer(pid: u32) {
    // Best effort: its budget ends it earlier.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
}

/// Reports whether a process was probably killed for its memory: by SIGKILL, above half of its budget. The kernel's own
/// report is not readable everywhere.
pub fn was_killed_for_memory(exit: Exit, peak: u64, budget: Option<u64>) -> bool {
    exit.signal == Some(Signal::KILL.as_raw()) && budget.is_some_and(|budget| peak > budget / 2)
}

/// Samples the host memory of a worker.
pub struct HostMemory {
    pid: u32,
    next: Instant,
    /// Peak so far.
    pub peak: u64,
}

impl HostMemory {
    /// Watches a process.
    pub fn watch(pid: u32) -> Self {
        Self { pid, next: Instant::now(), peak: 0 }
    }

    /// Returns the time until the next sample is due.
    pub fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Takes a sample if one is due.
    pub fn sample_if_due(&mut self) {
        if self.due_in().is_zero() {
            self.sample();
        }
    }

    /// Takes a sample.
    pub fn sample(&mut self) {
        self.peak = self.peak.max(resident_bytes(&[self.pid]).unwrap_or(0));
        self.next = Instant::now() + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::{HostMemory, was_killed_for_memory};
    use crate::protocol::exit::Exit;

    #[test]
    fn a_kill_above_half_of_the_budget_is_for_memory() {
        let kill = Exit::by_signal(9);
        assert!(was_killed_for_memory(kill, 51, Some(100)) && !was_killed_for_memory(kill, 50, Some(100)));
        assert!(!was_killed_for_memory(kill, 51, None));
        assert!(!was_killed_for_memory(Exit::by_signal(15), 99, Some(100)));
        assert!(!was_killed_for_memory(Exit::with_code(9), 99, Some(100)));
    }

    #[test]
    fn the_peak_of_a_process_is_kept_after_its_end() {
        let mut own = HostMemory::watch(std::process::id());
        own.sample_if_due();
        let peak = own.peak;
        assert!(peak > 1 << 20, "{peak}");
        own.sample_if_due();
        assert_eq!(own.peak, peak, "no sample is due yet");
        own.pid = u32::MAX;
        own.sample();
        assert_eq!(own.peak, peak);
    }
}
