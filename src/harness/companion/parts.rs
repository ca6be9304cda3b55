//! The parts of a checkpoint: each rank writes its own, and the checkpoint is whole once all have. A training of one
//! process is the case of one part. Pure.

use crate::harness::companion_link::Member;
use crate::protocol::companion::Staged;
use std::collections::BTreeMap;

/// A checkpoint of which every part is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// The part of rank 0.
    pub first: Staged,
    /// Those of the other ranks, in their order.
    pub others: Vec<Staged>,
}

impl Whole {
    /// Returns the folders of all parts.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.first).chain(&self.others).map(|staged| staged.folder.as_str())
    }

    /// Returns the longest stop of a rank, in milliseconds.
    pub fn pause_ms(&self) -> f64 {
        self.others.iter().map(|staged| staged.pause_ms).fold(self.first.pause_ms, f64::max)
    }
}

/// The parts that wait for those of other ranks.
#[derive(Debug, Default)]
pub struct Parts {
    by_step: BTreeMap<u64, BTreeMap<u32, Staged>>,
    /// The newest step of which a part is missing for good.
    failed: Option<u64>,
}

/// The effect of a part.
#[derive(Debug, PartialEq)]
pub enum Added {
    /// It was the last one.
    Whole(Whole),
    /// Others are missing.
    Waiting,
    /// Another rank could not write its part.
    Failed(Staged),
}

impl Parts {
    /// Adds the part of a rank.
    pub fn add(&mut self, Member { rank, world, .. }: Member, staged: Staged) -> Added {
        if self.failed == Some(staged.step) {
            return Added::Failed(staged);
        }
        let step = staged.step;
        let parts = self.by_step.entry(step).or_default();
        parts.insert(rank, staged);
        if parts.len() < world as usize {
            return Added::Waiting;
        }
        let mut whole = self.by_step.remove(&step).unwrap_or_default().into_values();
        match whole.next() {
            Some(first) => Added::Whole(Whole { first, others: whole.collect() }),
            None => Added::Waiting,
        }
    }

    /// Gives up a step: a rank could not write its part. Returns the parts to discard.
    pub fn fail(&mut self, step: u64) -> Vec<Staged> {
        self.failed = Some(step);
        self.by_step.remove(&step).unwrap_or_default().into_values().collect()
    }

    /// Gives up everything that is not whole: a rank is gone. Returns the parts to discard.
    pub fn clear(&mut self) -> Vec<Staged> {
        std::mem::take(self).by_step.into_values().flat_map(BTreeMap::into_values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Added, Member, Parts};
    use crate::protocol::companion::Staged;

    fn part(step: u64, rank: u32) -> (Member, Staged) {
        let folder = format!(".new-step-{step:09}.{}", 40 + rank);
        let staged = Staged { step, samples: step, folder, pause_ms: f64::from(rank) };
        (Member { pid: 40 + rank, rank, world: 3 }, staged)
    }

    #[test]
    fn a_checkpoint_is_whole_once_every_rank_has_written_its_part() {
        let mut parts = Parts::default();
        let mut add = |step, rank| {
            let (member, staged) = part(step, rank);
            parts.add(member, staged)
        };
        assert_eq!((add(5, 2), add(5, 0), add(6, 0)), (Added::Waiting, Added::Waiting, Added::Waiting));
        assert_eq!(add(5, 0), Added::Waiting, "the same rank again");
        let Added::Whole(whole) = add(5, 1) else { panic!("all three") };
        let folders: Vec<&str> = whole.folders().collect();
        assert_eq!(folders, [".new-step-000000005.40", ".new-step-000000005.41", ".new-step-000000005.42"]);
        assert!((whole.pause_ms() - 2.0).abs() < f64::EPSILON);
        let (member, staged) = part(7, 0);
        assert!(matches!(parts.add(Member { world: 1, ..member }, staged), Added::Whole(_)), "one process");
    }

    #[test]
    fn a_part_that_cannot_be_written_gives_up_those_of_the_other_ranks() {
        let mut parts = Parts::default();
        let (member, staged) = part(5, 0);
        parts.add(member, staged.clone());
        assert_eq!(parts.fail(5), [staged]);
        let (member, staged) = part(5, 1);
        assert_eq!(parts.add(member, staged.clone()), Added::Failed(staged), "it comes later");
        let (member, staged) = part(6, 1);
        assert_eq!(parts.add(member, staged.clone()), Added::Waiting);
        assert_eq!(parts.clear(), [staged]);
        assert!(parts.clear().is_empty());
    }
}
