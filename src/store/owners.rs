//! The processes that own a run: its keeper, the keeper's parent, its worker. Each holds a lock file of its
//! own in the run directory.
//!
//! Keeper and worker also lock a folder (the run directory, its `checkpoints`), so that there are never two
//! of them, whatever becomes of the files.

use super::checkpoint;
use super::lock::{self, Identity, Lock, LockError, Record, Recovery};
use super::run_dir::RunDir;
use std::fs;
use std::path::Path;

const KEEPER: &str = "keeper.lock";
const PARENT: &str = "parent.lock";
const WORKER: &str = "worker.lock";

/// Makes this process the keeper of a run.
///
/// # Errors
/// When there is another one, or the lock file cannot be used.
pub fn become_keeper(run: &RunDir) -> Result<Lock, LockError> {
    Lock::take_guarding(&run.file(KEEPER), run.path())
}

/// Makes this process the parent of the keeper of a run.
///
/// # Errors
/// When there is another one, or the lock file cannot be used.
pub fn become_parent(run: &RunDir) -> Result<Lock, LockError> {
    Lock::take(&run.file(PARENT))
}

/// Makes this process the worker of the run in a directory.
///
/// # Errors
/// When there is another one, or the lock file cannot be used.
pub fn become_worker(run_dir: &Path) -> Result<Lock, LockError> {
    let folder = run_dir.join(checkpoint::FOLDER);
    fs::create_dir_all(&folder)?;
    Lock::take_guarding(&run_dir.join(WORKER), &folder)
}

/// The keeper of a run, while it lives.
#[must_use]
pub fn keeper(run: &RunDir) -> Option<Identity> {
    lock::owner_guarding(&run.file(KEEPER), run.path())
}

/// What the keeper's lock says, while the keeper lives.
#[must_use]
pub fn keeper_record(run: &RunDir) -> Option<Record> {
    lock::living_record(&run.file(KEEPER))
}

/// The worker of a run, while it lives.
#[must_use]
pub fn worker(run: &RunDir) -> Option<Identity> {
    lock::owner_guarding(&run.file(WORKER), &run.file(checkpoint::FOLDER))
}

/// What the lock of the keeper's parent says, while the parent lives.
#[must_use]
pub fn parent_record(run: &RunDir) -> Option<Record> {
    lock::living_record(&run.file(PARENT))
}

/// Why the last parent could not bring a keeper up, alive or not.
#[must_use]
pub fn last_failure(run: &RunDir) -> Option<String> {
    lock::record(&run.file(PARENT))?.recovery?.failure
}

impl Recovery {
    /// A sentence for whoever waits for the keeper.
    #[must_use]
    pub fn sentence(&self) -> String {
        match (&self.failure, &self.death) {
            (Some(failure), _) if self.lasting_s > 0 => format!(
                "the keeper cannot run: {failure}; {} starts failed within {} s, the next follows by itself",
                self.failures, self.lasting_s
            ),
            (Some(failure), _) => format!("the keeper cannot run: {failure}; it is started again"),
            (None, Some(death)) => format!("the keeper {death} and is started again"),
            (None, None) => "the keeper is started".to_owned(),
        }
    }
}
