//! Detects checkpoints that verify but hold bad state: workers that load one all fail in the same way,
//! soon after. After the second such failure the next start goes one checkpoint back.

use serde::{Deserialize, Serialize};

/// A failure within this many steps after a load may be the checkpoint's fault.
const NEAR: u64 = 20;

/// The last failure shortly after a load. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Relapse {
    last: Option<(u64, String)>,
}

impl Relapse {
    /// Counts a fault at `step` of a worker that had loaded the checkpoint of step `loaded`. `kind`
    /// identifies equal faults; it is none for faults from outside, which say nothing about the
    /// checkpoint. Returns true when the next start should go one checkpoint back.
    pub fn fault(&mut self, loaded: Option<u64>, step: Option<u64>, kind: Option<&str>) -> bool {
        let Some(kind) = kind else { return false };
        let near = loaded.zip(step).filter(|(loaded, step)| step.saturating_sub(*loaded) <= NEAR);
        let this = near.map(|(loaded, _)| (loaded, kind.to_owned()));
        let again = this.is_some() && this == self.last;
        self.last = if again { None } else { this };
        again
    }
}

#[cfg(test)]
mod tests {
    use super::Relapse;

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
