//! Sets checkpoints aside and puts them back: containers of ours, and the files of a command. A step may have both.

use super::retention::KeptError;
use crate::store::adopted;
use crate::store::checkpoint::{self, aside};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Sets the checkpoints of a step aside, so that no start finds them. Returns the new place of one.
///
/// # Errors
/// Returns an error that names what cannot be moved.
pub fn set_aside(run_dir: &Path, step: u64) -> Result<PathBuf, KeptError> {
    let mut list = None;
    if adopted::find(run_dir, step).is_some() {
        list = Some(adopted::set_aside(run_dir, step).map_err(|source| KeptError::Adopted { step, source })?);
    }
    let is_container = run_dir.join(checkpoint::relative_path(step)).is_dir();
    match list.filter(|_| !is_container) {
        Some(list) => Ok(list),
        None => Ok(aside::set_aside(run_dir, step)?),
    }
}

/// Puts the checkpoints of a step back that were set aside, those that verify.
///
/// # Errors
/// Returns an error that names what is missing, changed or damaged, when no checkpoint verifies.
pub fn put_back(run_dir: &Path, step: u64) -> Result<(), KeptError> {
    let container = aside::put_back(run_dir, step);
    if adopted::list_aside(run_dir).iter().any(|adopted| adopted.step == step) {
        let list = adopted::put_back(run_dir, step).map_err(|source| KeptError::Unusable { step, source });
        return if container.is_ok() { Ok(()) } else { list };
    }
    Ok(container?)
}

/// Returns the steps of the checkpoints that were set aside and are still there.
#[must_use]
pub fn steps_aside(run_dir: &Path) -> BTreeSet<u64> {
    let containers = aside::list_aside(run_dir).into_iter().map(|entry| entry.step);
    let lists = adopted::list_aside(run_dir).into_iter().filter(|adopted| adopted.path.exists());
    containers.chain(lists.map(|adopted| adopted.step)).collect()
}
