//! The second holder of the command's output: a process that waits for the harness to die, and then reads in its
//! place, so that the command neither blocks nor fails at a write before the keeper ends it.
//!
//! Its stdin is a pipe that the harness keeps open, its stdout worker.log, its stderr the reading end of the output.

use crate::store::worker_log::BoundedLog;
use rustix::io::{Errno, fcntl_dupfd_cloexec, read};
use rustix::stdio::{stderr, stdin, stdout};
use std::fs::File;
use std::io::{self, PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts the holder. It begins to read when the returned value is dropped, or when this process dies.
///
/// # Errors
/// Returns the system's error.
pub fn start(output: &OwnedFd, log: File) -> io::Result<Holder> {
    let (waits, alive) = pipe()?;
    Command::new("/proc/self/exe")
        .arg0("downshift-holder")
        .arg("hold-output")
        .stdin(waits)
        .stdout(log)
        .stderr(Stdio::from(output.try_clone()?))
        .process_group(0)
        .spawn()?;
    Ok(Holder { _alive: alive })
}

/// A holder that waits while the harness lives.
#[derive(Debug)]
pub struct Holder {
    _alive: PipeWriter,
}

/// Runs the holder: waits for the end of stdin, then copies the output to the log until no process writes to it.
pub fn hold_output() {
    let mut buffer = vec![0; 1 << 16];
    // The harness writes nothing: its end of the pipe is open, or it is gone.
    while matches!(read(stdin(), &mut buffer[..]), Ok(1..) | Err(Errno::INTR)) {}
    let Ok(log) = fcntl_dupfd_cloexec(stdout(), 3) else { return };
    let mut log = BoundedLog::new(File::from(log));
    loop {
        match read(stderr(), &mut buffer[..]) {
            Ok(0) => return,
            Ok(count) => log.write(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
