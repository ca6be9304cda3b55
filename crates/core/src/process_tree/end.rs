//! Ends all processes of an attempt: SIGTERM to the command itself, then to the rest, then SIGKILL until /proc
//! shows none of them.

use super::{Process, descendants, members, scan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time between two scans of /proc. Only a scan finds processes that appeared since the last one.
const LOOK: Duration = Duration::from_millis(100);

/// How long processes get to exit on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// Time between SIGTERM to the command and to its other processes: a worker that ends first looks like a failure to
    /// it.
    pub command: Duration,
    /// Time between SIGTERM to all and SIGKILL.
    pub others: Duration,
    /// Time after the first SIGKILL before a process counts as unkillable.
    pub kill: Duration,
}

/// Which processes are ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Family {
    /// Those of an attempt.
    Attempt {
        /// Its token.
        token: String,
        /// The process to which its orphans come.
        root: u32,
    },
    /// A process that was adopted, and everything below it.
    Adopted(u32),
}

impl Family {
    /// Returns the members among all processes.
    #[must_use]
    pub fn among<'a>(&self, all: &'a [Process]) -> Vec<&'a Process> {
        match self {
            Self::Attempt { token, root } => members(all, token, *root),
            Self::Adopted(pid) => descendants(all, *pid),
        }
    }
}

/// Ends all processes of a family. `command` is the process that was started first, if it may still be alive; a
/// readable `hurry` skips the grace periods. Returns the processes that cannot be killed.
#[must_use]
pub fn end_all(
    family: &Family,
    command: Option<&Process>,
    grace: Grace,
    hurry: Option<BorrowedFd<'_>>,
) -> Vec<Process> {
    let mut told = HashSet::new();
    if let Some(command) = command {
        command.signal(Signal::TERM);
        told.insert((command.pid, command.started));
        wait_until_gone(family, grace.command, hurry, |_| {}, |alive| is_among(command, alive));
    }
    let terminate = |process: &Process| {
        if told.insert((process.pid, process.started)) {
            process.signal(Signal::TERM);
        }
    };
    wait_until_gone(family, grace.others, hurry, terminate, |alive| !alive.is_empty());
    kill_all(family, grace.kill)
}

/// Kills all processes of a family, without a signal that they could handle. Returns those left after the limit.
#[must_use]
pub fn kill_all(family: &Family, limit: Duration) -> Vec<Process> {
    let kill = |process: &Process| {
        process.signal(Signal::KILL);
    };
    wait_until_gone(family, limit, None, kill, |alive| !alive.is_empty())
}

fn is_among(process: &Process, alive: &[&Process]) -> bool {
    alive.iter().any(|other| (other.pid, other.started) == (process.pid, process.started))
}

/// Acts on each process of the attempt, repeatedly, while `goes_on` holds and there is time. Returns those left.
fn wait_until_gone(
    family: &Family,
    limit: Duration,
    hurry: Option<BorrowedFd<'_>>,
    mut act: impl FnMut(&Process),
    goes_on: impl Fn(&[&Process]) -> bool,
) -> Vec<Process> {
    let deadline = Instant::now() + limit;
    loop {
        let all = scan();
        let alive = family.among(&all);
        for process in &alive {
            act(process);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !goes_on(&alive) || left.is_zero() || wait_for_an_exit(&alive, hurry, left.min(LOOK)) {
            return alive.into_iter().cloned().collect();
        }
    }
}

/// Waits until one of the processes exits, or time is up. Returns true if it is told to hurry.
fn wait_for_an_exit(alive: &[&Process], hurry: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
    let handles: Vec<OwnedFd> = alive.iter().filter_map(|process| process.open()).collect();
    let mut awaited: Vec<PollFd<'_>> = hurry.iter().map(|hurry| PollFd::new(hurry, PollFlags::IN)).collect();
    awaited.extend(handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)));
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let _ = poll(&mut awaited, Some(&limit));
    hurry.is_some() && awaited.first().is_some_and(|first| !first.revents().is_empty())
}
