//! Which evaluation measured the weights of a checkpoint.
//!
//! ```text
//!   step 49   step 50   evaluation 50   step 51     the order of the lines is certain; a file has its place among them
//!        ├────────────────┤                         to within its clock and the reading of the lines
//! ```
//! No step lies between this file and evaluation 50, so both have the same weights, whether the script evaluates before
//! it saves or after.

use super::{Evaluation, Trail};
use std::time::Duration;

/// Most checkpoints that are remembered.
const MOST: usize = 1024;
/// A file's timestamp may lag behind the clock by this much: one timer interrupt.
pub const FILE_CLOCK: Duration = Duration::from_millis(10);
/// A line may be read this much later than it was printed, while other processes have the cores.
const LATE: Duration = Duration::from_millis(20);
/// Steps whose pace is measured.
const PACE: usize = 32;

/// The number in the name of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// It counts steps.
    Step(u64),
    /// It counts epochs.
    Epoch(u64),
    /// There is none.
    Nothing,
}

/// A checkpoint that the command wrote.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Checkpoint {
    step: u64,
    named: Named,
    written: Duration,
    /// The step of the evaluation that measured it.
    pub(super) evaluation: Option<u64>,
    is_adopted: bool,
}

impl Checkpoint {
    pub(super) fn step(&self) -> u64 {
        self.step
    }
}

impl Trail {
    /// Returns the step of a checkpoint that was written at a time, and remembers it for the evaluation that may follow.
    /// They come in the order in which they were written.
    pub fn add_checkpoint(&mut self, named: Named, written: Duration) -> Option<u64> {
        let evaluation = self.find_evaluation(named, written);
        let step = match named {
            Named::Step(step) => step,
            Named::Epoch(_) | Named::Nothing => evaluation.or_else(|| self.find_step(written + FILE_CLOCK / 2))?,
        };
        self.checkpoints.push_back(Checkpoint { step, named, written, evaluation, is_adopted: false });
        if self.checkpoints.len() > MOST {
            self.checkpoints.pop_front();
        }
        Some(step)
    }

    /// Records that a checkpoint was adopted. Returns the step of the evaluation that measured it, if it is known.
    pub fn adopt_checkpoint(&mut self, step: u64) -> Option<u64> {
        let checkpoint = self.checkpoints.iter_mut().rev().find(|checkpoint| checkpoint.step == step)?;
        checkpoint.is_adopted = true;
        checkpoint.evaluation
    }

    /// Finds the checkpoints that a newer evaluation measured: the script saves, and then evaluates. Returns their steps and
    /// that of the evaluation.
    pub fn match_checkpoints(&mut self) -> Vec<(u64, u64)> {
        let waiting = self.checkpoints.iter().copied().enumerate().filter(|(_, checkpoint)| self.waits(checkpoint));
        let waiting: Vec<(usize, Checkpoint)> = waiting.collect();
        let mut matched = Vec::new();
        for (place, checkpoint) in waiting {
            let found = self.find_evaluation(checkpoint.named, checkpoint.written);
            if found.is_none() || found == checkpoint.evaluation {
                continue;
            }
            self.checkpoints[place].evaluation = found;
            matched.extend(found.filter(|_| checkpoint.is_adopted).map(|found| (checkpoint.step, found)));
        }
        matched
    }

    /// Reports whether another evaluation may be that of a checkpoint: the one that has the epoch of its name.
    fn waits(&self, checkpoint: &Checkpoint) -> bool {
        let known = checkpoint.evaluation.and_then(|step| self.evaluations.iter().find(|known| known.step == step));
        known.is_none_or(|known| matches!(checkpoint.named, Named::Epoch(epoch) if known.epoch != Some(epoch)))
    }

    /// Returns the step of the evaluation that measured the weights of a checkpoint. No step was taken between the two. Where
    /// several evaluations may be meant, the epoch in the name decides, then the distance.
    fn find_evaluation(&mut self, named: Named, written: Duration) -> Option<u64> {
        let ((first, last), near) = (self.place(written), self.claim_within());
        let counts_alike = self.counts_epochs_alike();
        let has = |step: u64| self.evaluations.iter().any(|found| found.step == step);
        if let Named::Step(step) = named
            && (has(step) || first < last)
        {
            return Some(step).filter(|step| has(*step));
        }
        let agrees = |found: &Evaluation| match named {
            // The name counts from 0 and the output from 1, or the other way round.
            Named::Step(step) => found.step.abs_diff(step) == 1,
            Named::Epoch(_) | Named::Nothing => true,
        };
        let is_named = |found: &Evaluation| matches!(named, Named::Epoch(epoch) if found.epoch == Some(epoch));
        // A file that was written well after another one of this evaluation holds later weights.
        let is_free = |found: &Evaluation| found.measured.is_none_or(|other| other.abs_diff(written) <= near);
        let is_beside = |found: &Evaluation| found.after.0 <= last && found.after.1 >= first;
        let rank = |found: &Evaluation| (!is_named(found), found.time.abs_diff(written));
        let beside = self.evaluations.iter_mut().filter(|found| is_beside(found) && is_free(found) && agrees(found));
        let found = match beside.min_by_key(|found| rank(found)) {
            Some(found) => found,
            // It was written while the next steps were taken.
            None => {
                self.evaluations.iter_mut().rev().find(|found| counts_alike && is_named(found) && is_free(found))?
            }
        };
        found.measured.get_or_insert(written);
        Some(found.step)
    }

    /// Reports whether names of checkpoints and the output count epochs from the same number, as far as the order of both
    /// tells.
    fn counts_epochs_alike(&self) -> bool {
        let epoch_of = |step: u64| self.evaluations.iter().find(|found| found.step == step)?.epoch;
        self.checkpoints.iter().all(|checkpoint| match (checkpoint.named, checkpoint.evaluation.and_then(epoch_of)) {
            (Named::Epoch(named), Some(printed)) => named == printed,
            _ => true,
        })
    }

    /// Returns how many steps had been recorded when a file was written, at least and at most.
    fn place(&self, written: Duration) -> (u64, u64) {
        let first = self.steps.partition_point(|(read, _)| *read < written) as u64;
        let last = self.steps.partition_point(|(read, _)| *read <= written + FILE_CLOCK + LATE) as u64;
        (self.forgotten + first, self.forgotten + last)
    }

    /// Returns the longest time between two files with the weights of one step. Where each step is printed, none is taken
    /// unseen.
    fn claim_within(&self) -> Duration {
        let newest = self.steps.len().saturating_sub(1);
        let oldest = newest.saturating_sub(PACE);
        let (Some((begun, first)), Some((ended, last))) = (self.steps.get(oldest), self.steps.get(newest)) else {
            return Duration::MAX;
        };
        let (printed, taken) = ((newest - oldest) as u64, last - first);
        if taken <= printed + 1 {
            return Duration::MAX;
        }
        FILE_CLOCK.max(ended.saturating_sub(*begun).div_f64(taken as f64))
    }
}
