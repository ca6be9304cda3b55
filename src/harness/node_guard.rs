//! Nothing of a command outlives its helper on a node, and no two attempts train there at once: a guard ends what a killed
//! helper leaves, and a claim lets the next helper end what a guard could not.

use super::signals::Signals;
use crate::process_tree::{Family, kill_all};
use crate::protocol::node::{NodeClaim, Refused};
use rustix::io::{Errno, read};
use rustix::process::setsid;
use rustix::stdio::stdin;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Read, Seek, SeekFrom, Write, pipe};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for processes to end after SIGKILL.
const KILL: Duration = Duration::from_secs(30);
/// Longest time for an earlier helper to end. It waits as long for processes that do not die as this one.
const HANDOVER: Duration = KILL.saturating_add(Duration::from_secs(15));
/// Interval between two attempts to take the claim.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest token.
const LONGEST: u64 = 256;

/// A process of its own session that waits while the helper lives.
#[derive(Debug)]
pub struct Guard {
    _alive: PipeWriter,
}

impl Guard {
    /// Starts the guard of the processes with a token.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start(token: &str) -> io::Result<Self> {
        let (waits, alive) = pipe()?;
        Command::new("/proc/self/exe")
            .arg0("downshift-guard")
            .args(["guard-command", token])
            .stdin(waits)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { _alive: alive })
    }
}

/// Runs the guard: waits for the end of stdin, then kills the processes with the token. A signal does not end it: Slurm
/// sends SIGTERM to all processes of a job, and the guard has to outlive the helper.
pub fn guard_command(token: &str) {
    let _ = setsid();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _listening = runtime.as_ref().map(|runtime| {
        let _entered = runtime.enter();
        Signals::listen()
    });
    let mut nothing = [0; 16];
    while matches!(read(stdin(), &mut nothing[..]), Ok(1..) | Err(Errno::INTR)) {}
    let _ = kill_all(&family(token), KILL);
}

fn family(token: &str) -> Family {
    Family::Attempt { token: token.to_owned(), root: 0 }
}

/// The claim of a helper on a run on its node.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

/// The content of a claim: the newest attempt that took it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Claimed {
    attempt: u64,
    token: String,
}

impl Claim {
    /// Takes the claim, and ends the processes of an earlier attempt.
    ///
    /// # Errors
    /// Returns an error when an earlier helper or process does not end, or a later attempt holds the claim.
    pub fn take(path: &Path, claim: &NodeClaim) -> Result<Self, Refused> {
        let io = |error: io::Error| Refused::Io { what: "the claim".to_owned(), message: error.to_string() };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(io)?;
        let until = Instant::now() + HANDOVER;
        loop {
            let earlier = Claimed::read(&mut file).map_err(io)?;
            let is_locked = file.try_lock().is_ok();
            if !is_locked && earlier.attempt > claim.attempt {
                return Err(Refused::LaterAttempt(earlier.attempt));
            }
            if !earlier.token.is_empty() && !kill_all(&family(&earlier.token), KILL).is_empty() {
                return Err(Refused::EarlierAttempt);
            }
            if is_locked && Claimed::read(&mut file).map_err(io)? == earlier {
                break;
            }
            // Another helper may take it only after this look.
            if is_locked {
                continue;
            }
            if Instant::now() >= until {
                return Err(Refused::EarlierAttempt);
            }
            std::thread::sleep(INTERVAL);
        }
        let own = Claimed { attempt: claim.attempt, token: claim.token.clone() };
        own.write(&mut file).map_err(io)?;
        Ok(Self { _file: file })
    }
}

impl Claimed {
    fn read(file: &mut File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        let Some((attempt, token)) = text.split_once(' ') else { return Ok(Self::default()) };
        Ok(Self { attempt: attempt.parse().unwrap_or(0), token: token.to_owned() })
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(format!("{} {}", self.attempt, self.token).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, HANDOVER, KILL};
    use crate::process_tree::{TOKEN_VARIABLE, new_token};
    use crate::protocol::node::{NodeClaim, Refused};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn claim(attempt: u64) -> NodeClaim {
        NodeClaim { build: "1".to_owned(), node: 1, attempt, run_dir: "/runs/x".into(), token: new_token() }
    }

    #[test]
    fn a_claim_ends_what_an_earlier_attempt_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claim");
        let (first, second) = (claim(1), claim(2));
        drop(Claim::take(&path, &first).unwrap());
        let mut left = Command::new("sleep").arg("600").env(TOKEN_VARIABLE, &first.token).spawn().unwrap();
        let held = Claim::take(&path, &second).unwrap();
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("2 {}", second.token));
        drop(held);
    }

    #[test]
    fn a_late_helper_of_an_earlier_attempt_leaves_a_later_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claim");
        let (late, living) = (claim(1), claim(2));
        let held = Claim::take(&path, &living).unwrap();
        let mut trains = Command::new("sleep").arg("600").env(TOKEN_VARIABLE, &living.token).spawn().unwrap();
        assert_eq!(Claim::take(&path, &late).unwrap_err(), Refused::LaterAttempt(2));
        assert_eq!(trains.try_wait().unwrap(), None, "it trains on");
        trains.kill().unwrap();
        trains.wait().unwrap();
        drop(held);
        // The folder of a run may be deleted, and its name used again.
        drop(Claim::take(&path, &late).unwrap());
        assert!(HANDOVER > KILL, "an earlier helper may wait that long for its own processes");
    }
}
