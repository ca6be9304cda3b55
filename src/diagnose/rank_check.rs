//! Tries out several ranks on this machine: real processes that join each other, sum, wait and measure, under one clock.
//!
//! ```text
//! doctor ── starts ──▶ python -m downshift_cockpit.rank_check   RANK=0 … N-1
//!        ◀── {"done": "init", "seconds": 0.1} ──        each step of each rank
//! ```
//! Whatever happens, every process is ended before the answer.

mod failure;
mod progress;
mod step;

pub use failure::RankFailure;
pub use step::{Step, StepReport};

use crate::companion::{self, PATH_VARIABLE};
use crate::process_tree::{Family, TOKEN_VARIABLE, kill_all, new_token};
use progress::{Heard, follow, slowest};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes of a line that are read at once.
const MAX_LINE: u64 = 1 << 16;
/// Longest time for the processes to be gone.
const KILL: Duration = Duration::from_secs(5);
/// Interval between two looks at a process that was killed.
const LOOK: Duration = Duration::from_millis(20);

/// Ranks to try, and their interpreter.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The number of ranks.
    pub ranks: u32,
    /// The interpreter.
    pub python: PathBuf,
    /// The time for everything.
    pub limit: Duration,
}

/// Tries out the ranks. Returns the slowest time of each step, with what rank 0 found.
///
/// # Errors
/// Returns the first thing that is wrong.
pub fn try_ranks(trial: &Trial) -> Result<Vec<StepReport>, RankFailure> {
    let package = companion::unpack()?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let token = new_token();
    let (told, heard) = channel();
    let mut children = Vec::new();
    let started = (0..trial.ranks).try_for_each(|rank| {
        let mut child = start_rank(trial, rank, port, &token, &package)?;
        listen(rank, &mut child, &told);
        children.push(child);
        Ok(())
    });
    drop(told);
    let outcome = started.and_then(|()| follow(trial.ranks, trial.limit, &heard));
    let _ = kill_all(&Family::Attempt { token, root: std::process::id() }, KILL);
    let stuck = reap(children);
    if !stuck.is_empty() {
        return Err(RankFailure::Stuck { cause: outcome.err().map(Box::new), pids: stuck });
    }
    outcome.map(slowest)
}

/// Waits for the killed ranks. Returns the ids of those that do not end: a driver may hold a process.
fn reap(mut children: Vec<Child>) -> Vec<u32> {
    let deadline = Instant::now() + KILL;
    loop {
        children.retain_mut(|child| {
            let _ = child.kill();
            matches!(child.try_wait(), Ok(None))
        });
        if children.is_empty() || Instant::now() >= deadline {
            return children.iter().map(Child::id).collect();
        }
        thread::sleep(LOOK);
    }
}

fn start_rank(trial: &Trial, rank: u32, port: u16, token: &str, package: &Path) -> Result<Child, RankFailure> {
    let path = companion::search_path(package, std::env::var_os(PATH_VARIABLE).as_deref());
    let mut command = Command::new(&trial.python);
    command.args(["-u", "-m", "downshift_cockpit.rank_check"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env(PATH_VARIABLE, path).env(TOKEN_VARIABLE, token).env("MASTER_ADDR", "127.0.0.1");
    let ranks = trial.ranks.to_string();
    for (name, value) in
        [("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string()), ("MASTER_PORT", port.to_string())]
    {
        command.env(name, value);
    }
    command.env("WORLD_SIZE", &ranks).env("LOCAL_WORLD_SIZE", &ranks);
    command.spawn().map_err(|source| RankFailure::Python { python: trial.python.clone(), source })
}

/// Reads the output of a rank in threads, one for each pipe: a full one would stop the rank.
fn listen(rank: u32, child: &mut Child, told: &Sender<(u32, Heard)>) {
    let (stdout, stderr, told) = (child.stdout.take(), child.stderr.take(), told.clone());
    let errors = thread::spawn(move || {
        let mut last = String::new();
        for_each_line(stderr, |line| {
            if !line.trim().is_empty() {
                last = line;
            }
        });
        last
    });
    thread::spawn(move || {
        for_each_line(stdout, |line| {
            if let Ok(line) = serde_json::from_str(&line) {
                let _ = told.send((rank, Heard::Line(line)));
            }
        });
        let _ = told.send((rank, Heard::Ended(errors.join().unwrap_or_default())));
    });
}

/// Acts on each line of an output to its end; a line longer than the limit comes in parts.
fn for_each_line(output: Option<impl Read>, mut act: impl FnMut(String)) {
    let Some(output) = output else { return };
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        act(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Heard, listen};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    #[test]
    fn a_rank_that_writes_more_than_a_pipe_holds_is_read_to_its_end() {
        let (told, heard) = channel();
        let mut command = Command::new("sh");
        command.args(["-c", "yes noise | head -c 3000000 >&2; yes noise | head -c 3000000; exit 3"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        listen(0, &mut child, &told);
        drop(told);
        let ends: Vec<_> =
            heard.iter().filter(|(_, heard)| matches!(heard, Heard::Ended(last) if last == "noise")).collect();
        assert_eq!(ends.len(), 1);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}
