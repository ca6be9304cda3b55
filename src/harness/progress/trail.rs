//! When the output counted which step, and when it reported which evaluation. It tells the step of a checkpoint whose
//! name has none, and which evaluation measured its weights.

mod written;

pub use written::{FILE_CLOCK, Named};

use std::collections::VecDeque;
use std::time::Duration;

/// Most steps that are remembered.
const MOST: usize = 16_384;
/// Most evaluations that are remembered.
const MOST_EVALUATIONS: usize = 1024;
/// Uncertainty of a step that is read off the trail: a bar is drawn before its step or after it, and not for each one.
const STEPS: f64 = 1.0;
/// Difference below which a number and the step beside it may be the same.
const NEAR: u64 = 4;
/// Intervals at which scripts save.
const ROUND: [u64; 4] = [1000, 500, 100, 10];

/// The newest steps and evaluations, with the time of each on the harness's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trail {
    steps: VecDeque<(Duration, u64)>,
    /// Steps that were recorded and are not remembered any more.
    forgotten: u64,
    evaluations: VecDeque<Evaluation>,
    checkpoints: VecDeque<written::Checkpoint>,
}

/// An evaluation, as it was reported.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Evaluation {
    step: u64,
    epoch: Option<u64>,
    time: Duration,
    /// Steps recorded before it; both numbers differ if its line named its step, which may have been taken before.
    after: (u64, u64),
    /// When the checkpoint was written that it measured.
    measured: Option<Duration>,
}

impl Trail {
    /// Records that the output counts a step, if it is a later one.
    pub fn record(&mut self, step: u64, now: Duration) {
        let newest = self.steps.back().copied();
        if newest.is_some_and(|(_, newest)| step <= newest) {
            return;
        }
        // Two sources may report in another order than it happened.
        self.steps.push_back((newest.map_or(now, |(time, _)| now.max(time)), step));
        if self.steps.len() > MOST {
            self.steps.pop_front();
            self.forgotten += 1;
        }
    }

    /// Records that an evaluation at a step is reported. One that reports more and more of itself is one. `names_step`:
    /// the same line named the step.
    pub fn record_evaluation(&mut self, step: u64, epoch: Option<u64>, names_step: bool, now: Duration) {
        if let Some(known) = self.evaluations.iter_mut().rev().find(|known| known.step == step) {
            known.epoch = known.epoch.or(epoch);
            return;
        }
        let behind = self.forgotten + self.steps.len() as u64;
        let own = u64::from(names_step && self.steps.back().is_some_and(|(_, newest)| *newest == step));
        let after = (behind - own, behind);
        self.evaluations.push_back(Evaluation { step, epoch, time: now, after, measured: None });
        if self.evaluations.len() > MOST_EVALUATIONS {
            self.evaluations.pop_front();
        }
    }

    /// Forgets what was reported after a step: another process of the command takes those steps again.
    pub fn go_back(&mut self, step: u64) {
        self.steps.retain(|(_, taken)| *taken <= step);
        self.evaluations.retain(|evaluation| evaluation.step <= step);
        self.checkpoints.retain(|checkpoint| checkpoint.step() <= step);
    }

    /// Reports whether a number in the name of a checkpoint is too low to be the step of a file written at this time: it
    /// counts epochs. A count with wide gaps around that time proves nothing.
    #[must_use]
    pub fn is_beyond(&self, number: u64, at: Duration) -> bool {
        let after = self.steps.partition_point(|(time, _)| *time < at).min(self.steps.len().saturating_sub(1));
        let (Some((_, before)), Some((_, behind))) =
            (after.checked_sub(1).and_then(|at| self.steps.get(at)), self.steps.get(after))
        else {
            return false;
        };
        let gap = behind - before;
        number < before / 2 && before - number > 2 * gap + NEAR
    }

    /// Returns the step that had been taken at a time, and the steps between two that were recorded around it.
    #[must_use]
    pub fn find_step_within(&self, at: Duration) -> Option<(u64, u64)> {
        let step = self.find_step(at)?;
        let behind =
            self.steps.partition_point(|(time, _)| *time < at).clamp(1, self.steps.len().saturating_sub(1).max(1));
        let gap = self.steps.get(behind).map_or(1, |(_, later)| later - self.steps[behind - 1].1);
        Some((step, gap.max(1)))
    }

    /// Returns the step that had been taken at a time; none if that is not remembered. Among those that it may be, a round
    /// number is the likeliest: scripts save every 10 or 100 steps.
    #[must_use]
    pub fn find_step(&self, at: Duration) -> Option<u64> {
        let after = self.steps.partition_point(|(time, _)| *time < at);
        let (begun, before) = *self.steps.get(after.checked_sub(1)?)?;
        let Some((ended, behind)) = self.steps.get(after) else { return Some(before) };
        let share = at.saturating_sub(begun).as_secs_f64() / ended.saturating_sub(begun).as_secs_f64();
        let likeliest = before as f64 + share * (behind - before) as f64;
        let least = before.max((likeliest - STEPS).ceil() as u64);
        let most = (*behind).min((likeliest + STEPS).floor() as u64);
        let round = ROUND.iter().map(|interval| most / interval * interval).find(|step| *step >= least.max(1));
        Some(round.unwrap_or(likeliest.round() as u64))
    }
}

#[cfg(test)]
mod tests;
