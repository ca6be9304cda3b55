//! Proves checkpoints. Bytes that verify may still hold bad state; only training beyond a checkpoint proves it.

use std::collections::BTreeMap;

/// Counts the clean steps beyond every unproven checkpoint. A step is clean when the guard let it through; those that a
/// script took without printing them count as the next one that it prints.
#[derive(Debug, Default)]
pub struct Proving {
    clean: BTreeMap<u64, u64>,
    /// The newest step, clean or not.
    newest: u64,
}

impl Proving {
    /// Restarts at step `newest` with these checkpoints, `(step, clean steps beyond it)`, as the store knows them for the
    /// current line of training. Call this whenever that line changes.
    pub fn restart(&mut self, newest: u64, counts: impl IntoIterator<Item = (u64, u64)>) {
        (self.clean, self.newest) = (counts.into_iter().collect(), newest);
    }

    /// Records that the checkpoint of this step is durable.
    pub fn saved(&mut self, step: u64) {
        self.clean.insert(step, 0);
    }

    /// Records a step that was not clean.
    pub fn skipped(&mut self, step: u64) {
        self.newest = self.newest.max(step);
    }

    /// Records a clean step. Returns the checkpoints it proves.
    pub fn stepped(&mut self, step: u64, proven_after: u64) -> Vec<u64> {
        for (saved, clean) in self.clean.range_mut(..step) {
            *clean += step.saturating_sub(self.newest.max(*saved));
        }
        self.newest = self.newest.max(step);
        self.clean.extract_if(.., |_, clean| *clean >= proven_after.max(1)).map(|(step, _)| step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Proving;

    #[test]
    fn only_clean_steps_beyond_a_checkpoint_prove_it() {
        let mut proving = Proving::default();
        proving.saved(10);
        assert!(proving.stepped(10, 3).is_empty(), "its own step says nothing");
        assert!(proving.stepped(11, 3).is_empty());
        proving.skipped(12);
        assert!(proving.stepped(13, 3).is_empty());
        proving.saved(13);
        assert_eq!(proving.stepped(14, 3), [10]);
        assert!(proving.stepped(15, 3).is_empty());
        assert_eq!(proving.stepped(16, 3), [13]);
    }

    #[test]
    fn steps_that_a_script_does_not_print_count_with_the_next_one() {
        let mut proving = Proving::default();
        proving.stepped(80, 200);
        proving.saved(100);
        for step in [120, 140, 180, 220, 280] {
            assert!(proving.stepped(step, 200).is_empty(), "{step}");
        }
        assert_eq!(proving.stepped(300, 200), [100]);
    }

    #[test]
    fn a_line_that_goes_back_counts_from_what_is_left_of_it() {
        let mut proving = Proving::default();
        proving.saved(10);
        proving.saved(12);
        proving.stepped(13, 3);
        proving.stepped(14, 3);
        // After a fault, training resumes from 12: none of the steps beyond 12 count, and two beyond 10 do.
        proving.restart(12, [(10, 2), (12, 0)]);
        assert_eq!(proving.stepped(13, 3), [10]);
        assert!(proving.stepped(14, 3).is_empty());
        assert_eq!(proving.stepped(15, 3), [12]);
    }
}
