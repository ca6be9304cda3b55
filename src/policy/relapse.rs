//! Detects checkpoints that verify but hold bad state: workers that load one all fail in the same way,
//! soon after. After the second such failure the next start goes one checkpoint back. If that one fails in the same way,
//! the checkpoints are not to blame.

use serde::{Deserialize, Serialize};

/// A failure within this many steps after a load may be the checkpoint's fault.
const NEAR: u64 = 20;

/// The last failure shortly after a load. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Relapse {
    last: Option<(u64, String)>,
    #[serde(default)]
    suspects: Option<Suspects>,
}

/// The checkpoints that the run went back from, until training is past them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Suspects {
    /// Their steps.
    steps: Vec<u64>,
    /// The failure of the workers that loaded them.
    kind: String,
    /// A worker that had loaded an older checkpoint failed in the same way.
    are_innocent: bool,
}

impl Suspects {
    /// Reports whether a failure is like theirs, and no later.
    fn resemble(&self, step: u64, kind: &str) -> bool {
        self.kind == kind && self.steps.iter().any(|suspect| step <= suspect + NEAR)
    }
}

/// Reports whether a worker failed soon after it had loaded a checkpoint.
pub(super) fn is_soon(loaded: Option<u64>, step: Option<u64>) -> bool {
    loaded.zip(step).is_some_and(|(loaded, step)| step.saturating_sub(loaded) <= NEAR)
}

impl Relapse {
    /// Counts a fault at `step` of a worker that had loaded the checkpoint of step `loaded`. `kind`
    /// identifies equal faults; it is none for faults from outside, which say nothing about the
    /// checkpoint. Returns true when the next start should go one checkpoint back.
    pub fn fault(&mut self, loaded: Option<u64>, step: Option<u64>, kind: Option<&str>) -> bool {
        let Some(kind) = kind else { return false };
        let near = loaded.zip(step).filter(|_| is_soon(loaded, step));
        if let Some(((suspects, loaded), step)) = self.suspects.as_mut().zip(loaded).zip(step) {
            suspects.are_innocent |= !suspects.steps.contains(&loaded);
            self.suspects.take_if(|suspects| !suspects.resemble(step, kind));
        }
        let this = near.map(|(loaded, _)| (loaded, kind.to_owned()));
        let again = this.is_some() && this == self.last;
        if let Some((loaded, kind)) = this.as_ref().filter(|_| again) {
            let none = || Suspects { steps: Vec::new(), kind: kind.clone(), are_innocent: false };
            self.suspects.get_or_insert_with(none).steps.push(*loaded);
        }
        self.last = if again { None } else { this };
        again
    }

    /// Takes the checkpoints that the run went back from, if it then failed in the same way. A run with a checkpoint
    /// beyond them has no use for them.
    pub fn take_innocent(&mut self, durable: Option<u64>) -> Vec<u64> {
        let suspects = self.suspects.take().filter(|suspects| suspects.are_innocent);
        let suspects = suspects.map_or_else(Vec::new, |suspects| suspects.steps);
        suspects.into_iter().filter(|step| Some(*step) > durable).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Relapse;

    #[test]
    fn checkpoints_that_failed_like_an_older_one_are_innocent() {
        /// A name, the failures (loaded, step, kind), and the innocent checkpoints.
        type Case = (&'static str, &'static [(u64, u64, &'static str)], &'static [u64]);
        let table: [Case; 7] = [
            ("only one failed", &[(100, 101, "x"), (100, 101, "x")], &[]),
            ("the older one failed alike", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "x")], &[100]),
            ("both failed twice", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "x"), (50, 51, "x")], &[100, 50]),
            ("the older one failed in another way", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "y")], &[]),
            ("the older one failed further on", &[(100, 101, "x"), (100, 101, "x"), (50, 101, "x")], &[100]),
            ("the older one trained past it", &[(100, 101, "x"), (100, 101, "x"), (50, 121, "x")], &[]),
            (
                "a later one fails",
                &[(100, 101, "x"), (100, 101, "x"), (50, 190, "x"), (180, 181, "x"), (180, 181, "x")],
                &[],
            ),
        ];
        for (name, faults, wanted) in table {
            let mut relapse = Relapse::default();
            for (loaded, step, kind) in faults {
                relapse.fault(Some(*loaded), Some(*step), Some(kind));
            }
            assert_eq!(relapse.clone().take_innocent(Some(1_000)), [0; 0], "{name}: training is beyond them");
            assert_eq!(relapse.take_innocent(Some(10)), wanted, "{name}");
            assert!(relapse.take_innocent(Some(10)).is_empty(), "{name}: once");
        }
    }

    #[test]
    fn the_same_failure_twice_just_after_the_same_load_goes_back() {
        let at = |loaded, step, kind| (Some(loaded), Some(step), Some(kind));
        let outside = (Some(100), Some(105), None);
        let table = [
            ("once", vec![at(100, 105, "panic")], false),
            ("twice", vec![at(100, 105, "panic"), at(100, 101, "panic")], true),
            ("at the very load", vec![at(100, 100, "panic"), at(100, 100, "panic")], true),
            ("at the edge", vec![at(100, 120, "panic"), at(100, 120, "panic")], true),
            ("beyond it", vec![at(100, 121, "panic"), at(100, 121, "panic")], false),
            ("another failure", vec![at(100, 105, "panic"), at(100, 105, "device fault")], false),
            ("another checkpoint", vec![at(100, 105, "panic"), at(104, 105, "panic")], false),
            ("progress in between", vec![at(100, 105, "panic"), at(100, 300, "panic"), at(100, 105, "panic")], false),
            ("killed from outside", vec![outside, outside, outside], false),
            ("a kill in between", vec![at(100, 105, "panic"), outside, at(100, 105, "panic")], true),
            ("nothing was loaded", vec![(None, Some(5), Some("panic")), (None, Some(5), Some("panic"))], false),
            ("after going back", vec![at(100, 101, "x"), at(100, 101, "x"), at(50, 51, "x")], false),
            ("and back again", vec![at(100, 101, "x"), at(100, 101, "x"), at(50, 51, "x"), at(50, 51, "x")], true),
        ];
        for (name, faults, wanted) in table {
            let mut relapse = Relapse::default();
            let mut last = false;
            for (loaded, step, kind) in faults {
                last = relapse.fault(loaded, step, kind);
            }
            assert_eq!(last, wanted, "{name}");
        }
    }
}
