//! Watches updates that were left out and are known by their number alone, and those that a loss scaler left out.
//!
//! A scaler begins with a scale that is too large, and finds a lower one by leaving out the first updates; later it tries a
//! larger one now and then. Neither is a sign of trouble: the first few are forgiven, and the rest is below the limit.

use crate::config::watch::Watch;
use crate::protocol::skips::{RecentUpdates, UpdateCounts, WINDOW};

/// Updates in which a scaler looks for its scale.
const SEARCH: u64 = 200;
/// Updates that it leaves out for that, at most: from 65 536 down to 1.
const FORGIVEN: u64 = 16;

/// Watches the updates of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpdateWatch {
    seen: UpdateCounts,
    /// The counts come from the command, not from its steps.
    is_counted: bool,
    forgiven: u64,
    recent: RecentUpdates,
}

impl UpdateWatch {
    /// Takes in the counts of a command. Returns a sentence when too many updates were left out.
    pub fn observe_counts(&mut self, counts: UpdateCounts, knobs: &Watch) -> Option<String> {
        if !std::mem::replace(&mut self.is_counted, true) {
            (self.seen, self.recent) = Default::default();
        }
        self.observe(counts, knobs)
    }

    /// Takes in a step of a training that reports each; `rescaled` if a loss scaler left it out.
    pub fn observe_step(&mut self, rescaled: bool, knobs: &Watch) -> Option<String> {
        if self.is_counted {
            return None;
        }
        let (one, UpdateCounts { due, skipped, rescaled: all }) = (u64::from(rescaled), self.seen);
        self.observe(UpdateCounts { due: due + 1, skipped: skipped + one, rescaled: all + one }, knobs)
    }

    fn observe(&mut self, counts: UpdateCounts, knobs: &Watch) -> Option<String> {
        let new = counts.since(self.seen);
        let searches = self.seen.due < SEARCH;
        let forgiven = if searches { new.rescaled.min(FORGIVEN.saturating_sub(self.forgiven)) } else { 0 };
        self.forgiven += forgiven;
        self.seen = counts;
        self.recent.add(new.skipped.saturating_sub(forgiven), new.due);
        let share = self.recent.share();
        let rate = share.skipped as f64 / share.of.max(WINDOW) as f64;
        (rate > knobs.skip_rate).then(|| {
            self.recent = RecentUpdates::default();
            format!("{} of the last {} updates were skipped, since a value was not finite", share.skipped, share.of)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::UpdateWatch;
    use crate::config::watch::Watch;
    use crate::protocol::skips::UpdateCounts;

    /// Returns whether the watch reports a training of 2 000 updates, whose counts arrive every `part` of them.
    fn reports(part: u64, skipped: impl Fn(u64) -> bool, by_scaler: bool) -> bool {
        let mut watch = UpdateWatch::default();
        (part..=2_000).step_by(part as usize).any(|due| {
            let skipped = (1..=due).filter(|update| skipped(*update)).count() as u64;
            let counts = UpdateCounts { due, skipped, rescaled: if by_scaler { skipped } else { 0 } };
            watch.observe_counts(counts, &Watch::default()).is_some()
        })
    }

    #[test]
    fn a_lasting_share_is_reported_at_any_speed() {
        // 3, 50 and 1 000 steps a second, counted twice a second.
        for part in [1, 25, 500] {
            assert!(reports(part, |update| update % 10 == 0, false), "10 % of the batches, {part}");
            assert!(reports(part, |update| update % 8 == 0, true), "12 % by a scaler, {part}");
            assert!(!reports(part, |update| update % 100 == 0, false), "1 %, {part}");
            assert!(!reports(part, |_| false, false), "{part}");
        }
    }

    #[test]
    fn a_scaler_may_look_for_its_scale() {
        for part in [1, 25, 500] {
            assert!(!reports(part, |update| update <= 16, true), "from 65 536 down to 1, {part}");
            assert!(!reports(part, |update| update < 60 && update % 4 == 0, true), "with steps between them, {part}");
            assert!(
                !reports(part, |update| update == 1_000 || update == 2_000, true),
                "a larger one now and then, {part}"
            );
        }
        assert!(reports(25, |update| update <= 16, false), "a NaN loss is not a search for the scale");
    }

    #[test]
    fn steps_that_are_reported_one_by_one_count_until_the_command_counts() {
        let (mut watch, knobs) = (UpdateWatch::default(), Watch::default());
        let speaks: Vec<u64> = (1..=400).filter(|step| watch.observe_step(step % 8 == 0, &knobs).is_some()).collect();
        assert!(speaks.first().is_some_and(|first| (100..=200).contains(first)), "{speaks:?}");
        assert_eq!(watch.observe_counts(UpdateCounts { due: 400, skipped: 2, rescaled: 2 }, &knobs), None);
        assert_eq!(watch.observe_step(true, &knobs), None);
    }
}
