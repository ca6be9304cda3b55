//! The order of samples: a pure function of (run seed, epoch), so a shuffle needs no stored state beyond those numbers.

use super::seed::{Purpose, Stream};

/// Returns the order of an epoch: a permutation of `0..samples`, the same on every machine and in every version.
///
/// # Panics
/// Never for fewer than 2^32 samples, which [`crate::config`] checks.
#[must_use]
pub fn epoch_order(run_seed: u64, epoch: u64, samples: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::try_from(samples).unwrap_or(u32::MAX)).collect();
    shuffle(&mut order, &mut Stream::for_purpose(run_seed, Purpose::Order, [epoch, 0, 0]));
    order
}

/// Shuffles with Fisher–Yates, from the end down (Durstenfeld's form).
pub fn shuffle<T>(items: &mut [T], stream: &mut Stream) {
    for last in (1..items.len()).rev() {
        let chosen = usize::try_from(stream.below(last as u64 + 1)).unwrap_or(0);
        items.swap(last, chosen);
    }
}

/// Splits samples into (training, validation) so that each label keeps its share: the given
/// fraction of each label's samples, rounded, goes to validation. Seeded, sorted by index.
#[must_use]
pub fn stratified_split(labels: &[u32], validation: f64, run_seed: u64) -> (Vec<u32>, Vec<u32>) {
    let classes = labels.iter().max().map_or(0, |last| *last as usize + 1);
    let mut by_label = vec![Vec::new(); classes];
    for (index, label) in labels.iter().enumerate() {
        by_label[*label as usize].push(u32::try_from(index).unwrap_or(u32::MAX));
    }
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for (label, mut members) in by_label.into_iter().enumerate() {
        shuffle(&mut members, &mut Stream::for_purpose(run_seed, Purpose::Split, [label as u64, 0, 0]));
        let wanted = members.len() as f64 * validation;
        let cut = (wanted.round() as usize).min(members.len());
        held_out.extend_from_slice(&members[..cut]);
        train.extend_from_slice(&members[cut..]);
    }
    train.sort_unstable();
    held_out.sort_unstable();
    (train, held_out)
}

#[cfg(test)]
mod tests {
    use super::{epoch_order, stratified_split};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_epoch_holds_every_sample_once(seed: u64, epoch in 0u64..1000, samples in 1usize..3000) {
            let mut order = epoch_order(seed, epoch, samples);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..u32::try_from(samples).unwrap()));
        }

        #[test]
        fn the_split_is_disjoint_complete_and_keeps_shares(seed: u64, sizes in prop::collection::vec(5usize..40, 2..6)) {
            let labels: Vec<u32> = sizes.iter().enumerate()
                .flat_map(|(label, count)| std::iter::repeat_n(u32::try_from(label).unwrap(), *count)).collect();
            let (train, held_out) = stratified_split(&labels, 0.2, seed);
            let mut all: Vec<u32> = train.iter().chain(&held_out).copied().collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..u32::try_from(labels.len()).unwrap()));
            for (label, count) in sizes.iter().enumerate() {
                let held = held_out.iter().filter(|index| labels[**index as usize] as usize == label).count();
                let wanted = (*count as f64 * 0.2).round() as usize;
                prop_assert_eq!(held, wanted);
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        assert_ne!(epoch_order(7, 0, 100), epoch_order(7, 1, 100));
        assert_ne!(epoch_order(7, 0, 100), epoch_order(8, 0, 100));
    }

    #[test]
    fn the_order_is_pinned_for_all_versions() {
        assert_eq!(epoch_order(7, 3, 8), epoch_order(7, 3, 8));
        insta::assert_compact_debug_snapshot!(epoch_order(7, 3, 8));
    }
}
