//! Failures of a keeper, and whether a retry may succeed.

use crate::protocol::exit_code::{CONFIG, FAILURE};
use crate::store::lock::LockError;
use crate::store::run_dir::RunDirError;
use rusqlite::ErrorCode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;

/// Reason why a keeper could not run.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The run directory is unusable.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// Another keeper exists.
    #[error("{file}: {source}; a run has one keeper")]
    Lock {
        /// The lock file.
        file: String,
        /// The holder of the lock.
        source: LockError,
    },
    /// The store is unusable.
    #[error("run.db: {0}")]
    Store(#[from] rusqlite::Error),
    /// The run has ended, and its end cannot be stored.
    #[error("{why}")]
    Unwritten {
        /// How it ended, and why that is not stored.
        why: String,
        /// The exit code of the run.
        code: u8,
    },
    /// The socket or the signals are unusable.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Whether retrying a failed start makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The failure may pass: a full disk, a lock held by another process, an unresponsive device, a missing mount.
    Transient,
    /// Only you can help.
    Final,
    /// A keeper on another host has the run: nothing of it may be written here.
    Lost,
    /// The run is over, and its end is stored nowhere.
    Unwritten,
}

/// The last line that a failed keeper writes to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWord {
    /// Whether a retry may succeed.
    pub class: Class,
    /// The exit code of the run without a retry.
    pub code: u8,
    /// The reason, as a sentence.
    pub why: String,
}

impl KeeperError {
    /// Reports whether a retry may succeed.
    #[must_use]
    pub fn class(&self) -> Class {
        let transient = match self {
            Self::Unwritten { .. } => return Class::Unwritten,
            Self::Lock { source: LockError::Elsewhere(lease), .. } if lease.unreadable.is_none() => return Class::Lost,
            // A directory whose mount is missing, a command that stands in for the keeper and will release its lock, or a
            // lease that is half written.
            Self::RunDir(RunDirError::Unknown { .. })
            | Self::Lock { source: LockError::Held(_) | LockError::Elsewhere(_), .. } => true,
            Self::RunDir(RunDirError::Io { source, .. })
            | Self::Lock { source: LockError::Io(source), .. }
            | Self::Io { source, .. } => may_pass(source),
            Self::RunDir(_) | Self::Lock { source: LockError::NotAFile, .. } => false,
            Self::Store(error) => error.sqlite_error_code().is_some_and(store_may_pass),
        };
        if transient { Class::Transient } else { Class::Final }
    }

    /// Returns the exit code of a run that ends with this failure.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::RunDir(RunDirError::Config(_)) => CONFIG,
            Self::Unwritten { code, .. } => *code,
            _ => FAILURE,
        }
    }

    /// Returns the report for the keeper's parent.
    #[must_use]
    pub fn last_word(&self) -> LastWord {
        LastWord { class: self.class(), code: self.exit_code(), why: self.to_string() }
    }
}

fn store_may_pass(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::OutOfMemory
    )
}

/// Reports whether the operating system may allow next time what it refused now.
#[must_use]
pub fn may_pass(error: &io::Error) -> bool {
    let passing = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::IO,
        Errno::ROFS,
        Errno::NOENT,
        Errno::STALE,
        Errno::NODEV,
        Errno::NXIO,
        Errno::NOTCONN,
        Errno::HOSTDOWN,
        Errno::TIMEDOUT,
        Errno::AGAIN,
        Errno::BUSY,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOLCK,
        Errno::INTR,
        Errno::ADDRINUSE,
    ];
    let code = error.raw_os_error();
    passing.iter().any(|errno| Some(errno.raw_os_error()) == code)
}

#[cfg(test)]
mod tests {
    use super::{Class, KeeperError};
    use crate::store::lock::LockError;
    use crate::store::run_dir::RunDirError;
    use crate::store::shared_folder::lease;
    use std::io;

    #[test]
    fn transient_failures_are_retried_and_those_that_need_you_are_not() {
        let system = |code| io::Error::from_raw_os_error(code);
        let store = |code| KeeperError::Store(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        let io = |code| KeeperError::Io { what: "the control socket".to_owned(), source: system(code) };
        let lock = |source| KeeperError::Lock { file: "keeper.lock".to_owned(), source };
        let unknown = RunDirError::Unknown { name: "x".to_owned(), place: "y".to_owned() };
        let transient = [
            ("busy", store(5)),
            ("locked", store(6)),
            ("input/output", store(10)),
            ("full", store(13)),
            ("full while syncing", store(1034)),
            ("cannot open", store(14)),
            ("ENOSPC", io(28)),
            ("EIO", io(5)),
            ("a lock on a full disk", lock(LockError::Io(system(28)))),
            ("a caretaker", lock(LockError::Held(None))),
            ("a missing mount", unknown.into()),
        ];
        for (what, error) in transient {
            assert_eq!(error.class(), Class::Transient, "{what}");
        }
        let last = [
            ("no run file", KeeperError::from(RunDirError::Config("x".to_owned()))),
            ("a link", lock(LockError::NotAFile)),
            ("permissions", io(13)),
            ("another schema", KeeperError::Store(rusqlite::Error::InvalidQuery)),
            ("not a database", store(26)),
        ];
        for (what, error) in last {
            assert_eq!(error.class(), Class::Final, "{what}");
        }
        assert_eq!(KeeperError::from(RunDirError::Config("x".to_owned())).last_word().code, 13);
    }

    #[test]
    fn a_run_of_another_host_is_lost_and_a_lease_that_cannot_be_read_may_be_read_later() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("leases")).unwrap();
        let class = |content: &str| {
            std::fs::write(dir.path().join("leases/1.json"), content).unwrap();
            let source = LockError::Elsewhere(Box::new(lease::elsewhere(dir.path()).unwrap()));
            KeeperError::Lock { file: "keeper.lock".to_owned(), source }.class()
        };
        let lease = r#"{"number": 1, "pid": 7, "boot": "b", "started": 1, "host": {"name": "n", "machine": ""},
                        "since_ms": 1, "beat": 1}"#;
        assert_eq!((class(lease), class("")), (Class::Lost, Class::Transient));
    }
}
