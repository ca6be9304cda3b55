//! Room that the keeper holds for its last words: on a full disk, how a run ended could not be written
//! down otherwise.

use super::run_dir::RunDir;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io;

/// The file that holds the room.
const FILE: &str = "run.db.reserve";
/// The end of a journal, the status, and what `SQLite` needs beside them.
const BYTES: u64 = 1 << 20;

/// Holds the room, where it is not held yet.
///
/// # Errors
/// The system's words: the disk is full already, or the file system cannot do it.
pub fn hold(run: &RunDir) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(run.file(FILE))?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?)
}

/// Gives the room back.
pub fn release(run: &RunDir) {
    fs::remove_file(run.file(FILE)).ok();
}
