//! The samples of each optimizer step.
//!
//! ```text
//! epoch    |<------------- samples of the epoch ------------->|
//! steps    |   effective batch   |   effective batch   | rest |
//! micros   | micro | micro | mi..| ...
//! ```
//! A step never crosses an epoch boundary. The last step of an epoch may be smaller; gradients are weighted
//! by actual sample counts.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The position of a run in its data, in **units**: samples, or tokens for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// Epochs completed.
    pub epoch: u64,
    /// Units consumed within the current epoch.
    pub offset: u64,
    /// Units consumed since the first step: the clock of the run.
    pub samples: u64,
}

/// The split of a data set into optimizer steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// Samples in one epoch.
    pub epoch_samples: u64,
    /// Units per sample on the clock: 1, or the sequence length in tokens for text.
    pub units: u64,
    /// Samples per forward and backward pass.
    pub micro_batch: u64,
    /// Passes per optimizer step.
    pub accumulation: u64,
}

/// One optimizer step's share of the epoch's order, cut into micro-batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlan {
    /// The epoch whose order the ranges index.
    pub epoch: u64,
    /// One range of the epoch's order per micro-batch; never empty.
    pub micro_batches: Vec<Range<usize>>,
    /// The run's position after the step.
    pub after: Position,
}

impl StepPlan {
    /// Returns the number of samples in the whole step.
    pub fn samples(&self) -> usize {
        self.micro_batches.iter().map(ExactSizeIterator::len).sum()
    }
}

impl BatchPlan {
    /// Returns the samples per optimizer step; the last step of an epoch may have fewer.
    #[must_use]
    pub fn effective_batch(&self) -> u64 {
        self.micro_batch * self.accumulation
    }

    /// Returns the units in one epoch.
    #[must_use]
    pub fn epoch_units(&self) -> u64 {
        self.epoch_samples * self.units
    }

    /// Returns the optimizer steps in one epoch, including the partial last one.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.epoch_samples.div_ceil(self.effective_batch())
    }

    /// Returns the units consumed by the first `steps` optimizer steps of a run.
    #[must_use]
    pub fn units_of_steps(&self, steps: u64) -> u64 {
        let rest = (steps % self.steps_per_epoch() * self.effective_batch()).saturating_mul(self.units);
        (steps / self.steps_per_epoch()).saturating_mul(self.epoch_units()).saturating_add(rest)
    }

    /// Returns the step that starts at `from`.
    #[must_use]
    pub fn step(&self, from: Position) -> StepPlan {
        let first = from.offset / self.units;
        let (epoch, first, skipped) = if first >= self.epoch_samples {
            (from.epoch + 1, 0, 0)
        } else {
            (from.epoch, first, from.offset % self.units)
        };
        let last = (first + self.effective_batch()).min(self.epoch_samples);
        let mut micro_batches = Vec::new();
        let mut start = first;
        while start < last {
            let end = (start + self.micro_batch).min(last);
            micro_batches.push(index(start)..index(end));
            start = end;
        }
        let consumed = (last - first) * self.units - skipped;
        let after = if last == self.epoch_samples {
            Position { epoch: epoch + 1, offset: 0, samples: from.samples + consumed }
        } else {
            Position { epoch, offset: last * self.units, samples: from.samples + consumed }
        };
        StepPlan { epoch, micro_batches, after }
    }

    /// Returns the number of steps from `from` until the clock reaches `total_units`.
    #[must_use]
    pub fn steps_left(&self, from: Position, total_units: u64) -> u64 {
        let left = total_units.saturating_sub(from.samples);
        if left == 0 {
            return 0;
        }
        let in_epoch = self.epoch_units().saturating_sub(from.offset);
        let step_units = self.effective_batch() * self.units;
        if left <= in_epoch {
            return left.div_ceil(step_units);
        }
        let after = left - in_epoch;
        in_epoch.div_ceil(step_units)
            + after / self.epoch_units() * self.steps_per_epoch()
            + (after % self.epoch_units()).div_ceil(step_units)
    }
}

fn index(sample: u64) -> usize {
    usize::try_from(sample).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::{BatchPlan, Position};
    use proptest::prelude::*;

    fn plan() -> impl Strategy<Value = BatchPlan> {
        (1u64..200, 1u64..5, 1u64..20, 1u64..6).prop_map(|(epoch_samples, units, micro_batch, accumulation)| {
            BatchPlan { epoch_samples, units, micro_batch, accumulation }
        })
    }

    proptest! {
        #[test]
        fn an_epoch_is_consumed_exactly_once(plan in plan()) {
            let mut seen = vec![0; usize::try_from(plan.epoch_samples).unwrap()];
            let (mut at, mut steps) = (Position::default(), 0);
            while at.epoch == 0 {
                let step = plan.step(at);
                for range in &step.micro_batches {
                    prop_assert!(!range.is_empty() && range.len() as u64 <= plan.micro_batch);
                    for sample in range.clone() { seen[sample] += 1; }
                }
                at = step.after;
                steps += 1;
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
            prop_assert_eq!(steps, plan.steps_per_epoch());
            prop_assert_eq!(at.samples, plan.epoch_units());
        }

        #[test]
        fn a_class_a_shift_moves_no_border(plan in plan(), factor in 1u64..4, steps in 0usize..40) {
            let other = BatchPlan { micro_batch: plan.micro_batch * factor, ..plan };
            let finer = BatchPlan { accumulation: plan.accumulation * factor, ..plan };
            let (mut a, mut b) = (Position::default(), Position::default());
            for _ in 0..steps {
                a = other.step(a).after;
                b = finer.step(b).after;
                prop_assert_eq!(a, b);
            }
        }

        #[test]
        fn units_of_steps_agrees_with_walking(plan in plan(), steps in 0u64..60) {
            let mut at = Position::default();
            for _ in 0..steps { at = plan.step(at).after; }
            prop_assert_eq!(plan.units_of_steps(steps), at.samples);
        }

        #[test]
        fn steps_left_agrees_with_walking(plan in plan(), epochs in 1u64..4, walked in 0usize..30) {
            let total = plan.epoch_units() * epochs;
            let mut at = Position::default();
            for _ in 0..walked { if at.samples < total { at = plan.step(at).after; } }
            let promised = plan.steps_left(at, total);
            let mut taken = 0;
            while at.samples < total { at = plan.step(at).after; taken += 1; }
            prop_assert_eq!(promised, taken);
        }
    }
}
