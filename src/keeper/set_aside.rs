//! Sets checkpoints aside and puts them back: containers of ours, and the files of a command.

use super::retention::KeptError;
use crate::store::adopted;
use crate::store::checkpoint::aside;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Sets a checkpoint aside, so that no start finds it. Returns its container or list in the new place.
///
/// # Errors
/// Returns an error that names what cannot be moved.
pub fn set_aside(run_dir: &Path, step: u64) -> Result<PathBuf, KeptError> {
    if adopted::find(run_dir, step).is_some() {
        return adopted::set_aside(run_dir, step).map_err(|source| KeptError::Adopted { step, source });
    }
    Ok(aside::set_aside(run_dir, step)?)
}

/// Puts a checkpoint back that was set aside, if it verifies.
///
/// # Errors
/// Returns an error that names what is missing, changed or damaged.
pub fn put_back(run_dir: &Path, step: u64) -> Result<(), KeptError> {
    if adopted::list_aside(run_dir).iter().any(|adopted| adopted.step == step) {
        return adopted::put_back(run_dir, step).map_err(|source| KeptError::Unusable { step, source });
    }
    Ok(aside::put_back(run_dir, step)?)
}

/// Returns the steps of the checkpoints that were set aside.
#[must_use]
pub fn steps_aside(run_dir: &Path) -> BTreeSet<u64> {
    let containers = aside::list_aside(run_dir).into_iter().map(|entry| entry.step);
    containers.chain(adopted::list_aside(run_dir).into_iter().map(|adopted| adopted.step)).collect()
}
