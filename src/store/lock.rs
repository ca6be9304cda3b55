//! One owner at a time: a lock file held by `flock`, with the owner's identity inside for people
//! and for whoever wants to know without taking the lock.
//!
//! A process id alone says little, since ids are used again; with the boot and the start time of
//! the process it names one process for ever.

use crate::untrusted::file::{self, Limit};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::Path;

/// One process, told apart from all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its id.
    pub pid: u32,
    /// The boot it lives in.
    pub boot: String,
    /// Its start, in clock ticks since that boot.
    pub started: u64,
}

impl Identity {
    /// This process.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self { pid, boot: boot_id(), started: start_time(pid).unwrap_or(0) }
    }

    /// The process that has this id now.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, boot: boot_id(), started: start_time(pid)? })
    }

    /// Whether the process still lives (a zombie does not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.started)
    }

    /// Sends a signal to its process group, if the process still lives.
    ///
    /// # Errors
    /// The system's words.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        let group = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        match group {
            Some(group) if self.is_alive() => Ok(rustix::process::kill_process_group(group, signal)?),
            _ => Ok(()),
        }
    }
}

/// A lock that is held until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("held by process {}", .0.as_ref().map_or_else(|| "?".to_owned(), |owner| owner.pid.to_string()))]
    Held(Option<Identity>),
    /// The file cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Lock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    /// When another process holds it, or the file cannot be written.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Held(owner(path))),
            Err(error) => return Err(LockError::Io(error.into())),
        }
        let identity = serde_json::to_string(&Identity::own()).map_err(io::Error::from)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(identity.as_bytes())?;
        Ok(Self { _file: file })
    }
}

/// Who a lock file names, alive or not.
#[must_use]
pub fn owner(path: &Path) -> Option<Identity> {
    serde_json::from_str(&file::read_text(path, Limit::Handwritten).ok()?).ok()
}

/// The living process that a lock file names.
pub fn living_owner(path: &Path) -> Option<Identity> {
    owner(path).filter(Identity::is_alive)
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Field 22 of /proc/PID/stat; none for a process that is gone or a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Identity, Lock, LockError, living_owner};

    #[test]
    fn a_second_taker_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.lock");
        let lock = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err();
        assert!(matches!(refused, LockError::Held(Some(owner)) if owner == Identity::own()));
        assert_eq!(living_owner(&path), Some(Identity::own()));
        drop(lock);
        assert!(Lock::take(&path).is_ok());
    }

    #[test]
    fn a_pid_used_again_is_another_process() {
        let mut other = Identity::own();
        assert!(other.is_alive());
        other.started += 1;
        assert!(!other.is_alive());
        let other = Identity { boot: "another boot".to_owned(), ..Identity::own() };
        assert!(!other.is_alive());
    }
}
