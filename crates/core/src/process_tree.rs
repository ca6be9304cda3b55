//! The processes of one attempt of a command, found in /proc and ended together.
//!
//! ```text
//! harness (token of the keeper)
//!  ├── python train.py            DOWNSHIFT_TOKEN=<attempt>     belongs to it: has the token
//!  │    └── env -i helper         no token                      belongs to it: descends from one that does
//!  └── keeper of a nested run     DOWNSHIFT_TOKEN=<its own>     belongs to another run, with its whole subtree
//! ```
//! A process can leave its group, its session and its parent, but not its environment at the start, and an orphan is
//! handed to the nearest subreaper: the harness, or the keeper's parent. So the token and the chain of parents together
//! find them all, and a reused id is never mistaken for one of them.

pub mod background;
mod end;
mod ended;

pub use end::{Family, Grace, end_all, kill_all};
pub use ended::{EndedBy, wait_for_end};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

/// The environment variable that marks the processes of an attempt. Keepers have a token of their own.
pub const TOKEN_VARIABLE: &str = "DOWNSHIFT_TOKEN";

/// A live process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The id of its parent.
    pub parent: u32,
    /// Its start time, in clock ticks since the boot. With the id it identifies the process.
    pub started: u64,
    /// Processor time used so far, in clock ticks.
    pub cpu_ticks: u64,
    /// Its token, if it has one and its environment can be read.
    pub token: Option<String>,
}

/// Creates a token that no other attempt has.
#[must_use]
pub fn new_token() -> String {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let text = format!("{random} {} {} {}", std::process::id(), now.tv_sec, now.tv_nsec);
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// Returns all live processes; zombies hold nothing and count as gone.
#[must_use]
pub fn scan() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns a process and everything that descends from it.
#[must_use]
pub fn descendants(all: &[Process], root: u32) -> Vec<&Process> {
    let by_pid: HashMap<u32, &Process> = all.iter().map(|process| (process.pid, process)).collect();
    let descends = |process: &&Process| {
        let mut here = *process;
        for _ in 0..by_pid.len() {
            if here.pid == root {
                return true;
            }
            let Some(parent) = by_pid.get(&here.parent) else { return false };
            here = parent;
        }
        false
    };
    all.iter().filter(descends).collect()
}

/// Returns the processes that belong to the attempt with this token: those that have it, and those without any token
/// that descend from one of them or from `root`. A root without a token is not one of our processes, so its descendants
/// are left alone.
#[must_use]
pub fn members<'a>(all: &'a [Process], token: &str, root: u32) -> Vec<&'a Process> {
    let by_pid: HashMap<u32, &Process> = all.iter().map(|process| (process.pid, process)).collect();
    let root = by_pid.get(&root).filter(|root| root.token.is_some()).map_or(0, |root| root.pid);
    all.iter().filter(|process| belongs(process, &by_pid, token, root)).collect()
}

fn belongs(process: &Process, by_pid: &HashMap<u32, &Process>, token: &str, root: u32) -> bool {
    let mut here = process;
    // A scan is not a snapshot, so the chain of parents could form a cycle.
    for _ in 0..by_pid.len() {
        match &here.token {
            _ if here.pid == root => return process.pid != root,
            Some(found) => return found == token,
            None => {}
        }
        let Some(parent) = by_pid.get(&here.parent) else { return false };
        here = parent;
    }
    false
}

impl Process {
    /// Reads the process with this id, unless it is missing or a zombie.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (parent, started, cpu_ticks) = parse_stat(&stat)?;
        let token = fs::read(format!("/proc/{pid}/environ")).ok().and_then(|environment| token_in(&environment));
        Some(Self { pid, parent, started, cpu_ticks, token })
    }

    /// Opens the process, unless it has exited and its id was reused.
    #[must_use]
    pub fn open(&self) -> Option<OwnedFd> {
        let handle = pidfd_open(Pid::from_raw(self.pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        (parse_stat(&stat)?.1 == self.started).then_some(handle)
    }

    /// Sends a signal to this process and no other. Returns false if it cannot be sent.
    pub fn signal(&self, signal: Signal) -> bool {
        match self.open().map(|handle| pidfd_send_signal(handle, signal)) {
            Some(Ok(())) => true,
            Some(Err(error)) => error == Errno::SRCH,
            None => false,
        }
    }
}

/// Returns parent, start time and processor time from /proc/PID/stat; none for a zombie.
fn parse_stat(stat: &str) -> Option<(u32, u64, u64)> {
    // The name in parentheses may contain anything, also parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // A process whose first thread has ended lives on in the others.
    if matches!(*fields.first()?, "Z" | "X") && number(17).is_none_or(|threads| threads <= 1) {
        return None;
    }
    Some((u32::try_from(number(1)?).ok()?, number(19)?, number(11)? + number(12)?))
}

/// Returns the token in an environment.
fn token_in(environment: &[u8]) -> Option<String> {
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(TOKEN_VARIABLE.as_bytes())?;
        value.strip_prefix(b"=")
    })?;
    String::from_utf8(value.to_owned()).ok().filter(|token| !token.is_empty())
}

/// Returns clock ticks of /proc in seconds.
#[must_use]
pub fn ticks_in_seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::{Process, descendants, members, new_token, parse_stat, scan, token_in};

    fn process(pid: u32, parent: u32, token: Option<&str>) -> Process {
        Process { pid, parent, started: 1, cpu_ticks: 0, token: token.map(str::to_owned) }
    }

    #[test]
    fn token_and_descent_find_every_process_of_the_attempt_and_none_of_another_run() {
        let all = [
            process(1, 0, None),
            process(10, 1, Some("keeper")),
            process(20, 10, Some("keeper")),
            process(30, 20, Some("mine")),
            process(31, 30, None),
            process(32, 31, None),
            process(33, 20, None),
            process(34, 1, Some("mine")),
            process(40, 30, Some("other")),
            process(41, 40, None),
            process(42, 40, Some("mine")),
            process(50, 10, None),
        ];
        let found = |token: &str, root| -> Vec<u32> {
            members(&all, token, root).into_iter().map(|process| process.pid).collect()
        };
        assert_eq!(found("mine", 20), [30, 31, 32, 33, 34, 42], "the harness ends what it started");
        assert_eq!(found("mine", 10), [30, 31, 32, 34, 42, 50], "without the harness, orphans come to process 10");
        assert_eq!(descendants(&all, 40).into_iter().map(|process| process.pid).collect::<Vec<_>>(), [40, 41, 42]);
        assert_eq!(found("unknown", 99), [0; 0]);
        assert_eq!(found("unknown", 1), [0; 0], "init has no token: nothing that descends from it is ours");
    }

    #[test]
    fn a_line_of_parents_that_runs_in_a_ring_ends() {
        let all = [process(5, 6, None), process(6, 5, None)];
        assert!(members(&all, "mine", 1).is_empty());
    }

    #[test]
    fn a_name_with_parentheses_hides_no_field() {
        let line = "12 (a ) R 3) S 7 1 1 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 98765 0 0";
        assert_eq!(parse_stat(line), Some((7, 98765, 300)));
        assert_eq!(parse_stat("12 (a) Z 7 1"), None);
        assert_eq!(parse_stat(&line.replace(" S ", " Z ")), None);
        let threads = line.replace(" S ", " Z ").replace(" 20 0 1 0 ", " 20 0 2 0 ");
        assert!(parse_stat(&threads).is_some(), "its first thread has ended, the others have not");
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn tokens_are_unique_and_found_anywhere_in_an_environment() {
        assert_ne!(new_token(), new_token());
        assert_eq!(token_in(b"A=1\0DOWNSHIFT_TOKEN=abc\0B=2\0").as_deref(), Some("abc"));
        assert_eq!(token_in(b"A=DOWNSHIFT_TOKEN=abc\0DOWNSHIFT_TOKENS=x\0DOWNSHIFT_TOKEN=\0"), None);
        assert!(scan().iter().any(|process| process.pid == std::process::id()));
    }
}
