//! A program in its own pseudo-terminal, observed as a real terminal would: its output is counted, timed
//! and rendered to a screen that can be inspected.

use super::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Terminal queries, and the answers of this terminal.
const ANSWERS: [(&[u8], &[u8]); 5] = [
    (b"\x1b]11;?", b"\x1b]11;rgb:1111/1111/1111\x1b\\"),
    (b"\x1b]10;?", b"\x1b]10;rgb:eeee/eeee/eeee\x1b\\"),
    (b"\x1b[6n", b"\x1b[1;1R"),
    (b"\x1b[c", b"\x1b[?62;22c"),
    (b"\x1b[?u", b"\x1b[?0u"),
];

/// The program; killed when dropped.
pub struct Pty {
    child: Child,
    master: OwnedFd,
    screen: vt100::Parser,
    /// Bytes written by the program.
    pub bytes: u64,
    /// Start time of the program.
    pub begun: Instant,
    /// Time of its last output.
    pub wrote: Instant,
}

impl Pty {
    /// Starts a program in a terminal of this size.
    pub fn start(words: &[&str], folder: &Path, (columns, rows): (u16, u16)) -> Outcome<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let name = ptsname(&master, Vec::new())?.into_string()?;
        let side = fs::OpenOptions::new().read(true).write(true).open(name)?;
        let begun = Instant::now();
        // A new session with this terminal; setsid becomes the program.
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(words)
            .current_dir(folder)
            .env("TERM", "xterm-256color")
            .env("COLORTERM", "truecolor")
            // Keep the layout and keys of the user who runs the benchmark out of it.
            .env("XDG_CONFIG_HOME", folder.join("no-config"))
            .env("XDG_STATE_HOME", folder.join("no-state"))
            .env_remove("TMUX")
            .stdin(side.try_clone()?)
            .stdout(side.try_clone()?)
            .stderr(side)
            .spawn()?;
        let screen = vt100::Parser::new(rows, columns, 0);
        Ok(Self { child, master, screen, bytes: 0, begun, wrote: begun })
    }

    /// Reads output up to `limit`, or until the screen is as wanted; returns whether it is.
    pub fn watch(&mut self, limit: Duration, mut wanted: impl FnMut(&vt100::Screen) -> bool) -> Outcome<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if self.read(left)? && wanted(self.screen.screen()) {
                return Ok(true);
            }
        }
    }

    /// Waits until there was no output for `quiet`; returns the time of the last output.
    pub fn settle(&mut self, quiet: Duration, limit: Duration) -> Outcome<Instant> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline && self.wrote.elapsed() < quiet {
            self.read(Duration::from_millis(20))?;
        }
        Ok(self.wrote)
    }

    /// Types keys.
    pub fn send(&mut self, keys: &[u8]) -> Outcome<()> {
        rustix::io::write(&self.master, keys)?;
        Ok(())
    }

    /// Returns the text on the screen.
    pub fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Returns the process ID of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn read(&mut self, limit: Duration) -> Outcome<bool> {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        let mut ready = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut ready, Some(&limit))? == 0 {
            return Ok(false);
        }
        let mut buffer = [0; 16384];
        let length = rustix::io::read(&self.master, &mut buffer).map_err(|_| "the program ended")?;
        let read = buffer.get(..length).unwrap_or_default();
        self.wrote = Instant::now();
        self.bytes += length as u64;
        self.screen.process(read);
        for (question, answer) in ANSWERS {
            if read.windows(question.len()).any(|part| part == question) {
                rustix::io::write(&self.master, answer)?;
            }
        }
        Ok(true)
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the core seconds used by a process and its children.
pub fn cpu_s(pid: u32) -> f64 {
    let mut sum = 0.0;
    for pid in tree(pid) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let used = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum += used.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
        }
    }
    sum
}

/// Returns the MiB of resident memory of a process and its children, now and at peak.
pub fn memory_mib(pid: u32) -> (f64, f64) {
    let of = |pid: &u32, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    };
    let pids = tree(pid);
    (pids.iter().map(|pid| of(pid, "VmRSS:")).sum(), pids.iter().map(|pid| of(pid, "VmHWM:")).sum())
}

fn tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
        found.extend(tree(child));
    }
    found
}
