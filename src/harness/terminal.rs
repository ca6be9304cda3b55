//! The command's output: a pseudo-terminal, since many programs show progress only there, or a pipe.
//!
//! ```text
//!  command ── writes ──▶ terminal ──▶ harness (reads)
//!                                 └─▶ holder (has it open; reads once the harness is gone)
//! ```
//! When the last reader of a terminal or a pipe goes away, the command's next write fails; while no one reads, a full
//! buffer blocks it. So a second process holds the reading end, whatever kills the harness or the keeper. See
//! [`super::holder`].

use crate::untrusted::thread;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tokio::sync::mpsc;

/// Most bytes read at once.
const BUFFER: usize = 1 << 16;
/// Chunks queued for the harness; beyond that the terminal fills, and the command waits.
const QUEUE: usize = 16;

/// Size of the terminal. Wide, because progress bars cut what does not fit in a line.
const SIZE: Winsize = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };

/// Both ends of the command's output.
#[derive(Debug)]
pub struct Terminal {
    /// The end that is read.
    pub output: OwnedFd,
    /// The end that the command writes to.
    pub command: OwnedFd,
}

impl Terminal {
    /// Opens a pseudo-terminal that passes bytes on unchanged.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open_pty() -> io::Result<Self> {
        let output = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&output)?;
        unlockpt(&output)?;
        let name = ptsname(&output, Vec::new())?;
        let command = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        let mut modes = tcgetattr(&command)?;
        modes.make_raw();
        tcsetattr(&command, OptionalActions::Now, &modes)?;
        tcsetwinsize(&command, SIZE)?;
        Ok(Self { output, command })
    }

    /// Opens a pipe.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open_pipe() -> io::Result<Self> {
        let (output, command) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { output, command })
    }
}

/// Bytes that the command wrote.
#[derive(Debug)]
pub struct Chunk {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// When they were read: the harness may take them later.
    pub read: Instant,
}

/// Reads what the command writes, on a thread of its own. The channel closes once no process has the other end open.
///
/// # Errors
/// Returns the system's error.
pub fn read_output(output: OwnedFd) -> io::Result<mpsc::Receiver<Chunk>> {
    let (sends, chunks) = mpsc::channel(QUEUE);
    thread::start("output", move || {
        let mut buffer = vec![0; BUFFER];
        loop {
            match rustix::io::read(&output, &mut buffer[..]) {
                Err(Errno::INTR) => {}
                // A terminal without a writer fails, a pipe without one ends.
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let chunk = Chunk { bytes: buffer[..count].to_owned(), read: Instant::now() };
                    if sends.blocking_send(chunk).is_err() {
                        return;
                    }
                }
            }
        }
    })?;
    Ok(chunks)
}

/// Waits for output. Returns none when there will be no more.
pub async fn next_chunk(output: &mut Option<mpsc::Receiver<Chunk>>) -> Option<Chunk> {
    match output {
        Some(chunks) => chunks.recv().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::{Terminal, read_output};
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn bytes_pass_unchanged_and_the_end_is_noticed() {
        for (terminal, what) in [(Terminal::open_pty(), "terminal"), (Terminal::open_pipe(), "pipe")] {
            let Terminal { output, command } = terminal.unwrap();
            let mut chunks = read_output(output).unwrap();
            let mut command = File::from(command);
            command.write_all(b"a\r 50%\n\x1b[K\xff").unwrap();
            assert_eq!(chunks.blocking_recv().unwrap().bytes, b"a\r 50%\n\x1b[K\xff", "{what}");
            drop(command);
            assert!(chunks.blocking_recv().is_none(), "{what}");
        }
    }
}
