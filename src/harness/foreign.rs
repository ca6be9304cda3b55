//! A command that was running before its run began: watched through a pidfd instead of started.

use super::run_loop::{Harness, Report};
use crate::format::quoted;
use crate::process_tree::Process;
use crate::store::foreign::{ForeignProcess, TmuxPane};
use crate::untrusted::file;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::sync::mpsc;

/// Most bytes read at once.
const BUFFER: u64 = 1 << 20;

/// A command that the harness did not start.
#[derive(Debug)]
pub struct Foreign {
    /// Whether it may be ended.
    pub may_end: bool,
    output: Option<File>,
    pane: Option<TmuxPane>,
}

impl Drop for Foreign {
    /// Ends the pipe of the pane: a pane has one, and the next watch needs it.
    fn drop(&mut self) {
        if let Some(pane) = &self.pane {
            pane.pipe(None);
        }
    }
}

impl TmuxPane {
    /// Makes tmux append the output of the pane to a file, or no longer.
    fn pipe(&self, output: Option<&Path>) {
        let mut tmux = Command::new("tmux");
        if let Some(socket) = &self.socket {
            tmux.args(["-S", socket]);
        }
        tmux.args(["pipe-pane", "-t", &self.id]);
        if let Some(output) = output {
            tmux.arg(format!("cat >> {}", quoted(&output.display().to_string())));
        }
        let _ = tmux.stdin(Stdio::null()).output();
    }
}

/// Watches an adopted process and reports its end, even if it has already exited.
pub fn watch(adopted: &ForeignProcess, reports: mpsc::UnboundedSender<Report>) -> (Process, Foreign) {
    let pid = adopted.identity.pid;
    let started = adopted.identity.started;
    if let (Some(pane), Some(output)) = (&adopted.pane, &adopted.output) {
        pane.pipe(Some(output));
    }
    let process = Process { pid, parent: 0, started, cpu_ticks: 0, token: None };
    let handle = process.open();
    std::thread::spawn(move || {
        if let Some(handle) = handle {
            wait_until_gone(&handle);
        }
        let _ = reports.send(Report::Gone);
    });
    // Earlier output belongs to no attempt of this run.
    let output = adopted.output.as_ref().and_then(|path| file::open(path).ok());
    let output = output.and_then(|mut output| output.seek(SeekFrom::End(0)).ok().map(|_| output));
    (process, Foreign { may_end: adopted.may_end, output, pane: adopted.pane.clone() })
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
            self.take_output(&bytes);
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
        let (process, mut foreign) = watch(&adopted, reports);
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
