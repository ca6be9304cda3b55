//! `run --job NAME`: a run inside a job of Slurm, Kubernetes or another scheduler. Every start of the job continues the same
//! run folder, and nothing of the run outlives this process.
//!
//! ```text
//!  no folder ────────────────▶ new run ──┐
//!  folder, old keeper alive ─▶ wait ──┐  ▼
//!  folder ───────────────────▶ resume ─▶ follow ──▶ 0 finished, 3 stopped, 4 … failed: the run's own code
//!  folder, finished ─▶ 0                  └──────▶ 75 interrupted by a signal, also while waiting: start the job again
//! ```

use super::devices::Sharing;
use super::elsewhere::describe_watch;
use super::environment::{NextStart, Precedence};
use super::headless::{JobEnd, JobSignals, follow_bound};
use super::trust::Trust;
use super::{Failure, Outcome, client, resume, say};
use crate::harness::JobNodes;
use crate::keeper::lifeline::BoundKeeper;
use crate::keeper::{ENDED_BY_SIGNAL, Launch};
use crate::protocol::control::{RunState, Status};
use crate::protocol::exit_code::{INTERRUPTED, NEEDS_PERSON, STOPPED};
use crate::store::command_line::record_command_line;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::takeover::{LeaseState, Takeover};
use crate::trainer::Trainer;
use rustix::process::Signal;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Time for an earlier start of the job to end. A scheduler may start the job again before the last process is gone.
const HANDOVER: Duration = Duration::from_mins(1);
/// Interval between two checks for the earlier keeper.
const INTERVAL: Duration = Duration::from_millis(50);
/// Interval between two looks at the lease of a keeper on another host.
const LOOK: Duration = Duration::from_secs(1);
/// Longest name of a job.
const LONGEST: usize = 100;

/// The name of a job, and of its run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobName(String);

/// The text is not the name of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write up to {LONGEST} letters, digits, `-`, `_` and `.`, without `-` or `.` in front, such as digits-123")]
pub struct BadJobName;

impl JobName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Finds the run that an earlier start of this job began.
    pub fn find(&self, runs: &Path) -> Option<RunDir> {
        RunDir::open(&runs.join(&self.0)).ok()
    }
}

impl FromStr for JobName {
    type Err = BadJobName;

    fn from_str(text: &str) -> Result<Self, BadJobName> {
        let allowed = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
        let fits =
            !text.is_empty() && text.len() <= LONGEST && !text.starts_with(['-', '.']) && text.chars().all(allowed);
        fits.then(|| Self(text.to_owned())).ok_or(BadJobName)
    }
}

/// Returns the number of nodes that the run of this job trains on: all that the job has.
pub fn count_nodes() -> Result<u32, Failure> {
    JobNodes::find().map(|nodes| nodes.count()).map_err(|error| Failure::new(2, error.to_string()))
}

/// Continues the run of an earlier start of this job.
pub fn go_on(
    dir: &RunDir,
    sharing: &Sharing,
    trust: Trust,
    trainer: &dyn Trainer,
    signals: &mut JobSignals,
) -> Outcome {
    let since_ms = jiff::Timestamp::now().as_millisecond();
    let has_finished = || live_status(dir).is_some_and(|status| status.state == RunState::Finished);
    let earlier = if has_finished() { None } else { wait_for_earlier_keeper(dir, signals)? };
    if let Some(signal) = earlier {
        return interrupted_early(signal, &dir.name());
    }
    if has_finished() {
        say(&format!("{} has finished already", dir.name()));
        return Ok(0);
    }
    let next = NextStart::later(dir, Precedence::Job);
    let launch = resume::ready_in_job(dir, sharing, trust, trainer, &next)?;
    say(&format!("continues {} as its own run.yaml says; a changed CONFIG, --set or --device is not read", dir.name()));
    if let Some(signal) = signals.arrived() {
        return interrupted_early(signal, &dir.name());
    }
    record_command_line(dir);
    keep(dir, (&launch, next), since_ms, signals)
}

/// Waits until the keeper of an earlier start is gone. Returns the signal that ended the wait.
fn wait_for_earlier_keeper(dir: &RunDir, signals: &mut JobSignals) -> Result<Option<Signal>, Failure> {
    let (mut patience, mut told, mut watched) = (Patience::new(Instant::now()), false, false);
    let (mut takeover, mut looked) = (Takeover::new(false), None::<Instant>);
    while owners::is_kept(dir) {
        if owners::keeper_elsewhere(dir).is_some() && looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            let look = takeover.look(dir);
            if let Ok(LeaseState::Watching(why, left)) = &look
                && !std::mem::replace(&mut watched, true)
            {
                say(&describe_watch(why, *left));
            }
            patience.note(look, Instant::now());
        }
        let process = earlier_process(dir);
        if patience.is_over(Instant::now()) {
            let (name, stop) = (dir.name(), dir.command("stop"));
            let held = format!("{name} already has a keeper, {process}, and a run is never trained twice at once");
            return Err(Failure::new(1, patience.obstacle.unwrap_or_else(|| format!("{held}; `{stop}` ends it"))));
        }
        if !std::mem::replace(&mut told, true) {
            say(&format!("waiting for the earlier start of this job ({process})"));
        }
        if let Some(signal) = signals.next_within(INTERVAL) {
            return Ok(Some(signal));
        }
    }
    Ok(None)
}

/// Names the process that holds the run.
fn earlier_process(dir: &RunDir) -> String {
    let owner = owners::keeper(dir).or_else(|| owners::parent_record(dir).map(|parent| parent.owner));
    match (owner, owners::keeper_elsewhere(dir)) {
        (Some(owner), _) => format!("process {}", owner.pid),
        (None, Some(lease)) => lease.holder(),
        (None, None) => "a process".to_owned(),
    }
}

/// The time that an earlier start still has to end. It stands still while a lease is watched: the watch has its own limit.
#[derive(Debug)]
struct Patience {
    since: Instant,
    /// Why the newest look did not take the run over.
    obstacle: Option<String>,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { since: now, obstacle: None }
    }

    /// Notes a look at the lease. A single failed one says little: a server may be away for a moment.
    fn note(&mut self, look: io::Result<LeaseState>, now: Instant) {
        self.obstacle = match look {
            Ok(LeaseState::Refused(refusal)) => Some(refusal.to_string()),
            Ok(LeaseState::Watching(..) | LeaseState::Ready(_)) => {
                self.since = now;
                None
            }
            Ok(LeaseState::Free) => None,
            Err(error) => Some(format!("the lease of the run cannot be read or taken: {error}")),
        };
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= HANDOVER
    }
}

/// Returns the exit code of a job that a signal ends before its run has begun or continued.
pub fn interrupted_early(signal: Signal, name: &str) -> Outcome {
    match signal {
        // Started again, it would come no further.
        Signal::USR1 => Err(no_new_step(name)),
        Signal::INT => Ok(STOPPED),
        _ => {
            say(&format!("interrupted before {name} was started"));
            Ok(INTERRUPTED)
        }
    }
}

fn no_new_step(name: &str) -> Failure {
    let text = format!("{name} saved no new step in the whole time of this job; give it more time, or save more often");
    Failure::new(NEEDS_PERSON, text)
}

/// Starts the keeper as part of this job and follows the run. Returns the exit code of the job.
pub fn keep(dir: &RunDir, (launch, next): (&Launch, NextStart), since_ms: i64, signals: &mut JobSignals) -> Outcome {
    let began_ms = jiff::Timestamp::now().as_millisecond();
    let before = durable_step(dir);
    let keeper = BoundKeeper::start(dir, launch, &next.keep(dir))?;
    client::wait_for_keeper(dir, began_ms)?;
    // Two starts may have waited for the same keeper. One of them became the parent of the next.
    if let Some(other) = owners::parent_record(dir).filter(|parent| parent.owner.pid != keeper.id()) {
        let (name, pid) = (dir.name(), other.owner.pid);
        return Err(Failure::new(1, format!("another start of this job trains {name}, by process {pid}")));
    }
    let JobEnd { code, noticed } = follow_bound(dir, since_ms, keeper, signals)?;
    // Another start may have continued the run since: the record of this end is gone, and the run was not stopped for good.
    let has_ended = |status: &Status| matches!(status.state, RunState::Stopped | RunState::Interrupted);
    let goes_on = || live_status(dir).is_some_and(|status| !has_ended(&status));
    if code != STOPPED || !(was_interrupted(dir) || goes_on()) {
        return Ok(code);
    }
    if noticed && durable_step(dir) == before {
        // Started again, it would come no further.
        return Err(no_new_step(&dir.name()));
    }
    Ok(INTERRUPTED)
}

fn durable_step(dir: &RunDir) -> Option<u64> {
    live_status(dir).and_then(|status| status.durable_step)
}

/// Reports whether a signal ended the run, and not the user.
fn was_interrupted(dir: &RunDir) -> bool {
    let stored = || Reader::open(dir).ok().and_then(|reader| reader.fact::<Option<String>>(ENDED_BY_SIGNAL)).flatten();
    owners::unwritten_end(dir).map_or_else(|| stored().is_some(), |ending| !ending.wish)
}

#[cfg(test)]
mod tests {
    use super::{HANDOVER, JobName, Patience};
    use crate::store::shared_folder::takeover::{LeaseState, Refusal};
    use std::io;
    use std::time::{Duration, Instant};

    #[test]
    fn a_watched_lease_costs_no_patience_and_a_failed_look_ends_nothing() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let limit = HANDOVER.as_secs();
        let mut patience = Patience::new(begun);
        patience.note(Err(io::Error::from_raw_os_error(116)), at(1));
        assert!(!patience.is_over(at(limit - 1)));
        assert!(patience.is_over(at(limit)) && patience.obstacle.as_ref().unwrap().contains("os error 116"));
        let refusal = Refusal::Moves { run: "r".to_owned(), holder: "h".to_owned(), stop: "s".to_owned() };
        patience.note(Ok(LeaseState::Refused(refusal.clone())), at(2));
        patience.note(Ok(LeaseState::Watching("ended".to_owned(), Duration::from_secs(35))), at(limit - 1));
        assert!(!patience.is_over(at(limit + 30)) && patience.obstacle.is_none(), "the watch takes its time");
        patience.note(Ok(LeaseState::Refused(refusal)), at(limit + 30));
        assert!(patience.is_over(at(2 * limit)) && patience.obstacle.as_ref().unwrap().contains("renews its lease"));
        patience.note(Ok(LeaseState::Free), at(limit + 30));
        assert!(patience.is_over(at(2 * limit)) && patience.obstacle.is_none(), "a keeper of this host");
    }

    #[test]
    fn the_name_of_a_job_is_one_folder() {
        for good in ["digits-123", "7", "a_b.c", "größe-7"] {
            assert_eq!(good.parse::<JobName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "../x", "a/b", "-x", "a b", "a\nb", "$x", &"a".repeat(101)] {
            assert!(bad.parse::<JobName>().is_err(), "{bad:?}");
        }
    }
}
