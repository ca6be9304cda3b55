//! Kernel messages about this GPU and about memory, from as far back as the log goes: an error from an
//! hour ago explains the machine's current state.

use crate::faults::xid;
use crate::protocol::cause::KernelKind;
use crate::triage::kernel::{KernelLog, is_same_gpu};
use crate::untrusted::text;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of newest lines shown.
const SHOWN: usize = 3;

/// The relevant kernel messages.
pub struct KernelSeen {
    log: KernelLog,
    /// The counts, as printed in JSON.
    pub counts: Counts,
    newest: VecDeque<String>,
}

/// Counts of each kind of message in the kernel's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Xid errors of this GPU, by number.
    pub xids: BTreeMap<u32, u64>,
    /// Lines of the OOM killer.
    pub oom_killer: u64,
}

impl KernelSeen {
    /// Opens the log from its start.
    pub fn open() -> Self {
        Self::of(KernelLog::open_from_start())
    }

    fn of(log: KernelLog) -> Self {
        Self { log, counts: Counts::default(), newest: VecDeque::new() }
    }

    /// Reads new lines. `own` is the GPU's PCI address; if it is unknown, every GPU counts.
    pub fn read_new_lines(&mut self, own: Option<&str>) {
        for line in self.log.poll() {
            match &line.kind {
                KernelKind::Xid { pci, .. } if own.is_some_and(|own| !is_same_gpu(own, pci)) => continue,
                KernelKind::Xid { number, .. } => *self.counts.xids.entry(*number).or_default() += 1,
                KernelKind::OutOfMemory { .. } => self.counts.oom_killer += 1,
                KernelKind::GpuLost | KernelKind::DeviceOutOfMemory => {}
            }
            self.newest.push_back(line.text);
            if self.newest.len() > SHOWN {
                self.newest.pop_front();
            }
        }
    }

    /// Formats the counts with their meaning, then the newest lines; or the reason why nothing can be read.
    pub fn rows(&self) -> Vec<String> {
        if let Some(error) = self.log.error() {
            return vec![format!("kernel log   {error}")];
        }
        let xids = self.counts.xids.iter();
        let mut found: Vec<String> =
            xids.map(|(number, count)| format!("{count} × Xid {number} ({})", xid::meaning(*number))).collect();
        if self.counts.oom_killer > 0 {
            found.push(format!("{} × the OOM killer", self.counts.oom_killer));
        }
        let counts = if found.is_empty() { "no trouble".to_owned() } else { found.join(", ") };
        let mut rows = vec![format!("kernel log   {counts} in {}", text::path(self.log.path()))];
        rows.extend(self.newest.iter().map(|line| format!("             {line}")));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::KernelSeen;
    use crate::triage::kernel::KernelLog;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    #[test]
    fn earlier_errors_stay_counted_and_other_gpus_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kern.log");
        let old = "NVRM: Xid (PCI:0000:01:00): 79, pid=1\nNVRM: Xid (PCI:0000:99:00): 48, pid=1\n\
                   Out of memory: Killed process 12 (python) total-vm:1kB, anon-rss:1kB\n";
        fs::write(&path, old).unwrap();
        let mut seen = KernelSeen::of(KernelLog::open_file(&path, true));
        seen.read_new_lines(Some("00000000:01:00.0"));
        assert_eq!(seen.counts.xids.get(&79), Some(&1));
        assert_eq!((seen.counts.xids.get(&48), seen.counts.oom_killer), (None, 1));
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"NVRM: Xid (PCI:0000:01:00): 79, x\n").unwrap();
        seen.read_new_lines(Some("00000000:01:00.0"));
        let rows = seen.rows().join("\n");
        assert!(rows.contains("2 × Xid 79 (") && rows.contains("1 × the OOM killer"), "{rows}");
    }
}
