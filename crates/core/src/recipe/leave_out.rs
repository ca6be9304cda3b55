//! Data that a run leaves out: around a loss spike, or a step that failed twice. Ranges are on the clock of
//! the run, so a change of batch size does not move them.

use super::batch::{BatchPlan, Position};
use std::fmt;
use std::str::FromStr;

/// Ranges of the clock; a step that would begin in one of them is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaveOut(Vec<(u64, u64)>);

impl LeaveOut {
    /// Builds the ranges from pairs of first unit and first unit after the range.
    #[must_use]
    pub fn new(ranges: Vec<(u64, u64)>) -> Self {
        Self(ranges)
    }

    /// Reports whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether a step that begins at `samples` on the clock is left out.
    #[must_use]
    pub fn covers(&self, samples: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..*to).contains(&samples))
    }

    /// Returns the first position, at or after `at`, of a step that is not left out.
    #[must_use]
    pub fn next_step_start(&self, plan: &BatchPlan, mut at: Position) -> Position {
        while self.covers(at.samples) {
            at = plan.step(at).after;
        }
        at
    }
}

impl fmt::Display for LeaveOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(|(from, to)| format!("{from}-{to}")).collect();
        formatter.write_str(&ranges.join(","))
    }
}

/// A part of the text that is not a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range; use the form 640-1280")]
pub struct InvalidRange(String);

impl FromStr for LeaveOut {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let range = |part: &str| {
            let (from, to) = part.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        };
        let parts = text.split(',').filter(|part| !part.is_empty());
        let ranges = parts.map(|part| range(part).ok_or_else(|| InvalidRange(part.to_owned())));
        ranges.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::LeaveOut;
    use crate::recipe::batch::{BatchPlan, Position};
    use proptest::prelude::*;

    #[test]
    fn ranges_round_trip_as_text() {
        let out = LeaveOut::new(vec![(64, 128), (300, 301)]);
        assert_eq!(out.to_string(), "64-128,300-301");
        assert_eq!(out.to_string().parse(), Ok(out));
        assert_eq!("".parse(), Ok(LeaveOut::default()));
        assert!("7".parse::<LeaveOut>().is_err() && "a-b".parse::<LeaveOut>().is_err());
    }

    proptest! {
        #[test]
        fn every_step_outside_the_ranges_is_taken_once_and_none_inside(
            samples in 1u64..200, micro_batch in 1u64..20, from in 0u64..300, length in 1u64..200,
        ) {
            let plan = BatchPlan { epoch_samples: samples, units: 1, micro_batch, accumulation: 1 };
            let out = LeaveOut::new(vec![(from, from + length)]);
            let (mut at, mut plain) = (Position::default(), Position::default());
            let mut expected = Vec::new();
            while plain.samples < 600 {
                if !(from..from + length).contains(&plain.samples) { expected.push(plain); }
                plain = plan.step(plain).after;
            }
            let mut taken = Vec::new();
            while out.next_step_start(&plan, at).samples < 600 {
                at = out.next_step_start(&plan, at);
                taken.push(at);
                at = plan.step(at).after;
            }
            prop_assert_eq!(taken, expected);
        }
    }
}
