//! Follows what ranks say, and judges the first thing that is wrong.

use super::failure::RankFailure;
use super::step::{Line, Step, StepReport};
use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Time to hear from the others after the first failure: the cause may come second.
const AFTER_FAILURE: Duration = Duration::from_millis(300);

/// The progress of every rank.
#[derive(Debug)]
pub struct CheckProgress {
    done: Vec<Vec<StepReport>>,
    /// The ranks that reported an error: their end says no more.
    failed: BTreeSet<u32>,
}

impl CheckProgress {
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
        let starts: Option<Vec<&StepReport>> = self.done.iter().map(|done| done.first()).collect();
        let starts = starts?;
        let differs = |name: &'static str, of: fn(&StepReport) -> &Option<String>| {
            let first = of(starts.first()?).clone()?;
            let (rank, other) = (0..).zip(&starts).find(|(_, start)| of(start).as_ref() != Some(&first))?;
            let other = of(other).clone().unwrap_or_default();
            Some(RankFailure::Versions { name, first, rank, other })
        };
        differs("torch", |found| &found.torch).or_else(|| differs("Python", |found| &found.python))
    }
}

/// A message of a reader thread.
pub enum Heard {
    /// A line of its output.
    Line(Line),
    /// The rank closed its output; its last words on stderr.
    Ended(String),
}

/// Follows the ranks until all are done, one fails, or the time is over.
pub fn follow(ranks: u32, limit: Duration, heard: &Receiver<(u32, Heard)>) -> Result<CheckProgress, RankFailure> {
    let mut progress = CheckProgress::new(ranks);
    let mut cause: Option<RankFailure> = None;
    let mut deadline = Instant::now() + limit;
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
            Err(RankFailure::Late { late, ranks, step, limit })
        }
    }
}

/// Returns what rank 0 found in each step, with the time of the slowest.
pub fn slowest(progress: CheckProgress) -> Vec<StepReport> {
    let longest = |step: usize| progress.done.iter().map(|done| done[step].seconds).fold(0.0, f64::max);
    let times: Vec<f64> = (0..Step::ALL.len()).map(longest).collect();
    let of_first = progress.done.into_iter().next().unwrap_or_default();
    of_first.into_iter().zip(times).map(|(found, seconds)| StepReport { seconds, ..found }).collect()
}

#[cfg(test)]
mod tests {
    use super::{CheckProgress, Heard, Line, RankFailure, Step, StepReport, follow, slowest};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn line(text: &str) -> Heard {
        Heard::Line(serde_json::from_str::<Line>(text).unwrap())
    }

    fn outcome(heard: Vec<(u32, Heard)>) -> Result<CheckProgress, RankFailure> {
        let (told, receiver) = channel();
        for heard in heard {
            told.send(heard).unwrap();
        }
        follow(2, Duration::from_millis(50), &receiver)
    }

    fn done(step: Step, seconds: f64) -> String {
        format!(r#"{{"done": "{step}", "seconds": {seconds}, "torch": "2.15.0"}}"#)
    }

    #[test]
    fn each_step_counts_with_its_slowest_rank() {
        let all = |rank: u32, seconds: f64| Step::ALL.map(|step| (rank, line(&done(step, seconds))));
        let found = slowest(outcome(all(0, 0.5).into_iter().chain(all(1, 2.0)).collect()).unwrap());
        let expected = StepReport { seconds: 2.0, torch: Some("2.15.0".to_owned()), ..StepReport::default() };
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
    fn other_versions_are_named_as_soon_as_all_ranks_have_started() {
        let start = |torch: &str| line(&format!(r#"{{"done": "start", "torch": "{torch}"}}"#));
        let refused = outcome(vec![(0, start("2.15.0")), (1, start("2.14.1"))]).unwrap_err().to_string();
        assert_eq!(refused, "rank 0 has torch 2.15.0, rank 1 has torch 2.14.1");
    }
}
