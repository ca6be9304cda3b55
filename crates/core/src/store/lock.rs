//! Lock files: one owner at a time, enforced by `flock`. The file holds the owner's identity, for
//! people and for programs that need it without taking the lock.

use super::file_system::is_shared;
use super::identity::Identity;
use super::shared_folder::lease::{HeldLease, Lease, Renewal};
use crate::protocol::claim::Claim;
use crate::untrusted::text;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a lock file.
const LONGEST: u64 = 1 << 16;

/// The content of a lock file: the holder, and facts about it that other processes need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The holder.
    #[serde(flatten)]
    pub owner: Identity,
    /// Whether this is a keeper that has not yet opened the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub opening: bool,
    /// The socket that a keeper or a harness listens on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Reason why a keeper cannot start a worker, for when run.db may not be writable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// The recovery under way, when a keeper's parent has to restart it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// The author of the signal that told a keeper's parent to end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_by: Option<String>,
    /// The end of the run, while run.db does not hold it: it is being written, or could not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// The attempt of a harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// The token of that attempt's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The run's claim on devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// The end of a run that its keeper's parent decided while no keeper ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Who ended the run, as a sentence.
    pub why: String,
    /// The run's exit code.
    pub code: u8,
    /// The user ended it. Any other signal may come from a machine shutdown.
    pub wish: bool,
}

/// The recovery from one keeper to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How the last working keeper ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub death: Option<String>,
    /// Reason for the newest failed start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Number of failed starts.
    #[serde(default)]
    pub failures: u32,
    /// Seconds from the first to the newest failure.
    #[serde(default)]
    pub lasting_s: u64,
}

/// A lock, held until it is dropped or the process ends in any way.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    record: Record,
    /// A directory that is locked as well: its files can be deleted, but not the directory in use.
    _folder: Option<File>,
    /// The lease of the run, where other hosts may use its directory.
    lease: Option<HeldLease>,
}

/// Reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("held by process {}", .0.as_ref().map_or_else(|| "?".to_owned(), |owner| owner.pid.to_string()))]
    Held(Option<Identity>),
    /// A process of another host holds the run.
    #[error("the run has a keeper, {}", .0.holder())]
    Elsewhere(Box<Lease>),
    /// The path is not a regular file.
    #[error("a symbolic link, or not a regular file; remove it")]
    NotAFile,
    /// The file is unusable.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Whereabouts of a held lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// In its original place.
    InPlace,
    /// Deleted, or its name belongs to another file.
    Gone,
    /// The path cannot be checked.
    Unknown,
}

impl Lock {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// Returns an error when another process holds it, or the file cannot be written.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, None)
    }

    /// Takes a lock that protects a directory. The directory is locked too, so that deleting the lock file
    /// does not let a second holder in. Some file systems cannot lock a directory; there the file has to
    /// suffice.
    ///
    /// # Errors
    /// Returns an error when another process holds either, or the file cannot be written.
    pub fn take_guarding(path: &Path, folder: &Path) -> Result<Self, LockError> {
        let directory = OFlags::DIRECTORY.bits().cast_signed();
        let guard = OpenOptions::new().read(true).custom_flags(directory).open(folder)?;
        match flock(&guard, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Self::take_with(path, Some(guard)),
            Err(Errno::WOULDBLOCK) => Err(LockError::Held(owner_guarding(path, folder))),
            Err(_) => Self::take_with(path, None),
        }
    }

    fn take_with(path: &Path, folder: Option<File>) -> Result<Self, LockError> {
        let record = Record::own();
        let mut lock = Self { file: locked(path)?, path: path.to_owned(), record, _folder: folder, lease: None };
        lock.write()?;
        Ok(lock)
    }

    /// Keeps the lease of the run as long as the lock.
    #[must_use]
    pub fn with_lease(self, lease: HeldLease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Returns what renews the lease, if there is one.
    #[must_use]
    pub fn lease_renewal(&self) -> Option<Renewal> {
        self.lease.as_ref().map(HeldLease::renewal)
    }

    /// Changes the content of the lock file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn update(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        change(&mut self.record);
        self.write()
    }

    /// Empties the lock file, then releases the lock: this process may live on, and no longer owns the run.
    pub fn release(self) {
        // A file that stays as it is names this process until it ends.
        self.file.set_len(0).ok();
    }

    /// Returns the content of the lock file.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Writes in place: a full disk has no room for another file.
    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_string(&self.record).map_err(io::Error::from)?;
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Returns the whereabouts of the lock file.
    #[must_use]
    pub fn whereabouts(&self) -> Whereabouts {
        let here = fs::symlink_metadata(&self.path);
        match (here, self.file.metadata()) {
            (Ok(here), Ok(held)) if same_file(&here, &held) => Whereabouts::InPlace,
            (Ok(_), _) => Whereabouts::Gone,
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Whereabouts::Gone,
            _ => Whereabouts::Unknown,
        }
    }

    /// Recreates the lock file after it was deleted.
    ///
    /// # Errors
    /// Returns an error when another process has recreated it meanwhile, or it cannot be written.
    pub fn restore(&mut self) -> Result<bool, LockError> {
        if self.whereabouts() != Whereabouts::Gone {
            return Ok(false);
        }
        self.file = locked(&self.path)?;
        self.write()?;
        Ok(true)
    }
}

impl Record {
    fn own() -> Self {
        let owner = Identity::own();
        Self {
            owner,
            opening: false,
            socket: None,
            waiting: None,
            recovery: None,
            told_by: None,
            ending: None,
            attempt: None,
            token: None,
            claim: None,
        }
    }
}

/// Opens one of the program's own files for appending, without following links.
///
/// # Errors
/// Returns the system's error, also when the path is not a regular file.
pub fn open_log(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .custom_flags(no_link())
        .open(path)
        .map_err(|error| if is_a_link(&error) { not_a_file(path) } else { error })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file(path)) }
}

fn not_a_file(path: &Path) -> io::Error {
    io::Error::other(format!("{}: {}", text::path(path), LockError::NotAFile))
}

/// Returns open flags that prevent following a link or waiting at a FIFO.
#[must_use]
pub fn no_link() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

fn is_a_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Opens the file at `path`, locked by this process.
fn locked(path: &Path) -> Result<File, LockError> {
    // A previous holder may delete the file between open and lock.
    for _ in 0..100 {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644).custom_flags(no_link());
        let opened = options.open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_a_link(&error) => return Err(LockError::NotAFile),
            Err(error) => return Err(LockError::Io(error)),
        };
        let held = file.metadata()?;
        if !held.is_file() {
            return Err(LockError::NotAFile);
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held(owner(path))),
            // A mount without locks (Lustre without `flock`, NFS with a dead lock service): the content has to suffice.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) if path.parent().is_some_and(is_shared) => {
                if let Some(living) = living_owner(path).filter(|living| *living != Identity::own()) {
                    return Err(LockError::Held(Some(living)));
                }
            }
            Err(error) => return Err(LockError::Io(error.into())),
        }
        if fs::symlink_metadata(path).is_ok_and(|here| same_file(&here, &held)) {
            return Ok(file);
        }
    }
    Err(LockError::Held(None))
}

fn same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Reads a lock file, whose holder may be dead.
#[must_use]
pub fn record(path: &Path) -> Option<Record> {
    let file = OpenOptions::new().read(true).custom_flags(no_link()).open(path).ok()?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    // A shorter text may briefly be followed by the end of a longer one.
    serde_json::Deserializer::from_str(&text).into_iter().next()?.ok()
}

/// Returns the process that a lock file names, alive or not.
#[must_use]
pub fn owner(path: &Path) -> Option<Identity> {
    record(path).map(|record| record.owner)
}

/// Returns the process that a lock file names, if it is alive.
pub fn living_owner(path: &Path) -> Option<Identity> {
    owner(path).filter(Identity::is_alive)
}

/// Reads a lock file whose holder is alive.
#[must_use]
pub fn living_record(path: &Path) -> Option<Record> {
    record(path).filter(|record| record.owner.is_alive())
}

/// Returns the live holder of a lock that protects a directory, even if its file was deleted.
#[must_use]
pub fn owner_guarding(path: &Path, folder: &Path) -> Option<Identity> {
    living_owner(path).or_else(|| holder_of(folder))
}

/// Returns the process that holds a lock on a directory, according to the kernel's list.
fn holder_of(folder: &Path) -> Option<Identity> {
    let wanted = fs::metadata(folder).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let suffix = format!(":{}", wanted.ino());
    let holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, pid, inode) = (words.nth(1)?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && inode.ends_with(&suffix)).then(|| pid.parse::<u32>().ok())?
    });
    // Another file system may have a file with the same inode.
    let has_it_open = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|file| same_file(&file, &wanted))
    };
    holders.filter(has_it_open).find_map(Identity::of)
}

#[cfg(test)]
mod tests;
