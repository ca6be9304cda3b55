//! The identity of a process. Its id alone is ambiguous, because ids are reused; with the boot and the process's
//! start time it identifies one process forever.

use crate::process_tree::ticks_in_seconds;
use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{fs, io};

/// The unique identity of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its id.
    pub pid: u32,
    /// The boot during which it runs.
    pub boot: String,
    /// Its start time, in clock ticks since that boot.
    pub started: u64,
}

impl Identity {
    /// Returns the identity of this process.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self { pid, boot: boot_id(), started: start_time(pid).unwrap_or(0) }
    }

    /// Returns the identity of the process that has this id now.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, boot: boot_id(), started: start_time(pid)? })
    }

    /// Reports whether the process is alive (a zombie is not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.started)
    }

    /// Returns when the process started, in Unix nanoseconds, to a hundredth of a second.
    #[must_use]
    pub fn started_ns(&self) -> i64 {
        let since_boot = clock_gettime(ClockId::Boottime);
        let age_s = since_boot.tv_sec as f64 + since_boot.tv_nsec as f64 / 1e9 - ticks_in_seconds(self.started);
        jiff::Timestamp::now().as_nanosecond() as i64 - (age_s * 1e9) as i64
    }

    /// Sends a signal to the process only, if it is alive.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            Some(process) if self.is_alive() => Ok(rustix::process::kill_process(process, signal)?),
            _ => Ok(()),
        }
    }

    /// Sends a signal to its process group, if the process is alive.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        let group = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        match group {
            Some(group) if self.is_alive() => Ok(rustix::process::kill_process_group(group, signal)?),
            _ => Ok(()),
        }
    }
}

/// Returns the id of this boot of the machine; empty if the kernel does not report it.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Returns field 22 of /proc/PID/stat; none for a zombie or a process that has exited.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
