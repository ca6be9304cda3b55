//! The processes of the watched worker. The worker of a command is its harness; the command descends from it.

use super::host::resident_of_each;
use crate::process_tree::{descendants, scan};
use crate::protocol::probe::{Metric, RamProcess};
use crate::untrusted::text;
use std::fs;
use std::time::{Duration, Instant};

/// Interval between two looks for new processes.
const RESCAN: Duration = Duration::from_secs(5);
/// Counting memory takes at most one part in this many of the time: the kernel walks all pages of a process.
const COUNTING: u32 = 100;
/// Most processes that a reading names.
const SHOWN: usize = 8;

/// The watched worker and what descends from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    /// The worker.
    pub worker: Option<u32>,
    /// It and its descendants.
    pub processes: Vec<u32>,
}

/// Follows the worker's processes and their memory.
#[derive(Debug, Default)]
pub struct WorkerProcesses {
    watched: Watched,
    scan_at: Option<Instant>,
    count_at: Option<Instant>,
    resident: Vec<RamProcess>,
}

impl WorkerProcesses {
    /// Returns the processes of this worker.
    pub fn find(&mut self, worker: Option<u32>, now: Instant) -> &Watched {
        let is_new = self.watched.worker != worker;
        if is_new {
            *self = Self::default();
        }
        if self.scan_at.is_none_or(|at| now >= at) {
            let processes = worker.map(find_processes).unwrap_or_default();
            self.watched = Watched { worker, processes };
            self.scan_at = Some(now + RESCAN);
        }
        &self.watched
    }

    /// Returns the host memory of the processes found; memory that several share counts once.
    pub fn read_ram(&mut self, now: Instant) -> Metric<u64> {
        if self.watched.worker.is_none() {
            return Metric::Not("no worker".to_owned());
        }
        if self.count_at.is_none_or(|at| now >= at) {
            let began = Instant::now();
            self.resident = resident_of_each(&self.watched.processes).into_iter().map(named).collect();
            self.count_at = Some(now + began.elapsed() * COUNTING);
        }
        let bytes = self.resident.iter().map(|process| process.bytes).reduce(u64::saturating_add);
        bytes.map_or_else(|| Metric::Not("worker has ended".to_owned()), Metric::Is)
    }

    /// Returns the largest of these processes, as last counted.
    #[must_use]
    pub fn largest(&self) -> Metric<Vec<RamProcess>> {
        if self.resident.is_empty() {
            return Metric::Not("no worker".to_owned());
        }
        let mut largest = self.resident.clone();
        largest.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        largest.truncate(SHOWN);
        Metric::Is(largest)
    }
}

fn named((pid, bytes): (u32, u64)) -> RamProcess {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    RamProcess { pid, name: text::escape_line(name.trim()).into_owned(), bytes }
}

/// Returns the worker and what descends from it, the worker even if it has just ended.
fn find_processes(worker: u32) -> Vec<u32> {
    let all = scan();
    let below = descendants(&all, worker).into_iter().map(|process| process.pid).filter(|pid| *pid != worker);
    std::iter::once(worker).chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::WorkerProcesses;
    use crate::protocol::probe::Metric;
    use rustix::process::{Pid, Signal, kill_process_group};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn the_memory_of_a_worker_is_that_of_everything_below_it() {
        let mut found = WorkerProcesses::default();
        let mut now = Instant::now();
        assert_eq!(found.find(None, now).processes, [0_u32; 0]);
        assert_eq!(found.read_ram(now), Metric::Not("no worker".into()));

        // `tail` keeps what it reads; the shell above it stays small.
        let script = "(head -c 80000000 /dev/zero; sleep 60) | tail -c 80000000; true";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).process_group(0).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        while found.find(Some(shell.id()), now).processes.len() < 3
            || found.read_ram(now).get().is_none_or(|bytes| bytes < 80_000_000)
        {
            assert!(Instant::now() < deadline, "{found:?}");
            now += Duration::from_mins(1);
        }
        kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
        shell.wait().unwrap();
        now += Duration::from_mins(1);
        assert_eq!(found.find(Some(shell.id()), now).processes, [shell.id()]);
        assert_eq!(found.read_ram(now), Metric::Not("worker has ended".into()));
    }
}
