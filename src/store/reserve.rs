//! Disk space reserved for the keeper's last words: a full disk would otherwise prevent recording how the run ended.

use super::run_dir::RunDir;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io;

/// The file that holds the reserved space.
const FILE: &str = "run.db.reserve";
/// Size for the end of a journal, the status, and the overhead of `SQLite`.
const BYTES: u64 = 1 << 20;

/// Reserves the space, unless it is already reserved.
///
/// # Errors
/// Returns the system's error: the disk is already full, or the file system cannot reserve space.
pub fn hold(run: &RunDir) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(run.file(FILE))?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?)
}

/// Releases the space.
pub fn release(run: &RunDir) {
    fs::remove_file(run.file(FILE)).ok();
}
