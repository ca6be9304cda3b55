//! The largest processes of the machine.

use crate::probe::host::kibibytes;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// Number of processes listed.
const LISTED: usize = 5;

/// A process and its resident memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its resident memory.
    pub ram_bytes: u64,
}

/// Returns the largest processes by resident memory.
pub fn largest_processes(proc: &Path) -> Vec<Process> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut found: Vec<Process> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let ram_bytes = kibibytes(&status, "VmRSS")?;
            let mut name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim().to_owned();
            if name == "exe" {
                // All downshift processes start via /proc/self/exe, so the command line is more informative.
                let words = fs::read(entry.path().join("cmdline")).ok()?;
                name = String::from_utf8_lossy(words.split(|byte| *byte == 0).next()?).into_owned();
            }
            Some(Process { pid, name, ram_bytes })
        })
        .collect();
    found.sort_by_key(|process| std::cmp::Reverse(process.ram_bytes));
    found.truncate(LISTED);
    found
}
