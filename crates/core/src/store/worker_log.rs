//! worker.log within a bound: once it is full, its content moves to worker.log.1 in place of what was there, and the file is
//! empty again. session.log, the output of an adopted tmux pane, has the same bound.
//!
//! The content is copied and the file truncated, never renamed: the worker, the job steps of other nodes and the second
//! holder of the output have it open, too. Positions are those in the whole output, so one that was stored stays valid:
//! worker.log begins where worker.log.1 ends, and worker.log.1 names its own beginning in its first line. A process that
//! is killed on the way leaves one of these states, and the next one goes on from there:
//!
//! ```text
//! .1.part  .1.next   worker.log
//!   part      -      full                    begins anew
//!    -      copied   as long as the copy     still to be truncated; the copy does not count yet
//!    -      copied   shorter                 to be renamed to worker.log.1
//! ```

use super::disk::free_bytes;
use super::lock::open_log;
use crate::untrusted::file::open;
use std::fs::{File, OpenOptions, TryLockError, rename};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The log.
pub const NAME: &str = "worker.log";
/// The output before it.
pub const OLDER: &str = "worker.log.1";
/// The output of an adopted tmux pane.
pub const OF_PANE: &str = "session.log";
/// The user's setting of the bytes that each of them may have.
const LIMIT_VARIABLE: &str = "DOWNSHIFT_LOG_LIMIT";

/// Appended to the name of a log: for the output before it, a whole copy of it, and an unfinished copy.
const OLDER_ENDING: &str = ".1";
const NEXT_ENDING: &str = ".1.next";
const PART_ENDING: &str = ".1.part";
const LIMIT: u64 = 128 << 20;
/// Least bound, so that a failure's last lines are in one of the files.
const LEAST: u64 = 64 << 10;
/// The first line of worker.log.1, around the name of the log; a position follows.
const HEAD: [&str; 2] = ["downshift: ", " continues this output, which begins at byte "];
/// Longest first line.
const LONGEST_HEAD: u64 = 128;
/// Times that changing files are opened.
const TRIES: usize = 3;

/// The files with the output of a run.
#[derive(Debug)]
pub struct LogFiles {
    older: Option<Older>,
    newer: File,
    length: u64,
}

/// The output before worker.log.
#[derive(Debug)]
struct Older {
    file: File,
    /// Position of its first byte in the output.
    begins: u64,
    /// Length of its first line, which is not output.
    head: u64,
    /// Length of its output.
    length: u64,
}

impl Older {
    fn open(path: &Path) -> Option<Self> {
        let file = open(path).ok()?;
        let mut start = Vec::new();
        (&file).take(LONGEST_HEAD).read_to_end(&mut start).ok()?;
        let end = start.iter().position(|byte| *byte == b'\n')?;
        let (_, begins) = std::str::from_utf8(&start[..end]).ok()?.strip_prefix(HEAD[0])?.split_once(HEAD[1])?;
        let begins = begins.parse().ok()?;
        let head = end as u64 + 1;
        let length = file.metadata().ok()?.len().saturating_sub(head);
        Some(Self { file, begins, head, length })
    }

    fn ends(&self) -> u64 {
        self.begins.saturating_add(self.length)
    }

    /// Returns where a copy of worker.log ends in it; `older` is the output before that.
    fn ends_within_newer(&self, older: Option<&Self>) -> u64 {
        self.ends().saturating_sub(older.map_or(0, Self::ends))
    }
}

impl LogFiles {
    /// Opens worker.log at this path, and the output before it.
    ///
    /// # Errors
    /// Returns an error when worker.log cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (mut files, mut seen) = Self::open_once(path)?;
        for _ in 1..TRIES {
            let (again, now) = Self::open_once(path)?;
            if now == seen {
                break;
            }
            (files, seen) = (again, now);
        }
        Ok(files)
    }

    /// Opens the files. Also returns the identity of the one before worker.log: in between, it may have changed.
    fn open_once(path: &Path) -> io::Result<(Self, Option<u64>)> {
        let (next, older) = (Older::open(&beside(path, NEXT_ENDING)), Older::open(&beside(path, OLDER_ENDING)));
        let newer = open(path)?;
        let length = newer.metadata()?.len();
        let older = match next {
            Some(next) if length < next.ends_within_newer(older.as_ref()) => Some(next),
            _ => older,
        };
        let identity = older.as_ref().and_then(|older| older.file.metadata().ok()).map(|about| about.ino());
        Ok((Self { older, newer, length }, identity))
    }

    /// Returns the position of the first byte that is left of the output.
    pub fn start(&self) -> u64 {
        self.older.as_ref().map_or(0, |older| older.begins)
    }

    /// Returns the position of the first byte of worker.log.
    pub fn begin_of_newer(&self) -> u64 {
        self.older.as_ref().map_or(0, Older::ends)
    }

    /// Returns the position after the last byte.
    pub fn end(&self) -> u64 {
        self.begin_of_newer().saturating_add(self.length)
    }

    /// Reads the output between two positions, as far as it is left.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn read(self, from: u64, to: u64) -> io::Result<Box<dyn Read>> {
        let border = self.begin_of_newer();
        let (from, to) = (from.max(self.start()), to.min(self.end()));
        let mut newer = self.newer;
        newer.seek(SeekFrom::Start(from.saturating_sub(border)))?;
        let newer = newer.take(to.saturating_sub(from.max(border)));
        let Some(mut older) = self.older.filter(|_| from < border) else { return Ok(Box::new(newer)) };
        older.file.seek(SeekFrom::Start(older.head.saturating_add(from - older.begins)))?;
        Ok(Box::new(older.file.take(to.min(border).saturating_sub(from)).chain(newer)))
    }

    /// Reads the files from their beginning, with the first line of the older one: lines count as in both files together.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn read_whole(self) -> io::Result<Box<dyn Read>> {
        let Some(mut older) = self.older else { return Ok(Box::new(self.newer)) };
        older.file.rewind()?;
        Ok(Box::new(older.file.chain(self.newer)))
    }

    /// Returns the end of the output as text; replaces invalid UTF-8.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn tail(self, most: u64) -> io::Result<String> {
        let (end, mut bytes) = (self.end(), Vec::new());
        self.read(end.saturating_sub(most), end)?.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// worker.log, opened for appending by a process that keeps it within its bound.
#[derive(Debug)]
pub struct BoundedLog {
    file: File,
    limit: u64,
    /// The length from which it is full; more than the limit after a failure.
    full: u64,
}

impl BoundedLog {
    /// Takes a log that was opened for appending.
    pub fn new(file: File) -> Self {
        Self::with_limit(file, limit())
    }

    /// Opens worker.log at this path if it has reached its bound, or was left on the way.
    pub fn open_full(path: &Path) -> Option<Self> {
        let is_due = path.metadata().ok()?.len() >= limit() || beside(path, NEXT_ENDING).exists();
        let file = open_log(path).ok().filter(|_| is_due)?;
        Some(Self { file, limit: limit(), full: 0 })
    }

    /// Takes a log that is full at this length.
    pub fn with_limit(file: File, limit: u64) -> Self {
        let log = Self { file, limit, full: limit };
        // A process that was killed may have left the rest to do.
        let _ = path_of(&log.file).map(|path| log.make_room(&path));
        log
    }

    /// Returns the length of the output so far.
    pub fn end(&self) -> Option<u64> {
        match path_of(&self.file) {
            Some(path) => LogFiles::open(&path).ok().map(|files| files.end()),
            None => self.file.metadata().ok().map(|log| log.len()),
        }
    }

    /// Writes to the log. On a full disk, the text is lost.
    pub fn write(&mut self, text: &[u8]) {
        let _ = self.file.write_all(text);
        self.keep_bound();
    }

    /// Moves the content of a full log to worker.log.1.
    pub fn keep_bound(&mut self) {
        if !self.file.metadata().is_ok_and(|log| log.len() >= self.full) {
            return;
        }
        // The disk may be full: then the next attempt follows when more was written. A file that is something else, such as
        // the pipe to another node, or that the user moved elsewhere, stays as it is.
        self.full = match path_of(&self.file).map(|path| self.make_room(&path)) {
            Some(Ok(())) => self.limit,
            Some(Err(_)) | None => self.full.saturating_add(self.limit / 8),
        };
    }

    fn make_room(&self, path: &Path) -> io::Result<()> {
        let next = beside(path, NEXT_ENDING);
        let lock = open_log(path)?;
        // Some network file systems have no locks.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Ok(());
        }
        if Older::open(&next).is_none() {
            if self.file.metadata()?.len() < self.limit {
                return Ok(());
            }
            copy_end(path, self.limit)?;
        }
        self.truncate(path)?;
        rename(&next, beside(path, OLDER_ENDING))
    }

    /// Truncates the log, whose beginning is copied.
    fn truncate(&self, path: &Path) -> io::Result<()> {
        let next = beside(path, NEXT_ENDING);
        let older = Older::open(&beside(path, OLDER_ENDING));
        let copied = Older::open(&next).ok_or(io::ErrorKind::InvalidData)?.ends_within_newer(older.as_ref());
        if self.file.metadata()?.len() < copied {
            return Ok(());
        }
        let mut rest = open(path)?;
        rest.seek(SeekFrom::Start(copied))?;
        let mut copy = open_log(&next)?;
        io::copy(&mut rest, &mut copy)?;
        copy.sync_data()?;
        self.file.set_len(0)
    }
}

fn limit() -> u64 {
    let set = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(LIMIT).max(LEAST)
}

/// Copies the log, so that it can be truncated: of one that is longer than `most`, since it is from before the bound, its end.
fn copy_end(path: &Path, most: u64) -> io::Result<()> {
    let (part, next) = (beside(path, PART_ENDING), beside(path, NEXT_ENDING));
    let _ = std::fs::remove_file(&part);
    let (mut log, begins) = (open(path)?, LogFiles::open(path)?.begin_of_newer());
    let length = log.metadata()?.len();
    // A copy that fills the disk would stop the checkpoints.
    if free_bytes(path)? < 2 * length.min(2 * most) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let from = if length > 2 * most { length - most } else { 0 };
    log.seek(SeekFrom::Start(from))?;
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let copied =
        writeln!(copy, "{}{name}{}{}", HEAD[0], HEAD[1], begins + from).and_then(|()| io::copy(&mut log, &mut copy));
    if let Err(error) = copied {
        let _ = std::fs::remove_file(&part);
        return Err(error);
    }
    rename(part, next)
}

fn beside(log: &Path, ending: &str) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Returns the path of a file that is open as one of the logs.
fn path_of(file: &File) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let (open, named) = (file.metadata().ok()?, path.symlink_metadata().ok()?);
    let is_same = open.is_file() && (open.dev(), open.ino()) == (named.dev(), named.ino());
    Some(path).filter(|path| is_same && path.file_name().is_some_and(|name| name == NAME || name == OF_PANE))
}

#[cfg(test)]
mod tests;
