//! Waits for programs that others wrote, such as `notify-send`, no longer than a limit.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Waits until the child has exited. Kills it after `limit`, and returns none.
///
/// # Errors
/// Returns the system's error when the child cannot be waited for; it is killed then, too.
pub fn wait_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let exited = exits_within(child, limit);
    if let Ok(true) = exited {
        return child.wait().map(Some);
    }
    let _ = child.kill();
    child.wait()?;
    exited.map(|_| None)
}

fn exits_within(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    // Some containers forbid pidfds.
    let Ok(handle) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return poll_exit(child, deadline);
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Checks at short intervals whether the child has exited.
fn poll_exit(child: &mut Child, deadline: Instant) -> io::Result<bool> {
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{poll_exit, wait_within};
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn an_exit_ends_the_wait_and_the_limit_ends_the_program() {
        let minute = Duration::from_mins(1);
        let mut fine = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert_eq!(wait_within(&mut fine, minute).unwrap().unwrap().code(), Some(3));
        let begun = Instant::now();
        let mut slow = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(wait_within(&mut slow, Duration::from_millis(20)).unwrap(), None);
        assert!(begun.elapsed() < minute && !slow.wait().unwrap().success(), "killed and reaped");

        let mut fine = Command::new("true").spawn().unwrap();
        assert!(poll_exit(&mut fine, begun + minute).unwrap());
        let mut slow = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!poll_exit(&mut slow, Instant::now()).unwrap());
        slow.kill().unwrap();
        slow.wait().unwrap();
    }
}
