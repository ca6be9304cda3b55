//! The phases of an architecture search: which parameters an epoch's steps update. A pure function of the epoch, so of
//! the run's clock: a resumed run is in the right phase without stored state.
//!
//! ```text
//! warmup_epochs        weight_epochs   arch_epochs   weight_epochs   arch_epochs   ...
//! weights              weights         architecture  weights         architecture
//! ```

use serde::{Deserialize, Serialize};

/// The parameters that a step updates; each phase has its own optimizer settings and its own count of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SearchPhase {
    /// The weights: every step of a run that searches nothing.
    #[default]
    Weights,
    /// The architecture.
    Architecture,
}

impl SearchPhase {
    /// Both, in the order of [`SearchPhase::index`].
    pub const ALL: [Self; 2] = [Self::Weights, Self::Architecture];

    /// Returns its place in arrays with a value for each phase.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self == Self::Architecture)
    }
}

/// The lengths of phases in epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Epochs at the start that train the weights alone.
    pub warmup_epochs: u64,
    /// Epochs of each later weight phase.
    pub weight_epochs: u64,
    /// Epochs of each architecture phase.
    pub arch_epochs: u64,
}

impl Phases {
    /// Returns the phase of an epoch, counted from 0.
    #[must_use]
    pub fn at(&self, epoch: u64) -> SearchPhase {
        let cycle = self.weight_epochs.saturating_add(self.arch_epochs).max(1);
        match epoch.checked_sub(self.warmup_epochs) {
            Some(after) if after % cycle >= self.weight_epochs && self.arch_epochs > 0 => SearchPhase::Architecture,
            _ => SearchPhase::Weights,
        }
    }

    /// Returns the first epoch that trains the architecture.
    #[must_use]
    pub fn first_arch_epoch(&self) -> u64 {
        self.warmup_epochs.saturating_add(self.weight_epochs)
    }

    /// Returns the number of architecture epochs before an epoch.
    #[must_use]
    pub fn arch_epochs_before(&self, epoch: u64) -> u64 {
        let after = epoch.saturating_sub(self.warmup_epochs);
        let cycle = self.weight_epochs.saturating_add(self.arch_epochs).max(1);
        let whole = (after / cycle).saturating_mul(self.arch_epochs);
        whole.saturating_add((after % cycle).saturating_sub(self.weight_epochs))
    }
}

/// Returns the place of the `index`-th sample of an epoch in a part with `size` samples. Each epoch continues where the one
/// before ended, `earlier` epochs of `epoch_samples` into the part, so every sample is used equally often.
#[must_use]
pub fn cycled_place(earlier: u64, epoch_samples: usize, index: u32, size: usize) -> usize {
    let size = size.max(1) as u128;
    let place = (u128::from(earlier) * epoch_samples as u128 + u128::from(index)) % size;
    usize::try_from(place).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Phases, SearchPhase, cycled_place};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_cycle_has_its_share_of_both_phases(
            warmup_epochs in 0u64..20, weight_epochs in 1u64..8, arch_epochs in 1u64..8, cycles in 1u64..6,
        ) {
            let phases = Phases { warmup_epochs, weight_epochs, arch_epochs };
            let is_arch = |epoch: &u64| phases.at(*epoch) == SearchPhase::Architecture;
            prop_assert!((0..warmup_epochs + weight_epochs).all(|epoch| !is_arch(&epoch)));
            let end = warmup_epochs + cycles * (weight_epochs + arch_epochs);
            prop_assert_eq!((0..end).filter(is_arch).count() as u64, cycles * arch_epochs);
            prop_assert!(is_arch(&(end - 1)) && !is_arch(&end), "a cycle ends with the architecture");
            let first = phases.first_arch_epoch();
            prop_assert!(is_arch(&first) && phases.arch_epochs_before(first) == 0);
            prop_assert_eq!(phases.arch_epochs_before(end), cycles * arch_epochs);
        }

        #[test]
        fn a_part_is_used_evenly_over_the_architecture_epochs(
            size in 1usize..50, epoch_samples in 1usize..50, epochs in 1u64..40, lengths in [0u64..5, 1u64..5, 1u64..4],
        ) {
            let [warmup_epochs, weight_epochs, arch_epochs] = lengths;
            let phases = Phases { warmup_epochs, weight_epochs, arch_epochs };
            let mut used = vec![0u32; size];
            for epoch in (0..epochs).filter(|epoch| phases.at(*epoch) == SearchPhase::Architecture) {
                let earlier = phases.arch_epochs_before(epoch);
                for index in 0..u32::try_from(epoch_samples).unwrap() {
                    used[cycled_place(earlier, epoch_samples, index, size)] += 1;
                }
            }
            prop_assert!(used.iter().max().unwrap() - used.iter().min().unwrap() <= 1, "{:?}", used);
        }
    }

    #[test]
    fn the_ratios_of_the_guide_alternate_after_the_warm_up() {
        let word = |phases: Phases| -> String {
            (0..14).map(|epoch| if phases.at(epoch) == SearchPhase::Weights { 'w' } else { 'a' }).collect()
        };
        let at = |warmup_epochs, weight_epochs| word(Phases { warmup_epochs, weight_epochs, arch_epochs: 1 });
        assert_eq!([at(2, 2), at(0, 4), at(3, 5)], ["wwwwawwawwawwa", "wwwwawwwwawwww", "wwwwwwwwawwwww"]);
    }
}
