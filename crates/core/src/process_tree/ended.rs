//! How a process ended that is another one's child: its status is readable until its parent has asked for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How a process ended; neither is known if its parent was faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndedBy {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Waits until a process has ended. Returns none if it is still alive after the limit.
#[must_use]
pub fn wait_for_end(pid: u32, limit: Duration) -> Option<EndedBy> {
    if let Some(handle) = Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        wait_readable(&handle, Instant::now() + limit);
    }
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_status(&stat),
        Err(_) => Some(EndedBy::default()),
    }
}

/// Waits until a handle is readable or a moment has come. A signal does not end the wait.
fn wait_readable(handle: &impl AsFd, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        if poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&left)) != Err(Errno::INTR) {
            return;
        }
    }
}

/// Returns the status of a zombie from /proc/PID/stat; none if the process is alive.
fn parse_status(stat: &str) -> Option<EndedBy> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let status: i32 = fields.get(49)?.parse().ok()?;
    let (code, signal) = (status >> 8, status & 0x7f);
    match *fields.first()? {
        "Z" | "X" if signal > 0 => Some(EndedBy { code: None, signal: Some(signal) }),
        "Z" | "X" => Some(EndedBy { code: Some(code), signal: None }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{EndedBy, parse_status, wait_for_end};
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn the_end_of_a_child_is_read_before_its_parent_asks_for_it() {
        let run = |text: &str| Command::new("sh").args(["-c", text]).spawn().unwrap();
        for (text, ended) in [
            ("exit 7", EndedBy { code: Some(7), signal: None }),
            ("exit 0", EndedBy { code: Some(0), signal: None }),
            ("kill -9 $$", EndedBy { code: None, signal: Some(9) }),
        ] {
            let mut child = run(text);
            assert_eq!(wait_for_end(child.id(), Duration::from_mins(1)), Some(ended), "{text}");
            child.wait().unwrap();
            assert_eq!(wait_for_end(child.id(), Duration::from_mins(1)), Some(EndedBy::default()), "{text}: gone");
        }
        let mut child = run("exec sleep 600");
        assert_eq!(wait_for_end(child.id(), Duration::ZERO), None, "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        let living = fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!((parse_status(&living), parse_status("garbage")), (None, None));
    }
}
