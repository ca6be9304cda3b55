//! One owner at a time: a lock file held by `flock`, with the owner's identity inside for people
//! and for whoever wants to know without taking the lock.
//!
//! A process id alone says little, since ids are used again; with the boot and the start time of
//! the process it names one process for ever.

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A lock file is never longer.
const LONGEST: u64 = 1 << 16;

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

    /// Sends a signal to the process alone, if it still lives.
    ///
    /// # Errors
    /// The system's words.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            Some(process) if self.is_alive() => Ok(rustix::process::kill_process(process, signal)?),
            _ => Ok(()),
        }
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

/// A lock file's content: who holds it, and what others have to know of the holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The holder.
    #[serde(flatten)]
    pub owner: Identity,
    /// A keeper that has not yet opened the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub opening: bool,
    /// The socket that a keeper listens on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Why a keeper cannot start a worker, where run.db may not be able to hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Why a keeper's parent has to start it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Who told a keeper's parent to end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_by: Option<String>,
}

/// The way back from one keeper to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How the last keeper that lived came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub death: Option<String>,
    /// Why the newest start failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Starts that failed.
    #[serde(default)]
    pub failures: u32,
    /// Seconds from the first failure to the newest.
    #[serde(default)]
    pub lasting_s: u64,
}

/// A lock that is held until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    record: Record,
    /// A folder that is locked as well: files in it can be deleted, the folder in use cannot.
    _folder: Option<File>,
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("held by process {}", .0.as_ref().map_or_else(|| "?".to_owned(), |owner| owner.pid.to_string()))]
    Held(Option<Identity>),
    /// Something else has the file's name.
    #[error("it is a link or no regular file; remove it")]
    NotAFile,
    /// The file cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Where a held lock file is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// Where it was made.
    InPlace,
    /// Deleted, or its name belongs to another file.
    Gone,
    /// The path cannot be looked at.
    Unknown,
}

impl Lock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    /// When another process holds it, or the file cannot be written.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, None)
    }

    /// The same for a lock that protects a folder. The folder is locked too, so that deleting the lock file does
    /// not let a second holder in. Some file systems cannot lock a folder; there the file has to do.
    ///
    /// # Errors
    /// When another process holds either, or the file cannot be written.
    pub fn take_guarding(path: &Path, folder: &Path) -> Result<Self, LockError> {
        let directory = OFlags::DIRECTORY.bits().cast_signed();
        let guard = OpenOptions::new().read(true).custom_flags(directory).open(folder)?;
        match flock(&guard, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Self::take_with(path, Some(guard)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held(owner_guarding(path, folder))),
            Err(_) => Self::take_with(path, None),
        }
    }

    fn take_with(path: &Path, folder: Option<File>) -> Result<Self, LockError> {
        let record = Record::own();
        let mut lock = Self { file: locked(path)?, path: path.to_owned(), record, _folder: folder };
        lock.write()?;
        Ok(lock)
    }

    /// Changes what the lock file says.
    ///
    /// # Errors
    /// The system's words.
    pub fn update(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        change(&mut self.record);
        self.write()
    }

    /// What the lock file says.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Overwrites in place: on a full disk there is room for nothing else.
    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_string(&self.record).map_err(io::Error::from)?;
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Where the lock file is now.
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

    /// Whether nothing in the file system names the held file any more.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.file.metadata().is_ok_and(|held| held.nlink() == 0)
    }

    /// Whether the held file has another name now.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        let now = fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let named = now.as_ref().map(fs::symlink_metadata);
        match (&now, named, self.file.metadata()) {
            (Ok(now), Ok(Ok(there)), Ok(held)) => *now != self.path && same_file(&there, &held),
            _ => false,
        }
    }

    /// Makes the lock file anew where somebody deleted it.
    ///
    /// # Errors
    /// When another process has made it meanwhile, or it cannot be written.
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
        Self { owner: Identity::own(), opening: false, socket: None, waiting: None, recovery: None, told_by: None }
    }
}

/// Opens a file of the program's own to be appended to, and follows no link on the way.
///
/// # Errors
/// The system's words; also where something else than a regular file has its name.
pub fn open_log(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .custom_flags(no_link())
        .open(path)
        .map_err(|error| if is_a_link(&error) { not_a_file(path) } else { error })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file(path)) }
}

fn not_a_file(path: &Path) -> io::Error {
    io::Error::other(format!("{}: {}", path.display(), LockError::NotAFile))
}

/// Flags that keep an open from following a link or waiting at a FIFO.
#[must_use]
pub fn no_link() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

fn is_a_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// The file at `path`, locked by this process.
fn locked(path: &Path) -> Result<File, LockError> {
    // Whoever held it may delete it between the opening and the locking.
    for _ in 0..100 {
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(no_link()).open(path);
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
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Held(owner(path))),
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

/// What a lock file says, of a holder that may be dead.
#[must_use]
pub fn record(path: &Path) -> Option<Record> {
    let file = OpenOptions::new().read(true).custom_flags(no_link()).open(path).ok()?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    // Behind a shorter text may stand the end of a longer one for a moment.
    serde_json::Deserializer::from_str(&text).into_iter().next()?.ok()
}

/// Who a lock file names, alive or not.
#[must_use]
pub fn owner(path: &Path) -> Option<Identity> {
    record(path).map(|record| record.owner)
}

/// The living process that a lock file names.
pub fn living_owner(path: &Path) -> Option<Identity> {
    owner(path).filter(Identity::is_alive)
}

/// What a lock file says of a holder that lives.
#[must_use]
pub fn living_record(path: &Path) -> Option<Record> {
    record(path).filter(|record| record.owner.is_alive())
}

/// The living holder of a lock that protects a folder, also where its file was deleted.
#[must_use]
pub fn owner_guarding(path: &Path, folder: &Path) -> Option<Identity> {
    living_owner(path).or_else(|| holder_of(folder))
}

/// The process that holds a lock on a folder, as the kernel's list has it.
fn holder_of(folder: &Path) -> Option<Identity> {
    let wanted = fs::metadata(folder).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let suffix = format!(":{}", wanted.ino());
    let holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, pid, inode) = (words.nth(1)?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && inode.ends_with(&suffix)).then(|| pid.parse::<u32>().ok())?
    });
    // Another file system may have a file of the same number.
    let has_it_open = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|file| same_file(&file, &wanted))
    };
    holders.filter(has_it_open).find_map(Identity::of)
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
mod tests;
