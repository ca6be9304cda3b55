//! A command that was running before its run began: watched through a pidfd instead of started.

use super::run_loop::{Harness, Report};
use super::terminal::Chunk;
use crate::format::quoted;
use crate::process_tree::Process;
use crate::store::foreign::{ForeignProcess, TmuxPane};
use crate::untrusted::{file, thread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
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
    output: Option<File>,
    /// The pane whose output goes to that file.
    pane: Option<TmuxPane>,
}

impl Drop for Foreign {
    /// Ends the pipe of the pane: a pane has one, and the next watch needs it.
    fn drop(&mut self) {
        if let Some(pane) = &self.pane {
            pane.tmux(&["pipe-pane", "-t", &pane.id]);
        }
    }
}

impl TmuxPane {
    /// Makes tmux append the output of the pane to a file. Returns false if it cannot, or the pane has a pipe already.
    fn begin_pipe(&self, output: &Path) -> bool {
        let is_free = self.tmux(&["display-message", "-p", "-t", &self.id, "#{pane_pipe}"]).as_deref() == Some("0");
        let command = format!("cat >> {}", quoted(&output.display().to_string()));
        is_free && self.tmux(&["pipe-pane", "-t", &self.id, &command]).is_some()
    }

    /// Returns what tmux prints, if it succeeds.
    fn tmux(&self, words: &[&str]) -> Option<String> {
        let said = Command::new("tmux").args(["-S", &self.socket]).args(words).stdin(Stdio::null()).output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
    }
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
        adopted.pane.clone().filter(|pane| adopted.output.as_ref().is_some_and(|output| pane.begin_pipe(output)));
    let is_unseen = adopted.output.is_none() || adopted.pane.is_some() && pane.is_none();
    let process = Process { pid, parent: 0, started, cpu_ticks: 0, token: None };
    let handle = process.open();
    thread::start("adopted process", move || {
        if let Some(handle) = handle {
            wait_until_gone(&handle);
        }
        let _ = reports.send(Report::Gone);
    })?;
    // Earlier output belongs to no attempt of this run.
    let output = adopted.output.as_ref().and_then(|path| file::open(path).ok());
    let output = output.and_then(|mut output| output.seek(SeekFrom::End(0)).ok().map(|_| output));
    Ok((process, Foreign { may_end: adopted.may_end, output, pane, is_unseen }))
}

fn wait_until_gone(handle: &OwnedFd) {
    while poll(&mut [PollFd::new(handle, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

impl Foreign {
    /// Reads what was appended since the last call. A truncated file is read from its new end.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let output = self.output.as_mut()?;
        let (end, here) = (output.metadata().ok()?.len(), output.stream_position().ok()?);
        if end < here {
            output.seek(SeekFrom::Start(end)).ok()?;
        }
        let mut bytes = Vec::new();
        output.take(BUFFER).read_to_end(&mut bytes).ok()?;
        Some(bytes).filter(|bytes| !bytes.is_empty())
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
    use super::watch;
    use crate::harness::run_loop::Report;
    use crate::store::foreign::ForeignProcess;
    use crate::store::identity::Identity;
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
}
