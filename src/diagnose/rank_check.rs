//! Tries out several ranks on this machine: real processes that join each other, sum, wait and measure, under one clock.
//!
//! ```text
//! doctor ── starts ──▶ python -m downshift.rank_check   RANK=0 … N-1
//!        ◀── {"done": "init", "seconds": 0.1} ──        each step of each rank
//! ```
//! Whatever happens, every process is ended before the answer.

use crate::companion::{self, PATH_VARIABLE, UnpackError};
use crate::process_tree::{Family, TOKEN_VARIABLE, kill_all, new_token};
use crate::untrusted::text;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes of a line that are read at once.
const MAX_LINE: u64 = 1 << 16;
/// Time to hear from the others after the first failure: the cause may come second.
const AFTER_FAILURE: Duration = Duration::from_millis(300);
/// Longest time for the processes to be gone.
const KILL: Duration = Duration::from_secs(5);
/// Interval between two looks at a process that was killed.
const LOOK: Duration = Duration::from_millis(20);

/// What is tried.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The number of ranks.
    pub ranks: u32,
    /// The interpreter.
    pub python: PathBuf,
    /// The time for everything.
    pub limit: Duration,
}

/// The steps of a rank, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Imports PyTorch and chooses the device.
    Start,
    /// Joins the group.
    Init,
    /// Sums one number.
    AllReduce,
    /// Waits for the others.
    Barrier,
    /// Sums 16 MiB several times.
    Bandwidth,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 5] = [Self::Start, Self::Init, Self::AllReduce, Self::Barrier, Self::Bandwidth];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Init => "init",
            Self::AllReduce => "all_reduce",
            Self::Barrier => "barrier",
            Self::Bandwidth => "bandwidth",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a rank found in a step.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Found {
    /// The time it took.
    pub seconds: f64,
    /// Version of PyTorch.
    pub torch: Option<String>,
    /// Version of Python.
    pub python: Option<String>,
    /// The backend: gloo or nccl.
    pub backend: Option<String>,
    /// The name of its device.
    pub device: Option<String>,
    /// Bytes per second over each link.
    pub bytes_per_s: Option<f64>,
}

/// A line of a rank.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Failed {
        failed: Step,
        message: String,
    },
    Done {
        done: Step,
        #[serde(flatten)]
        found: Found,
    },
}

/// Why the ranks do not work together.
#[derive(Debug, thiserror::Error)]
pub enum RankFailure {
    /// The Python code cannot be placed.
    #[error(transparent)]
    Package(#[from] UnpackError),
    /// The interpreter cannot be started.
    #[error("{} cannot be started: {source}", text::path(.python))]
    Python {
        /// The interpreter.
        python: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No port or pipe.
    #[error("the ranks cannot be prepared: {0}")]
    System(#[from] io::Error),
    /// A rank reported an error.
    #[error("rank {rank} failed in {step}: {}", text::escape_line(message))]
    Failed {
        /// The rank.
        rank: u32,
        /// The step.
        step: Step,
        /// Its error.
        message: String,
    },
    /// A rank ended without a word.
    #[error("rank {rank} ended during {step}{}", said(message))]
    Ended {
        /// The rank.
        rank: u32,
        /// The step that it did not finish.
        step: Step,
        /// Its last words; may be empty.
        message: String,
    },
    /// The time is over.
    #[error("no answer within {} s: {step} has not ended on {}", limit.as_secs(), named(late, *ranks))]
    Late {
        /// The ranks that are the furthest behind.
        late: Vec<u32>,
        /// The number of ranks.
        ranks: u32,
        /// The step that they are in.
        step: Step,
        /// The time that they had.
        limit: Duration,
    },
    /// Processes of the ranks cannot be killed.
    #[error("{}{} cannot be ended, so a driver may hold it", cause.as_ref().map_or_else(String::new, |cause| format!("{cause}; ")), listed(pids))]
    Stuck {
        /// Why the ranks do not work together, if they do not.
        cause: Option<Box<RankFailure>>,
        /// The processes.
        pids: Vec<u32>,
    },
    /// Two ranks have different versions.
    #[error("rank 0 has {name} {first}, rank {rank} has {name} {other}")]
    Versions {
        /// `torch` or `Python`.
        name: &'static str,
        /// The version of rank 0.
        first: String,
        /// The other rank.
        rank: u32,
        /// Its version.
        other: String,
    },
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {}", text::escape_line(message)) }
}

fn listed(pids: &[u32]) -> String {
    let numbers: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    numbers.join(" and ")
}

fn named(late: &[u32], ranks: u32) -> String {
    if late.len() == ranks as usize {
        return "any rank".to_owned();
    }
    let numbers: Vec<String> = late.iter().map(ToString::to_string).collect();
    format!("rank {} of {ranks}, and the others wait for it", numbers.join(", "))
}

/// What every rank has done so far.
#[derive(Debug)]
struct Progress {
    done: Vec<Vec<Found>>,
    /// The ranks that reported an error: their end says no more.
    failed: BTreeSet<u32>,
}

impl Progress {
    fn new(ranks: u32) -> Self {
        Self { done: (0..ranks).map(|_| Vec::new()).collect(), failed: BTreeSet::new() }
    }

    /// Returns the step that a rank is in; none after the last one.
    fn step_of(&self, rank: usize) -> Option<Step> {
        Step::ALL.get(self.done.get(rank)?.len()).copied()
    }

    /// Takes in what a rank said. Returns why the ranks cannot go on.
    fn take(&mut self, rank: u32, heard: Heard) -> Option<RankFailure> {
        let step = self.step_of(rank as usize);
        match heard {
            Heard::Line(Line::Done { done, found }) => {
                if step == Some(done) {
                    self.done[rank as usize].push(found);
                }
                self.other_version()
            }
            Heard::Line(Line::Failed { failed, message }) => {
                self.failed.insert(rank);
                Some(RankFailure::Failed { rank, step: failed, message })
            }
            // A rank that is done may leave.
            Heard::Ended(_) if self.failed.contains(&rank) => None,
            Heard::Ended(message) => step.map(|step| RankFailure::Ended { rank, step, message }),
        }
    }

    fn is_complete(&self) -> bool {
        (0..self.done.len()).all(|rank| self.step_of(rank).is_none())
    }

    /// Returns the ranks that are the furthest behind, and their step.
    fn late(&self) -> (Vec<u32>, Step) {
        let least = self.done.iter().map(Vec::len).min().unwrap_or(0);
        let late = (0..).zip(&self.done).filter(|(_, done)| done.len() == least).map(|(rank, _)| rank);
        (late.collect(), Step::ALL[least.min(Step::ALL.len() - 1)])
    }

    /// Returns the failure of ranks whose versions differ, once all have started.
    fn other_version(&self) -> Option<RankFailure> {
        let starts: Option<Vec<&Found>> = self.done.iter().map(|done| done.first()).collect();
        let starts = starts?;
        let differs = |name: &'static str, of: fn(&Found) -> &Option<String>| {
            let first = of(starts.first()?).clone()?;
            let (rank, other) = (0..).zip(&starts).find(|(_, start)| of(start).as_ref() != Some(&first))?;
            let other = of(other).clone().unwrap_or_default();
            Some(RankFailure::Versions { name, first, rank, other })
        };
        differs("torch", |found| &found.torch).or_else(|| differs("Python", |found| &found.python))
    }
}

/// What a reader thread heard.
enum Heard {
    Line(Line),
    /// The rank closed its output; its last words on stderr.
    Ended(String),
}

/// Tries out the ranks. Returns the slowest time of each step, with what rank 0 found.
///
/// # Errors
/// Returns the first thing that is wrong.
pub fn try_ranks(trial: &Trial) -> Result<Vec<Found>, RankFailure> {
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
    let outcome = started.and_then(|()| follow(trial, &heard));
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
    command.args(["-u", "-m", "downshift.rank_check"]);
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

/// Follows the ranks until all are done, one fails, or the time is over.
fn follow(trial: &Trial, heard: &Receiver<(u32, Heard)>) -> Result<Progress, RankFailure> {
    let mut progress = Progress::new(trial.ranks);
    let mut cause: Option<RankFailure> = None;
    let mut deadline = Instant::now() + trial.limit;
    while !progress.is_complete() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((rank, heard)) = heard.recv_timeout(left) else { break };
        let Some(failure) = progress.take(rank, heard) else { continue };
        deadline = deadline.min(Instant::now() + AFTER_FAILURE);
        cause = match cause {
            // The others report a closed connection, sometimes before the end of the one that closed it is seen.
            Some(RankFailure::Failed { .. }) if matches!(failure, RankFailure::Ended { .. }) => Some(failure),
            earlier => earlier.or(Some(failure)),
        };
    }
    match cause {
        Some(failure) => Err(failure),
        None if progress.is_complete() => Ok(progress),
        None => {
            let (late, step) = progress.late();
            Err(RankFailure::Late { late, ranks: trial.ranks, step, limit: trial.limit })
        }
    }
}

/// Returns what rank 0 found in each step, with the time of the slowest.
fn slowest(progress: Progress) -> Vec<Found> {
    let longest = |step: usize| progress.done.iter().map(|done| done[step].seconds).fold(0.0, f64::max);
    let times: Vec<f64> = (0..Step::ALL.len()).map(longest).collect();
    let of_first = progress.done.into_iter().next().unwrap_or_default();
    of_first.into_iter().zip(times).map(|(found, seconds)| Found { seconds, ..found }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Found, Heard, Line, Progress, RankFailure, Step, Trial, follow, listen, slowest};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn trial() -> Trial {
        Trial { ranks: 2, python: "python".into(), limit: Duration::from_millis(50) }
    }

    fn line(text: &str) -> Heard {
        Heard::Line(serde_json::from_str::<Line>(text).unwrap())
    }

    fn outcome(heard: Vec<(u32, Heard)>) -> Result<Progress, RankFailure> {
        let (told, receiver) = channel();
        for heard in heard {
            told.send(heard).unwrap();
        }
        follow(&trial(), &receiver)
    }

    fn done(step: Step, seconds: f64) -> String {
        format!(r#"{{"done": "{step}", "seconds": {seconds}, "torch": "2.15.0"}}"#)
    }

    #[test]
    fn each_step_counts_with_its_slowest_rank() {
        let all = |rank: u32, seconds: f64| Step::ALL.map(|step| (rank, line(&done(step, seconds))));
        let found = slowest(outcome(all(0, 0.5).into_iter().chain(all(1, 2.0)).collect()).unwrap());
        let expected = Found { seconds: 2.0, torch: Some("2.15.0".to_owned()), ..Found::default() };
        assert_eq!(found, vec![expected; 5]);
    }

    #[test]
    fn the_rank_that_is_behind_is_named() {
        let both = || vec![(0, line(&done(Step::Start, 1.0))), (1, line(&done(Step::Start, 1.0)))];
        let ahead = [(0, line(&done(Step::Init, 1.0)))];
        let text = |heard: Vec<(u32, Heard)>| outcome(heard).unwrap_err().to_string();
        let late = text(both().into_iter().chain(ahead).collect());
        assert!(late.contains("init has not ended on rank 1 of 2, and the others wait for it"), "{late}");
        assert!(text(both()).contains("init has not ended on any rank"));
    }

    #[test]
    fn a_rank_that_ended_is_the_cause_and_not_the_connection_that_it_closed() {
        let closed = || line(r#"{"failed": "all_reduce", "message": "connection closed by peer"}"#);
        let ended = || Heard::Ended("Killed".to_owned());
        for heard in [vec![(0, closed()), (1, ended())], vec![(1, ended()), (0, closed())]] {
            assert_eq!(outcome(heard).unwrap_err().to_string(), "rank 1 ended during start: Killed");
        }
        let own = vec![(0, closed()), (0, ended())];
        assert!(outcome(own).unwrap_err().to_string().starts_with("rank 0 failed in all_reduce: connection closed"));
    }

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

    #[test]
    fn other_versions_are_named_as_soon_as_all_ranks_have_started() {
        let start = |torch: &str| line(&format!(r#"{{"done": "start", "torch": "{torch}"}}"#));
        let refused = outcome(vec![(0, start("2.15.0")), (1, start("2.14.1"))]).unwrap_err().to_string();
        assert_eq!(refused, "rank 0 has torch 2.15.0, rank 1 has torch 2.14.1");
    }
}
