//! Which process of a run fills the host's memory: the one that has grown most since it was first seen.

use super::sentences::bytes;
use crate::protocol::probe::{Host, RamProcess};
use std::collections::BTreeMap;
use std::fmt;

/// Growth below this is the working set of a start, not a leak.
const NOTEWORTHY: u64 = 64 << 20;

/// The processes of the run, with their size when they were first seen.
#[derive(Debug, Default)]
pub struct RamGrowth {
    first: BTreeMap<u32, u64>,
    newest: Vec<RamProcess>,
}

/// A process that has grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    process: RamProcess,
    from: u64,
}

impl fmt::Display for Grown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RamProcess { pid, name, bytes: now } = &self.process;
        write!(formatter, "process {pid} ({name}) grew from {} to {}", bytes(self.from), bytes(*now))
    }
}

impl RamGrowth {
    /// Takes in a reading. Processes that have ended are forgotten: their ids may return.
    pub fn observe(&mut self, host: &Host) {
        let Some(processes) = host.more.ram_processes.value() else { return };
        self.first.retain(|pid, _| processes.iter().any(|process| process.pid == *pid));
        for process in processes {
            self.first.entry(process.pid).or_insert(process.bytes);
        }
        self.newest.clone_from(processes);
    }

    /// Returns the process that has grown most; none if none has grown much.
    #[must_use]
    pub fn largest(&self) -> Option<Grown> {
        let grown = |process: &RamProcess| {
            let from = *self.first.get(&process.pid)?;
            (process.bytes.saturating_sub(from) >= NOTEWORTHY).then(|| Grown { process: process.clone(), from })
        };
        self.newest.iter().filter_map(grown).max_by_key(|grown| grown.process.bytes - grown.from)
    }
}

#[cfg(test)]
mod tests {
    use super::RamGrowth;
    use crate::protocol::probe::{Host, HostMore, Metric, RamProcess};

    const GIB: u64 = 1 << 30;

    fn largest(readings: &[&[(u32, u64)]]) -> Option<String> {
        let mut growth = RamGrowth::default();
        for reading in readings {
            let process =
                |(pid, bytes): &(u32, u64)| RamProcess { pid: *pid, name: "python3".to_owned(), bytes: *bytes };
            let ram_processes = Metric::Is(reading.iter().map(process).collect());
            growth.observe(&Host {
                ram_total_bytes: Metric::default(),
                ram_used_bytes: Metric::default(),
                ram_worker_bytes: Metric::default(),
                cpu: Metric::default(),
                disk_free_bytes: Metric::default(),
                more: HostMore { ram_processes, ..HostMore::default() },
            });
        }
        growth.largest().map(|grown| grown.to_string())
    }

    #[test]
    fn the_process_that_grew_is_named_not_the_largest_one() {
        let said = largest(&[&[(7, 20 * GIB), (8, GIB)], &[(7, 20 * GIB + 1), (8, 6 * GIB)]]);
        assert_eq!(said.unwrap(), "process 8 (python3) grew from 1.0 GiB to 6.0 GiB");
        assert_eq!(largest(&[&[(7, 20 * GIB)], &[(7, 20 * GIB + 4096)]]), None);
        assert_eq!(largest(&[&[(7, GIB)], &[(8, 9 * GIB)], &[(7, 3 * GIB)]]), None, "another process has its id");
        assert_eq!(largest(&[]), None);
    }
}
