//! Nothing of a command outlives its helper on a node, and no two attempts train there at once: a guard ends what a killed
//! helper leaves, and a claim lets the next helper end what a guard could not.

use crate::process_tree::{Family, kill_all};
use rustix::io::{Errno, read};
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
/// Longest time for an earlier helper to notice that its command is gone.
const HANDOVER: Duration = Duration::from_secs(20);
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
            .process_group(0)
            .spawn()?;
        Ok(Self { _alive: alive })
    }
}

/// Runs the guard: waits for the end of stdin, then kills the processes with the token.
pub fn guard_command(token: &str) {
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

impl Claim {
    /// Takes the claim, and ends the processes of an earlier attempt.
    ///
    /// # Errors
    /// Returns an error when an earlier helper or process does not end.
    pub fn take(path: &Path, token: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let until = Instant::now() + HANDOVER;
        loop {
            let earlier = read_token(&mut file)?;
            let left = if earlier.is_empty() { Vec::new() } else { kill_all(&family(&earlier), KILL) };
            if let Some(process) = left.first() {
                return Err(io::Error::other(format!("process {} of the last attempt cannot be killed", process.pid)));
            }
            match file.try_lock() {
                Ok(()) if read_token(&mut file)? == earlier => break,
                // The earlier helper wrote its token after the first look.
                Ok(()) => {}
                Err(error) if Instant::now() >= until => return Err(error.into()),
                Err(_) => std::thread::sleep(INTERVAL),
            }
        }
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(token.as_bytes())?;
        Ok(Self { _file: file })
    }
}

fn read_token(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut token = String::new();
    file.take(LONGEST).read_to_string(&mut token)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::Claim;
    use crate::process_tree::{TOKEN_VARIABLE, new_token};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn a_claim_ends_what_an_earlier_attempt_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claim");
        let (first, second) = (new_token(), new_token());
        drop(Claim::take(&path, &first).unwrap());
        let mut left = Command::new("sleep").arg("600").env(TOKEN_VARIABLE, &first).spawn().unwrap();
        let claim = Claim::take(&path, &second).unwrap();
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), second);
        drop(claim);
    }
}
