//! The processes that own a run: its keeper, the keeper's parent, and its worker. Each holds its own
//! lock file in the run directory.
//!
//! Keeper and worker also lock a directory (the run directory and its `checkpoints`). That prevents a
//! second one even if the lock files are deleted.

use super::checkpoint;
use super::file_system::is_shared;
use super::foreign::ForeignProcess;
use super::identity::{Identity, boot_id};
use super::lock::{self, Ending, Lock, LockError, Record, Recovery};
use super::permissions::{Owners, own_folder};
use super::run_dir::RunDir;
use super::shared_folder::lease::{self, Lease};
use crate::process_tree;
use std::path::Path;

const KEEPER: &str = "keeper.lock";
const PARENT: &str = "parent.lock";
const WORKER: &str = "worker.lock";

/// Makes this process the keeper of a run.
///
/// # Errors
/// Returns an error when there is another keeper, or the lock file or the lease is unusable.
pub fn become_keeper(run: &RunDir) -> Result<Lock, LockError> {
    if !is_shared(run.path()) {
        return Lock::take_guarding(&run.file(KEEPER), run.path());
    }
    // Locks may not reach other hosts, so the lease is asked first, and taken under the locks of this host.
    if let Some(lease) = lease::newest(run.path())?.filter(Lease::is_elsewhere) {
        return Err(LockError::Elsewhere(Box::new(lease)));
    }
    let lock = Lock::take_guarding(&run.file(KEEPER), run.path())?;
    match lease::take(run.path())? {
        Ok(lease) => Ok(lock.with_lease(lease)),
        Err(other) if other.is_elsewhere() => Err(LockError::Elsewhere(other)),
        Err(other) => Err(LockError::Held(Some(other.owner))),
    }
}

/// Returns the lease of a keeper on another host, which may be alive; none on a disk of this host.
#[must_use]
pub fn keeper_elsewhere(run: &RunDir) -> Option<Lease> {
    is_shared(run.path()).then(|| lease::elsewhere(run.path())).flatten()
}

/// Makes this process the parent of a run's keeper.
///
/// # Errors
/// Returns an error when there is another parent, another host holds the run, or the lock file is unusable.
pub fn become_parent(run: &RunDir) -> Result<Lock, LockError> {
    // Where locks end at the host, this one would overwrite the file of the other parent.
    if let Some(lease) = keeper_elsewhere(run) {
        return Err(LockError::Elsewhere(Box::new(lease)));
    }
    Lock::take(&run.file(PARENT))
}

/// Makes this process the worker of the run in a directory.
///
/// # Errors
/// Returns an error when there is another worker, or the lock file is unusable.
pub fn become_worker(run_dir: &Path) -> Result<Lock, LockError> {
    let folder = run_dir.join(checkpoint::FOLDER);
    own_folder(&folder, Owners::of_run(run_dir))?;
    Lock::take_guarding(&run_dir.join(WORKER), &folder)
}

/// Reports whether the run has a keeper, here or on another host, or a parent that starts one.
#[must_use]
pub fn is_kept(run: &RunDir) -> bool {
    keeper(run).is_some() || parent_record(run).is_some() || keeper_elsewhere(run).is_some()
}

/// Returns the keeper of a run, if it is alive.
#[must_use]
pub fn keeper(run: &RunDir) -> Option<Identity> {
    lock::owner_guarding(&run.file(KEEPER), run.path())
}

/// Reads the keeper's lock, if the keeper is alive.
#[must_use]
pub fn keeper_record(run: &RunDir) -> Option<Record> {
    lock::living_record(&run.file(KEEPER))
}

/// Returns the worker of a run, if it is alive.
#[must_use]
pub fn worker(run: &RunDir) -> Option<Identity> {
    lock::owner_guarding(&run.file(WORKER), &run.file(checkpoint::FOLDER))
}

/// Reports whether the run in a directory has processes on this host beside its keeper: its worker, or what is left of a
/// command.
#[must_use]
pub fn has_processes(run_dir: &Path) -> bool {
    let worker = run_dir.join(WORKER);
    if lock::owner_guarding(&worker, &run_dir.join(checkpoint::FOLDER)).is_some() {
        return true;
    }
    let Some(token) = lock::record(&worker).and_then(|record| record.token) else { return false };
    // Orphans of the command come to the keeper's parent.
    let parent = lock::living_owner(&run_dir.join(PARENT)).map_or(0, |parent| parent.pid);
    !process_tree::members(&process_tree::scan(), &token, parent).is_empty()
}

/// Returns a living process of the newest attempt's command.
#[must_use]
pub fn command_process(run: &RunDir) -> Option<u32> {
    let token = worker_record(run)?.token?;
    process_tree::members(&process_tree::scan(), &token, 0).first().map(|process| process.pid)
}

/// Reports whether the command of a run lives, as its own process or as one that it watches.
#[must_use]
pub fn command_lives(run: &RunDir) -> bool {
    command_process(run).is_some() || ForeignProcess::living(run).is_some()
}

/// Reports whether a keeper may be writing run.db in a directory: one of this host, or one elsewhere.
#[must_use]
pub fn may_be_written(run_dir: &Path) -> bool {
    let here = lock::owner_guarding(&run_dir.join(KEEPER), run_dir).is_some();
    here || lock::living_owner(&run_dir.join(PARENT)).is_some()
        || (is_shared(run_dir) && lease::elsewhere(run_dir).is_some())
}

/// Reads the lock of the run's newest worker, alive or not: a harness leaves its token there.
#[must_use]
pub fn worker_record(run: &RunDir) -> Option<Record> {
    lock::record(&run.file(WORKER))
}

/// Reports whether the machine was started again since the run's newest worker; `None` without a worker, or where it may have
/// run on another host, which has another boot.
#[must_use]
pub fn was_booted_since(run: &RunDir) -> Option<bool> {
    let boot = worker_record(run).filter(|_| !is_shared(run.path()))?.owner.boot;
    Some(boot != boot_id()).filter(|_| !boot.is_empty())
}

/// Reads the lock of the keeper's parent, if the parent is alive.
#[must_use]
pub fn parent_record(run: &RunDir) -> Option<Record> {
    lock::living_record(&run.file(PARENT))
}

/// Returns why the last parent, alive or not, could not start a keeper.
#[must_use]
pub fn last_failure(run: &RunDir) -> Option<String> {
    lock::record(&run.file(PARENT))?.recovery?.failure
}

/// Returns the end of a run that run.db does not hold. The parent that decided it may have exited.
#[must_use]
pub fn unwritten_end(run: &RunDir) -> Option<Ending> {
    lock::record(&run.file(PARENT))?.ending
}

impl Recovery {
    /// Describes the recovery for callers that wait for the keeper.
    #[must_use]
    pub fn sentence(&self) -> String {
        match (&self.failure, &self.death) {
            (Some(failure), _) if self.lasting_s > 0 => format!(
                "the keeper cannot start: {failure}; {} attempts failed within {} s, it will retry",
                self.failures, self.lasting_s
            ),
            (Some(failure), _) => format!("the keeper cannot start: {failure}; it will retry"),
            (None, Some(death)) => format!("the keeper {death} and is restarting"),
            (None, None) => "the keeper is starting".to_owned(),
        }
    }
}
