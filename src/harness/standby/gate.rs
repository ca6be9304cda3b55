//! The gate of a standby: a named pipe in the attempt's folder. The process that waits has it open for reading; a writer
//! that opens and closes it lets that process pass.

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, lstat, mknodat, open};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A gate, removed when it is dropped. The keeper may have replaced it by then, for another standby of the same attempt:
/// that one stays.
#[derive(Debug)]
pub(super) struct Gate {
    path: PathBuf,
    /// Neither end of the pipe, but the file itself: no other file gets its inode number meanwhile.
    file: OwnedFd,
}

impl Gate {
    /// Creates a gate in place of an earlier one.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let _ = fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let file = open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the process pass, as soon as it has come to the gate.
    pub(super) fn open(self) {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let _ = File::options().write(true).open(own);
    }

    fn is_in_place(&self) -> bool {
        let (Ok(own), Ok(here)) = (fstat(&self.file), lstat(&self.path)) else { return false };
        (own.st_dev, own.st_ino) == (here.st_dev, here.st_ino)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_gate_removes_itself_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gate");
        let first = Gate::create(path.clone()).unwrap();
        let second = Gate::create(path.clone()).unwrap();
        drop(first);
        assert!(path.exists(), "the gate of the next standby");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_gate_lets_its_own_process_pass() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gate");
        let first = Gate::create(path.clone()).unwrap();
        let waiting = path.clone();
        let (opened, told) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            opened.send(()).unwrap();
            File::open(waiting).unwrap().read(&mut [0]).unwrap()
        });
        told.recv().unwrap();
        first.open();
        assert_eq!((reader.join().unwrap(), path.exists()), (0, false));
    }
}
