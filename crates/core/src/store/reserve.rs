//! Disk space reserved for the keeper's last words: a full disk would otherwise prevent recording how the run ended.

use super::lock::no_link;
use super::run_dir::RunDir;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

/// The file that holds the reserved space.
const FILE: &str = "run.db.reserve";
/// Size for the end of a journal, the status, and the overhead of `SQLite`.
const BYTES: u64 = 1 << 20;

/// Reserves the space, unless it is already reserved.
///
/// # Errors
/// Returns the system's error: the disk is already full, or the file system cannot reserve space.
pub fn hold(run: &RunDir) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(no_link());
    let file = options.open(run.file(FILE))?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?)
}

/// Releases the space.
pub fn release(run: &RunDir) {
    fs::remove_file(run.file(FILE)).ok();
}

#[cfg(test)]
mod tests {
    use super::{BYTES, FILE, hold, release};
    use crate::store::run_dir::{RunDir, RunDirError};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_reserve_is_a_file_of_its_own_and_no_link() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        hold(&run).unwrap();
        assert_eq!(fs::metadata(run.file(FILE)).unwrap().len(), BYTES);
        release(&run);
        assert!(!run.file(FILE).exists() && run.refuse_links().is_ok());
        let mine = dir.path().join(".bashrc");
        fs::write(&mine, "alias ls=ls\n").unwrap();
        symlink(&mine, run.file(FILE)).unwrap();
        assert!(hold(&run).is_err());
        assert!(matches!(run.refuse_links(), Err(RunDirError::Link(_))));
        assert_eq!(fs::read_to_string(&mine).unwrap(), "alias ls=ls\n");
        release(&run);
        rustix::fs::mknodat(rustix::fs::CWD, run.file(FILE), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(hold(&run).is_err(), "a pipe holds no space");
    }
}
