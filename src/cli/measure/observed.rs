//! Observations of a command while it is measured, and the figures computed from them. Pure.

use super::Measurement;
use super::card::Peak;
use super::isolated_worker::median;
use crate::protocol::exit::Exit;
use crate::protocol::plan::{Measured, Phases};
use crate::protocol::worker::{CommandNews, Event, Failed, Hello, Step};
use std::time::Duration;

/// Everything seen of one attempt.
#[derive(Debug, Default)]
pub struct Observed {
    hello: Option<Hello>,
    steps: Vec<Step>,
    first_step: Option<Duration>,
    /// Peak host memory of its processes.
    pub ram: Option<u64>,
    /// Peak memory on the card that it uses most.
    pub vram: Option<Peak>,
    /// How the command ended, if it did.
    pub exit: Option<(u32, Exit)>,
    /// Why the harness ended it.
    pub failed: Option<Failed>,
}

impl Observed {
    /// Takes an event of the harness, this long after the start.
    pub fn take(&mut self, event: Event, since: Duration) {
        match event {
            Event::Hello(hello) => self.hello = Some(hello),
            Event::Step(step) => {
                self.first_step.get_or_insert(since);
                self.steps.push(step);
            }
            Event::Failed(failed) => self.failed = Some(failed),
            Event::Command { news: CommandNews::Ended { pid, code, signal, .. } } => {
                self.exit = Some((pid, Exit::of_command(code, signal)));
            }
            _ => {}
        }
    }

    /// Takes the host memory at this moment.
    pub fn take_ram(&mut self, now: Option<u64>) {
        self.ram = self.ram.max(now);
    }

    /// Reports whether any step was reported.
    pub fn has_begun(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Reports whether this many steps were taken. A script that reports every tenth one has taken ten at its first
    /// report, but two reports are needed for a rate.
    pub fn has_taken(&self, steps: u64) -> bool {
        let ends = self.steps.first().zip(self.steps.last());
        ends.is_some_and(|(first, last)| {
            self.steps.len() as u64 >= steps.min(2) && last.step.saturating_sub(first.step) + 1 >= steps
        })
    }

    /// Returns the memory of the device that decides whether the command fits: the card's, or the host's without one.
    pub fn needed(&self, on_card: bool) -> Option<u64> {
        if on_card { self.vram.map(|peak| peak.bytes) } else { self.ram }
    }

    /// Returns the figures.
    pub fn measurement(&self, on_card: bool) -> Measurement {
        let step_ms = self.step_ms();
        let samples_of_step = self.hello.as_ref().filter(|hello| hello.unit != "steps").and_then(|_| {
            let last = self.steps.last().filter(|last| last.step > 0)?;
            Some(last.samples as f64 / last.step as f64)
        });
        let figures = Measured {
            peak_bytes: self.needed(on_card),
            of_card: on_card && self.vram.is_some_and(|peak| peak.of_card),
            ram: Phases { training: self.ram.unwrap_or(0), ..Phases::default() },
            steps_per_s: step_ms.map(|ms| 1e3 / ms),
            step_ms,
            units_per_s: step_ms.zip(samples_of_step).map(|(ms, samples)| samples * 1e3 / ms),
            steps: self.steps.last().map_or(0, |last| last.step),
            loss: self.steps.iter().rev().find_map(|step| step.loss),
            first_step_s: self.first_step.map(|took| took.as_secs_f64()),
            ..Measured::default()
        };
        let losses = self.steps.iter().filter_map(|step| Some((step.step, step.loss?))).collect();
        Measurement { figures, losses }
    }

    /// Returns the median time of a step. The time until the first report is that of loading and compiling.
    fn step_ms(&self) -> Option<f64> {
        median(self.steps.iter().skip(1).map(|step| step.compute_ms).filter(|ms| *ms > 0.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Observed;
    use crate::protocol::worker::{Event, Step};
    use std::time::Duration;

    fn step(step: u64, compute_ms: f64, loss: Option<f64>) -> Event {
        Event::Step(Step { step, samples: step * 4, compute_ms, loss, ..Step::default() })
    }

    fn seen(events: Vec<Event>) -> Observed {
        let mut seen = Observed::default();
        for event in events {
            seen.take(event, Duration::from_secs(3));
        }
        seen
    }

    #[test]
    fn a_rate_is_the_median_of_the_steps_that_were_measured() {
        let rare = seen(vec![step(10, 9000.0, Some(2.0)), step(20, 40.0, None), step(30, 60.0, Some(1.0))]);
        let all = rare.measurement(false);
        assert_eq!((all.figures.step_ms, all.figures.steps, all.figures.loss), (Some(60.0), 30, Some(1.0)));
        assert_eq!(all.figures.first_step_s, Some(3.0));
        assert_eq!(all.losses.into_iter().collect::<Vec<_>>(), [(10, 2.0), (30, 1.0)]);
        assert_eq!(seen(Vec::new()).measurement(true).figures, super::Measured::default());
    }

    #[test]
    fn enough_steps_need_two_reports() {
        let taken = |numbers: &[u64], steps| {
            seen(numbers.iter().map(|number| step(*number, 1.0, None)).collect()).has_taken(steps)
        };
        assert!(!taken(&[], 1) && taken(&[1], 1));
        assert!(!taken(&[1, 2, 3, 4], 5) && taken(&[1, 2, 3, 4, 5], 5));
        assert!(!taken(&[10], 5) && taken(&[10, 20], 5));
        assert!(!taken(&[5000, 5001], 5), "a script that counts on from an earlier training");
    }
}
