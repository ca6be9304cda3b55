//! The temporary folder of a measurement or a trial: deleted when it ends, or by the next one.

use crate::cli::Failure;
use crate::process_tree::{Family, Grace, end_all};
use crate::store::lock::{self, Lock, LockError, Whereabouts};
use crate::store::worker_log::LogFiles;
use crate::untrusted::text;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum folder names to try.
const TAKEN: u64 = 10_000;
/// Prefix of measurement folders in the temporary directory.
const FOLDERS: &str = "downshift-measured-";
/// Lock file in such a folder: held while the folder is in use, and released however its owner ends.
const OWNER: &str = "owner.lock";
/// Log lines shown when a worker fails.
const SHOWN: usize = 4;
/// Bytes at the end of a log that are searched for its last lines.
const TAIL: u64 = 1 << 16;

/// How long processes get that outlived the harness of a command.
pub const LEFT_BEHIND: Grace =
    Grace { command: Duration::ZERO, others: Duration::from_secs(1), kill: Duration::from_secs(10) };

/// A folder that is deleted on drop.
pub struct TemporaryFolder {
    /// Its path.
    pub path: PathBuf,
    /// Whether it stays.
    is_kept: bool,
    _owner: Lock,
}

impl TemporaryFolder {
    /// Creates a folder in the temporary directory. Removes leftovers of measurements that were killed.
    pub fn new() -> Result<Self, Failure> {
        Self::create(&std::env::temp_dir(), FOLDERS)
    }

    /// Creates a folder with this prefix. Removes leftovers with the same prefix.
    pub fn create(all: &Path, prefix: &str) -> Result<Self, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        remove_leftovers(all, prefix);
        // An existing folder may belong to another user.
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = all.join(format!("{prefix}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    if let Some(folder) = Self::own(path)? {
                        return Ok(folder);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < TAKEN => {}
                Err(error) => return Err(Failure::new(1, format!("{}: {error}", text::path(&path)))),
            }
        }
    }

    /// Takes the lock of a new folder; none if another measurement took the folder for a leftover meanwhile.
    fn own(path: PathBuf) -> Result<Option<Self>, LockError> {
        match Lock::take(&path.join(OWNER)) {
            Ok(owner) if owner.whereabouts() == Whereabouts::Gone => Ok(None),
            Ok(owner) => Ok(Some(Self { path, is_kept: false, _owner: owner })),
            Err(LockError::Held(_)) => Ok(None),
            Err(LockError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl TemporaryFolder {
    /// Keeps the folder when this is dropped; no later measurement removes it.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder without a lock is nobody's leftover.
        let _ = if self.is_kept { fs::remove_file(self.path.join(OWNER)) } else { fs::remove_dir_all(&self.path) };
    }
}

fn remove_leftovers(all: &Path, prefix: &str) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let owner = entry.path().join(OWNER);
        // A folder without a lock is just being created.
        if is_folder
            && entry.file_name().to_string_lossy().starts_with(prefix)
            && owner.exists()
            && Lock::take(&owner).is_ok()
        {
            end_leftover_processes(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Ends the processes of a command whose measurement was killed together with its harness.
fn end_leftover_processes(folder: &Path) {
    for run in fs::read_dir(folder).into_iter().flatten().flatten() {
        let token = lock::record(&run.path().join("worker.lock")).and_then(|record| record.token);
        if let Some(token) = token {
            let _ = end_all(&Family::Attempt { token, root: 0 }, None, LEFT_BEHIND, None);
        }
    }
}

/// Returns the end of a worker's log, for its failure message.
pub fn end_of_log(log: &Path) -> String {
    let text = LogFiles::open(log).and_then(|files| files.tail(TAIL)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(SHOWN)..];
    if last.is_empty() { String::new() } else { format!("\n  {}", last.join("\n  ")) }
}

#[cfg(test)]
mod tests {
    use super::{Lock, OWNER, TemporaryFolder};
    use std::fs;

    #[test]
    fn a_new_folder_that_another_measurement_removes_is_left_to_it() {
        let all = tempfile::tempdir().unwrap();
        let path = all.path().join("downshift-measured-1-0");
        fs::create_dir(&path).unwrap();
        let other = Lock::take(&path.join(OWNER)).unwrap();
        assert!(TemporaryFolder::own(path.clone()).unwrap().is_none(), "the other holds it");
        assert!(path.exists(), "the other removes it");
        drop(other);
        drop(TemporaryFolder::own(path.clone()).unwrap().unwrap());
        assert!(!path.exists());
        assert!(TemporaryFolder::own(path).unwrap().is_none(), "it is gone");
    }
}
