//! A command that was running before its run began: watched through a pidfd instead of started.

use super::run_loop::{Harness, Report};
use super::terminal::Chunk;
use crate::format::quoted;
use crate::process_tree::Process;
use crate::store::foreign::{ForeignProcess, TmuxPane};
use crate::store::lock::open_log;
use crate::store::worker_log::{BoundedLog, LogFiles};
use crate::untrusted::{file, thread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tokio::sync::mpsc;

/// Most bytes read at once.
const BUFFER: u64 = 1 << 20;

/// A command that the harness did not start.
#[derive(Debug)]
pub struct Foreign {
    /// Whether it may be ended.
    pub may_end: bool,
    /// Nothing shows what it prints.
    pub is_unseen: bool,
    output: Option<Output>,
    /// The pane whose output goes to that file.
    pane: Option<TmuxPane>,
}

/// Where an adopted command's output is read.
#[derive(Debug)]
enum Output {
    /// The user's file.
    Log(File),
    /// session.log, up to this position in the output. Only tmux appends to it, and the harness keeps its bound.
    OfPane { path: PathBuf, log: BoundedLog, read: u64 },
}

impl Output {
    /// Opens the output at its end: what is there belongs to no attempt of this run.
    fn open(adopted: &ForeignProcess) -> Option<Self> {
        let path = adopted.output.clone()?;
        if adopted.pane.is_some() {
            let log = BoundedLog::new(open_log(&path).ok()?);
            return Some(Self::OfPane { read: log.end()?, log, path });
        }
        let mut log = file::open(&path).ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        Some(Self::Log(log))
    }

    /// Reads what was appended since the last call. A log that was truncated is read from its new end.
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self {
            Self::Log(log) => {
                let (end, here) = (log.metadata()?.len(), log.stream_position()?);
                if end < here {
                    log.seek(SeekFrom::Start(end))?;
                }
                log.take(BUFFER).read_to_end(&mut bytes)?;
            }
            Self::OfPane { path, log, read } => {
                let files = LogFiles::open(path)?;
                // Behind by more than both files hold, the output between is gone.
                let from = files.start().max(*read);
                files.read(from, from.saturating_add(BUFFER))?.read_to_end(&mut bytes)?;
                *read = from.saturating_add(bytes.len() as u64);
                log.keep_bound();
            }
        }
        Ok(bytes)
    }
}

impl Drop for Foreign {
    /// Ends the pipe of the pane: a pane has one, and the next watch needs it.
    fn drop(&mut self) {
        if let Some(pane) = &self.pane {
            tmux(pane, &["pipe-pane", "-t", &pane.id]);
        }
    }
}

/// Makes tmux append the output of a pane to a file. Returns false if it cannot, or the pane has a pipe already.
fn begin_pipe(pane: &TmuxPane, output: &Path) -> bool {
    let is_free = tmux(pane, &["display-message", "-p", "-t", &pane.id, "#{pane_pipe}"]).as_deref() == Some("0");
    let command = format!("cat >> {}", quoted(&output.display().to_string()));
    is_free && tmux(pane, &["pipe-pane", "-t", &pane.id, &command]).is_some()
}

/// Returns what the tmux of a pane prints, if it succeeds.
fn tmux(pane: &TmuxPane, words: &[&str]) -> Option<String> {
    let said = Command::new("tmux").args(["-S", &pane.socket]).args(words).stdin(Stdio::null()).output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Watches an adopted process and reports its end, even if it has already exited.
///
/// # Errors
/// Returns the system's error.
pub fn watch(adopted: &ForeignProcess, reports: mpsc::UnboundedSender<Report>) -> io::Result<(Process, Foreign)> {
    let pid = adopted.identity.pid;
    let started = adopted.identity.started;
    // A pipe that somebody else opened meanwhile is left alone.
    let pane =
        adopted.pane.clone().filter(|pane| adopted.output.as_ref().is_some_and(|output| begin_pipe(pane, output)));
    let is_unseen = adopted.output.is_none() || adopted.pane.is_some() && pane.is_none();
    let process = Process { pid, parent: 0, started, cpu_ticks: 0, token: None };
    let handle = process.open();
    thread::start("adopted process", move || {
        if let Some(handle) = handle {
            wait_until_gone(&handle);
        }
        let _ = reports.send(Report::Gone);
    })?;
    Ok((process, Foreign { may_end: adopted.may_end, output: Output::open(adopted), pane, is_unseen }))
}

fn wait_until_gone(handle: &OwnedFd) {
    while poll(&mut [PollFd::new(handle, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

impl Foreign {
    /// Reads what was printed since the last call.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        self.output.as_mut()?.read().ok().filter(|bytes| !bytes.is_empty())
    }
}

impl Harness {
    /// Reads what an adopted command wrote.
    pub(super) fn read_foreign(&mut self) {
        if let Some(bytes) = self.foreign.as_mut().and_then(Foreign::read) {
            self.take_output(&Chunk { bytes, read: Instant::now() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Foreign, Output, watch};
    use crate::harness::run_loop::Report;
    use crate::store::foreign::ForeignProcess;
    use crate::store::identity::Identity;
    use crate::store::lock::open_log;
    use crate::store::worker_log::{BoundedLog, OF_PANE};
    use std::io::Write;
    use std::process::Command;
    use tokio::sync::mpsc;

    #[test]
    fn the_end_of_a_process_is_noticed_and_its_log_is_read_from_now_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "step 1 loss 9\n").unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        let (reports, mut reported) = mpsc::unbounded_channel();
        let adopted = ForeignProcess { identity, output: Some(path.clone()), pane: None, may_end: false };
        let (process, mut foreign) = watch(&adopted, reports).unwrap();
        assert_eq!((process.pid, foreign.read()), (child.id(), None));
        std::fs::File::options().append(true).open(&path).unwrap().write_all(b"step 2 loss 8\n").unwrap();
        assert_eq!(foreign.read().unwrap(), b"step 2 loss 8\n");
        assert!(reported.try_recv().is_err(), "it lives");
        child.kill().unwrap();
        assert!(matches!(reported.blocking_recv(), Some(Report::Gone)));
        child.wait().unwrap();
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(foreign.read(), None, "the file was truncated");
    }

    #[test]
    fn the_output_of_a_pane_is_read_whole_and_its_log_is_bounded() {
        const LIMIT: u64 = 1000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OF_PANE);
        let mut tmux = open_log(&path).unwrap();
        let log = BoundedLog::with_limit(open_log(&path).unwrap(), LIMIT);
        let output = Some(Output::OfPane { path, log, read: 0 });
        let mut foreign = Foreign { may_end: false, is_unseen: false, output, pane: None };
        let (mut printed, mut seen) = (Vec::new(), Vec::new());
        for step in 0..500 {
            let line = format!("step {step} loss 2\n");
            tmux.write_all(line.as_bytes()).unwrap();
            printed.extend(line.into_bytes());
            if step % 7 == 0 {
                seen.extend(foreign.read().unwrap());
            }
        }
        seen.extend(foreign.read().unwrap_or_default());
        assert_eq!(String::from_utf8(seen).unwrap(), String::from_utf8(printed).unwrap());
        let bytes: u64 = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < 3 * LIMIT, "{bytes} bytes of {}", 500 * 16);
    }
}
