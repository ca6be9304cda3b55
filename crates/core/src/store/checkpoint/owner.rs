//! The owner of a checkpoint: in a folder that a group can write, anybody in it can put one.

use super::CheckpointError;
use super::error::Doing;
use crate::store::permissions::Owners;
use std::fs;
use std::path::Path;

/// Refuses a checkpoint that another user has put among those of the run, or a file in it.
pub(super) fn check_owner(path: &Path, owners: Owners) -> Result<(), CheckpointError> {
    let files = fs::read_dir(path).doing("read", path)?.flatten().map(|entry| entry.path());
    Ok(owners.check_all(files.chain([path.to_owned()]))?)
}
