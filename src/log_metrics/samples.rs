//! Steps of lines that count samples: `Train Epoch: 1 [640/60000 (1%)]`. They do not show the batch: a step is the distance of
//! two lines, which may be many batches. It is the largest number that divides two counts of an epoch.

/// The count of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub epoch: u64,
    pub samples: u64,
    /// The samples of the epoch.
    pub out_of: u64,
}

/// The samples in a step, once two lines have shown them.
#[derive(Debug, Default)]
pub struct SampleSteps {
    size: Option<u64>,
    last: Option<Count>,
}

impl SampleSteps {
    /// Learns from a count; reports whether the samples in a step are known.
    pub fn learn(&mut self, count: Count) -> bool {
        let last = self.last.replace(count).filter(|last| (last.epoch, last.out_of) == (count.epoch, count.out_of));
        let shown = last.filter(|last| last.samples < count.samples).map(|last| common(last.samples, count.samples));
        self.size = self.size.or(shown);
        self.size.is_some()
    }

    /// Returns the steps of a count, and those of its epoch.
    pub fn place(&self, count: Count) -> Option<(u64, u64)> {
        let size = self.size?;
        let steps = count.out_of.div_ceil(size);
        Some((count.samples.div_ceil(size).min(steps), steps))
    }
}

/// Returns the largest number that divides both.
fn common(first: u64, second: u64) -> u64 {
    if first == 0 { second } else { common(second % first, first) }
}

#[cfg(test)]
mod tests {
    use super::{Count, SampleSteps};

    #[test]
    fn two_counts_of_an_epoch_show_the_samples_of_a_step() {
        for (counts, steps, of_epoch) in [
            // Every tenth batch of 64; the last one is short.
            (&[0, 640, 1280, 59_520, 59_968][..], &[0, 1, 2, 93, 94][..], 94),
            // The first batch, and every hundredth after it.
            (&[4_096, 413_696, 60_000_000], &[1, 101, 15], 15),
            (&[32, 64, 96], &[1, 2, 3], 1875),
        ] {
            let count = |samples| Count { epoch: 1, samples, out_of: 60_000 };
            let mut known = SampleSteps::default();
            assert!(!known.learn(count(counts[0])) && known.place(count(counts[0])).is_none());
            assert!(!known.learn(Count { epoch: 2, ..count(counts[1]) }), "of another epoch");
            assert!(!known.learn(count(counts[0])) && known.learn(count(counts[1])));
            let found: Vec<_> = counts.iter().filter_map(|samples| known.place(count(*samples))).collect();
            let capped = steps.iter().map(|step| (*step.min(&of_epoch), of_epoch));
            assert_eq!(found, capped.collect::<Vec<_>>());
        }
    }
}
