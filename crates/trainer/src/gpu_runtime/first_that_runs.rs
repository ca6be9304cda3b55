//! A choice among kernels without measuring them: the first that runs, as ordered by the library that offers them.
//!
//! Tuning warms each candidate up and takes ten samples of it. Here the first sample of the first candidate is real,
//! which shows that it runs; all others are pretended, with durations that let this candidate win. So one kernel is
//! compiled where tuning compiles dozens.

use std::time::Duration;

/// The pretended duration of the candidate that ran.
const OF_WINNER: Duration = Duration::from_millis(1);
/// The pretended duration of the candidates after it.
const OF_OTHERS: Duration = Duration::from_millis(2);

/// The handling of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// Its launches run.
    Real,
    /// Its launches are dropped; this is its duration.
    Pretended(Duration),
}

/// The state of one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Search {
    /// No candidate has run yet.
    #[default]
    Open,
    /// The candidate being sampled runs.
    Found,
    /// An earlier candidate runs.
    Over,
}

/// A sample being taken. Its kernels may have candidates of their own.
#[derive(Debug)]
struct Frame {
    sample: Sample,
    launched: bool,
    inner: Search,
}

/// Follows the samples of all choices, as the device's server sees them.
#[derive(Debug, Default)]
pub struct FirstThatRuns {
    outer: Search,
    frames: Vec<Frame>,
}

impl FirstThatRuns {
    fn search(&mut self) -> &mut Search {
        self.frames.last_mut().map_or(&mut self.outer, |frame| &mut frame.inner)
    }

    /// Notes that another candidate begins; tuning flushes the device before each.
    pub fn begin_candidate(&mut self) {
        let search = self.search();
        if *search == Search::Found {
            *search = Search::Over;
        }
    }

    /// Begins a sample.
    pub fn begin_sample(&mut self) {
        let sample = match self.search() {
            Search::Open => Sample::Real,
            Search::Found => Sample::Pretended(OF_WINNER),
            Search::Over => Sample::Pretended(OF_OTHERS),
        };
        self.frames.push(Frame { sample, launched: false, inner: Search::Open });
    }

    /// Reports whether a kernel is to be launched. A launch outside samples ends the choice before it.
    pub fn launch(&mut self) -> bool {
        *self.search() = Search::Open;
        self.frames.last_mut().is_none_or(|frame| {
            frame.launched = true;
            frame.sample == Sample::Real
        })
    }

    /// Returns the handling of the newest sample.
    pub fn sample(&self) -> Sample {
        self.frames.last().map_or(Sample::Real, |frame| frame.sample)
    }

    /// Ends the newest sample. A candidate that launched nothing does not run: it was refused on the host.
    pub fn end_sample(&mut self, succeeded: bool) {
        let Some(frame) = self.frames.pop() else { return };
        if frame.sample == Sample::Real && frame.launched && succeeded {
            *self.search() = Search::Found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FirstThatRuns;

    /// How a candidate behaves.
    #[derive(Clone, Copy, PartialEq)]
    enum Candidate {
        Runs,
        FailsOnTheDevice,
        IsRefusedOnTheHost,
    }
    use Candidate::{FailsOnTheDevice, IsRefusedOnTheHost, Runs};

    /// Samples candidates as CubeCL does, and returns the launches of each.
    fn tune(choice: &mut FirstThatRuns, candidates: &[Candidate]) -> Vec<usize> {
        let sampled = |candidate: &Candidate| {
            choice.begin_candidate();
            let mut launches = 0;
            for _ in 0..13 {
                choice.begin_sample();
                launches += usize::from(*candidate != IsRefusedOnTheHost && choice.launch());
                choice.end_sample(*candidate != FailsOnTheDevice);
            }
            launches
        };
        candidates.iter().map(sampled).collect()
    }

    #[test]
    fn only_the_first_that_runs_is_launched_and_once() {
        let mut choice = FirstThatRuns::default();
        assert_eq!(tune(&mut choice, &[Runs, Runs, Runs]), [1, 0, 0]);
        assert!(choice.launch(), "the chosen kernel itself");
        assert_eq!(tune(&mut choice, &[IsRefusedOnTheHost, Runs, Runs]), [0, 1, 0]);
        assert!(choice.launch());
        assert_eq!(tune(&mut choice, &[FailsOnTheDevice, Runs]), [13, 1]);
    }

    #[test]
    fn the_first_that_runs_has_the_shortest_duration() {
        use super::{OF_OTHERS, OF_WINNER, Sample};
        let mut choice = FirstThatRuns::default();
        let mut samples = Vec::new();
        for _ in 0..2 {
            choice.begin_candidate();
            for _ in 0..2 {
                choice.begin_sample();
                choice.launch();
                samples.push(choice.sample());
                choice.end_sample(true);
            }
        }
        let [winner, others] = [OF_WINNER, OF_OTHERS].map(Sample::Pretended);
        assert_eq!(samples, [Sample::Real, winner, others, others]);
        assert!(OF_WINNER < OF_OTHERS);
    }

    #[test]
    fn a_choice_inside_a_sample_is_one_of_its_own() {
        let mut choice = FirstThatRuns::default();
        choice.begin_candidate();
        choice.begin_sample();
        assert_eq!(tune(&mut choice, &[FailsOnTheDevice, Runs, Runs]), [13, 1, 0]);
        assert!(choice.launch());
        choice.end_sample(true);
        choice.begin_sample();
        assert!(!choice.launch(), "the outer candidate runs already");
        assert_eq!(tune(&mut choice, &[Runs, Runs]), [1, 0], "a choice that comes up late is made all the same");
    }
}
