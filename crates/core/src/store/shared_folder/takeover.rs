//! Taking over a run whose keeper was on another host. Two things are needed: a word that the holder has ended (Slurm's, a
//! reboot, or yours), and a lease that this process itself has seen stand still for several beats.

use super::job::{Job, JobState};
use super::lease::{self, BEAT, Host, Lease};
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::io;
use std::time::{Duration, Instant};

/// Time for which a lease must stand still: three beats, and what a slow disk delays one.
pub const STILL: Duration = Duration::from_secs(3 * BEAT.as_secs() + 5);
/// Interval between two questions to Slurm.
const ASK: Duration = Duration::from_secs(5);

/// Reason why a run on another host is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing says that the holder has ended.
    #[error(
        "{run} has a keeper, {holder}, and nothing here can tell whether it has ended. `{stop}` ends it through the run's \
         folder. If that process is surely gone, `{take_over}` takes the run over once its lease has not moved for {} s",
        STILL.as_secs()
    )]
    Unknown {
        /// The run's name.
        run: String,
        /// The holder of the lease.
        holder: String,
        /// The command that ends the run.
        stop: String,
        /// The command that takes it over.
        take_over: String,
    },
    /// Slurm says that the holder's job may have processes; it may be suspended.
    #[error(
        "{run} has a keeper, {holder}, whose job is {state}; `{stop}` ends it through the run's folder, or `scancel {job}`"
    )]
    JobLives {
        /// The run's name.
        run: String,
        /// The holder of the lease.
        holder: String,
        /// Its job.
        job: String,
        /// The state of that job.
        state: String,
        /// The command that ends the run.
        stop: String,
    },
    /// The holder renews its lease.
    #[error("{run} is not taken over: {holder}, renews its lease, so it is alive; `{stop}` ends it")]
    Moves {
        /// The run's name.
        run: String,
        /// The holder of the lease.
        holder: String,
        /// The command that ends the run.
        stop: String,
    },
}

/// Result of a look at the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// No other host holds the run.
    Free,
    /// The holder has ended, for this reason, and its lease still has to be watched for this time.
    Watching(String, Duration),
    /// The holder has ended, for this reason, and its lease stands still.
    Ready(String),
    /// The run is another host's.
    Refused(Refusal),
}

/// How long a lease has not moved, as seen by this process.
#[derive(Debug, Default)]
pub struct Standstill {
    /// The lease as it was seen last, and since when it has been so.
    seen: Option<(Lease, Instant)>,
}

impl Standstill {
    /// Looks at the lease once more. Returns the time since it was first seen as it is.
    pub fn observe(&mut self, lease: &Lease, now: Instant) -> Duration {
        match &self.seen {
            Some((seen, since)) if seen == lease => now.duration_since(*since),
            _ => {
                self.seen = Some((lease.clone(), now));
                Duration::ZERO
            }
        }
    }
}

/// An attempt to take a run over.
#[derive(Debug)]
pub struct Takeover {
    /// The user says that the holder is gone.
    by_hand: bool,
    standstill: Standstill,
    moved: bool,
    /// Slurm's last word.
    asked: Option<(Instant, JobState)>,
}

impl Takeover {
    /// Begins to watch.
    #[must_use]
    pub fn new(by_hand: bool) -> Self {
        Self { by_hand, standstill: Standstill::default(), moved: false, asked: None }
    }

    /// Looks at the lease of a run, and ends it if that is possible now: then the run is free.
    ///
    /// # Errors
    /// Returns an error when the lease cannot be read or ended.
    pub fn look(&mut self, run: &RunDir) -> io::Result<LeaseState> {
        let newest = lease::newest(run.path())?.filter(Lease::is_elsewhere);
        let own = Job::own(|name| std::env::var(name).ok());
        let now = Instant::now();
        if let Some(job) = newest.as_ref().and_then(|lease| lease.job.as_ref())
            && self.asked.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= ASK)
        {
            self.asked = Some((now, job.ask_slurm()));
        }
        let progress = self.judge(newest.as_ref(), &Host::own(), own.as_ref(), now, run);
        match (&progress, &newest) {
            (LeaseState::Ready(why), Some(gone)) if lease::supersede(run.path(), gone, why)? => Ok(LeaseState::Free),
            _ => Ok(progress),
        }
    }

    /// Judges a lease of another host.
    fn judge(
        &mut self,
        lease: Option<&Lease>,
        host: &Host,
        own: Option<&Job>,
        now: Instant,
        run: &RunDir,
    ) -> LeaseState {
        let Some(lease) = lease else { return LeaseState::Free };
        self.moved |= self.standstill.seen.as_ref().is_some_and(|(seen, _)| seen != lease);
        let still = self.standstill.observe(lease, now);
        let state = self.asked.as_ref().map_or(&JobState::Unknown, |(_, state)| state);
        let (run, holder, stop, take_over) =
            (run.name(), lease.holder(), run.command("stop"), run.command("resume --take-over"));
        let why = match (reason_to_think_it_ended(lease, host, own, state), &lease.job, state) {
            (Some(why), ..) => why,
            (None, Some(job), JobState::Lives(state)) => {
                let (job, state) = (job.id.clone(), text::escape_line(state).into_owned());
                return LeaseState::Refused(Refusal::JobLives { run, holder, job, state, stop });
            }
            _ if self.by_hand => "taken over by hand".to_owned(),
            _ => return LeaseState::Refused(Refusal::Unknown { run, holder, stop, take_over }),
        };
        if self.moved {
            return LeaseState::Refused(Refusal::Moves { run, holder, stop });
        }
        match STILL.checked_sub(still).filter(|left| !left.is_zero()) {
            Some(left) => LeaseState::Watching(format!("{holder}: {why}"), left),
            None => LeaseState::Ready(why),
        }
    }
}

/// Returns why the holder of a lease must have ended; none if it may still be alive.
fn reason_to_think_it_ended(lease: &Lease, host: &Host, own: Option<&Job>, state: &JobState) -> Option<String> {
    if lease.host.is_machine_of(host) {
        return Some("that host, this one, was rebooted".to_owned());
    }
    let job = lease.job.as_ref()?;
    if own.is_some_and(|own| own.follows(job)) {
        return Some(format!("Slurm started job {} again", job.id));
    }
    match state {
        JobState::Ended(state) => Some(format!("job {} has ended ({state})", job.id)),
        JobState::Lives(_) | JobState::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::tests::foreign;
    use super::{Host, Job, JobState, LeaseState, Refusal, STILL, Takeover, reason_to_think_it_ended};
    use crate::store::run_dir::RunDir;
    use std::fs;
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    fn job(restarts: u64) -> Job {
        Job { id: "7".to_owned(), cluster: "stage".to_owned(), restarts }
    }

    fn run() -> (TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        (dir, run)
    }

    #[test]
    fn only_slurm_and_a_reboot_prove_an_end() {
        let (here, mut lease) = (Host { name: "login".to_owned(), machine: "m1".to_owned() }, foreign(1));
        let ended = JobState::Ended("COMPLETED".to_owned());
        assert_eq!(reason_to_think_it_ended(&lease, &here, None, &ended), None, "a state of no job");
        lease.job = Some(job(0));
        let reason = |own: Option<&Job>, state: &JobState| reason_to_think_it_ended(&lease, &here, own, state);
        assert_eq!(reason(None, &ended).unwrap(), "job 7 has ended (COMPLETED)");
        assert_eq!(reason(None, &JobState::Lives("RUNNING".to_owned())), None);
        assert_eq!(reason(Some(&job(0)), &JobState::Unknown), None);
        assert_eq!(reason(Some(&job(1)), &JobState::Unknown).unwrap(), "Slurm started job 7 again");
        lease.job = None;
        for (name, machine, rebooted) in [("node7", "m7", true), ("node7", "m1", false), ("node8", "m7", false)] {
            let here = Host { name: name.to_owned(), machine: machine.to_owned() };
            let reason = reason_to_think_it_ended(&lease, &here, None, &JobState::Unknown);
            assert_eq!(reason.is_some(), rebooted, "{name} {machine}");
        }
        lease.host.machine = String::new();
        let nameless = Host { machine: String::new(), ..lease.host.clone() };
        assert_eq!(reason_to_think_it_ended(&lease, &nameless, None, &JobState::Unknown), None);
    }

    #[test]
    fn a_lease_whose_holder_may_live_is_refused_whether_it_moves_or_not() {
        let (_dir, run) = run();
        let (here, begun, mut lease) = (Host::own(), Instant::now(), foreign(1));
        let mut text = String::new();
        // Your word does not outweigh Slurm's: the job may be suspended.
        for (in_job, by_hand) in [(false, false), (true, false), (true, true)] {
            lease.job = in_job.then(|| job(0));
            let mut takeover = Takeover::new(by_hand);
            takeover.asked = in_job.then(|| (begun, JobState::Lives("SUSPENDED".to_owned())));
            for (later, beat) in [(0, 0), (10, 1), (20, 2), (100, 2), (1000, 2)] {
                lease.beat = beat;
                let progress = takeover.judge(Some(&lease), &here, None, begun + Duration::from_secs(later), &run);
                let LeaseState::Refused(refusal) = progress else { panic!("{later}: {progress:?}") };
                assert_eq!(matches!(refusal, Refusal::JobLives { .. }), in_job, "{refusal}");
                text = refusal.to_string();
                let way_out = if in_job { "or `scancel 7`" } else { "resume --take-over" };
                assert!(text.contains("process 4711 on host node7") && text.contains(way_out), "{text}");
            }
            assert_eq!(takeover.judge(None, &here, None, begun, &run), LeaseState::Free);
        }
        assert!(text.contains(" in Slurm job 7, since 2") && text.contains("whose job is SUSPENDED"), "{text}");
    }

    #[test]
    fn an_ended_holder_is_followed_once_its_lease_has_stood_still() {
        let (_dir, run) = run();
        let (here, begun, mut lease) = (Host::own(), Instant::now(), foreign(1));
        for by_hand in [false, true] {
            lease.job = (!by_hand).then(|| job(0));
            let ended = || Some((begun, JobState::Ended("FAILED".to_owned())));
            let mut takeover = Takeover { asked: ended(), ..Takeover::new(by_hand) };
            let still = takeover.judge(Some(&lease), &here, None, begun, &run);
            assert!(matches!(&still, LeaseState::Watching(_, left) if *left == STILL), "{still:?}");
            let before = begun + Duration::from_secs(STILL.as_secs() - 1);
            assert!(matches!(takeover.judge(Some(&lease), &here, None, before, &run), LeaseState::Watching(..)));
            assert!(matches!(takeover.judge(Some(&lease), &here, None, begun + STILL, &run), LeaseState::Ready(_)));

            // A process that outlives its job, or that you did not see.
            let mut takeover = Takeover { asked: ended(), ..Takeover::new(by_hand) };
            takeover.judge(Some(&lease), &here, None, begun, &run);
            lease.beat += 1;
            let moved = takeover.judge(Some(&lease), &here, None, begun + STILL, &run);
            let LeaseState::Refused(refusal @ Refusal::Moves { .. }) = moved else { panic!("{moved:?}") };
            assert!(refusal.to_string().contains("renews its lease, so it is alive"), "{refusal}");
        }
    }
}
