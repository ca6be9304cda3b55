//! Watches files that must stay intact while the run continues: the keeper's lock, and the run file
//! that the next worker will read.

use super::keeper_state::Keeper;
use crate::config::run::Run;
use crate::config::trust::Grants;
use crate::policy::reason::Reason;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use crate::store::lock::LockError;
use crate::store::run_dir::RunDir;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Interval between checks.
const RHYTHM: Duration = Duration::from_secs(1);

/// State of the files at the last check.
#[derive(Debug)]
pub struct FileWatch {
    looked: Instant,
    /// Device, inode and modification time of the run file.
    run_file: Option<(u64, u64, i64, i64)>,
    /// The lock could not be recreated; reported once.
    unlocked: bool,
    /// The run file was unreadable at the last check.
    garbled: bool,
}

impl FileWatch {
    /// Reads the current state of the files.
    pub fn new(run: &RunDir) -> Self {
        Self { looked: Instant::now(), run_file: run_file(run), unlocked: false, garbled: false }
    }
}

fn run_file(run: &RunDir) -> Option<(u64, u64, i64, i64)> {
    let found = fs::metadata(run.file("run.yaml")).ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}

impl Keeper {
    /// Recreates a deleted lock, and reports a run file that became unreadable. If another keeper took the
    /// lock meanwhile, that keeper stays.
    pub(super) fn check_files(&mut self) -> Result<(), LockError> {
        if let Some(lease) = self.files.lost_to.take() {
            return Err(LockError::Elsewhere(lease));
        }
        if self.files.watch.looked.elapsed() < RHYTHM {
            return Ok(());
        }
        self.files.watch.looked = Instant::now();
        match self.files.lock.restore() {
            Ok(true) => {
                self.files.watch.unlocked = false;
                let text = "keeper.lock was deleted or replaced; restored it".to_owned();
                self.recorder.note(Level::Warn, JournalKind::Health, text);
            }
            Err(held @ LockError::Held(_)) => return Err(held),
            Err(error) if !self.files.watch.unlocked => {
                self.files.watch.unlocked = true;
                let text = format!("keeper.lock is gone and cannot be restored: {error}");
                self.recorder.note(Level::Error, JournalKind::Health, text);
            }
            Ok(false) | Err(_) => {}
        }
        self.check_run_file();
        Ok(())
    }

    /// Reports whether the run file, as it is now, asks for nothing but what the user approved at the start.
    pub(super) fn is_approved(&self, run: &Run) -> bool {
        Grants::from_run(run).fingerprint() == self.stored.approved
    }

    fn check_run_file(&mut self) {
        let now = run_file(&self.run_dir);
        if now == self.files.watch.run_file {
            return;
        }
        self.files.watch.run_file = now;
        let read = self.run_dir.run();
        let (level, text) = match (read, self.files.watch.garbled) {
            (Err(error), _) => {
                self.files.watch.garbled = true;
                let text =
                    format!("run.yaml changed and is now invalid; fix it before the next worker starts: {error}");
                (Level::Error, text)
            }
            (Ok(_), true) => {
                self.files.watch.garbled = false;
                (Level::Info, "run.yaml is valid again".to_owned())
            }
            (Ok(run), false) if run.to_yaml() == self.run.to_yaml() => return,
            (Ok(run), false) if !self.is_approved(&run) => (Level::Warn, Reason::Unapproved.to_string()),
            (Ok(_), false) => {
                let text = "run.yaml changed: the next worker uses it; the keeper keeps the version from its start";
                (Level::Warn, text.to_owned())
            }
        };
        self.recorder.note(level, JournalKind::Health, text);
    }
}
