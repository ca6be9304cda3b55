//! Updates that a command left out because a loss or a gradient was not finite, where no row tells of each.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Updates over which their share is computed.
pub const WINDOW: u64 = 200;

/// The updates of an attempt, counted from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UpdateCounts {
    /// All that were due.
    pub due: u64,
    /// Those among them that were left out.
    pub skipped: u64,
    /// Those that a loss scaler left out while it could still lower its scale.
    pub rescaled: u64,
}

impl UpdateCounts {
    /// Returns the updates since earlier counts. Smaller counts are those of another process.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        if self.due < before.due || self.skipped < before.skipped {
            return self;
        }
        Self {
            due: self.due - before.due,
            skipped: self.skipped - before.skipped,
            rescaled: self.rescaled.saturating_sub(before.rescaled),
        }
    }
}

/// The newest updates of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecentUpdates {
    /// Skipped updates and all, as they were reported.
    parts: VecDeque<(u64, u64)>,
}

impl RecentUpdates {
    /// Adds updates, and drops those that are too old.
    pub fn add(&mut self, skipped: u64, due: u64) {
        self.parts.push_back((skipped, due.max(skipped)));
        while self.parts.len() > 1 && self.share().of - self.parts[0].1 >= WINDOW {
            self.parts.pop_front();
        }
    }

    /// Returns how many were skipped, out of how many.
    #[must_use]
    pub fn share(&self) -> SkipShare {
        let (skipped, of) = self.parts.iter().fold((0, 0), |(skipped, of), part| (skipped + part.0, of + part.1));
        SkipShare { skipped, of }
    }
}

/// Skipped updates among the newest ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkipShare {
    /// Updates that were left out.
    pub skipped: u64,
    /// All updates.
    pub of: u64,
}

/// The updates of the current attempt, for the status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UpdateStatus {
    /// Since the attempt began.
    #[serde(flatten)]
    pub attempt: UpdateCounts,
    /// The newest ones.
    pub recent: SkipShare,
}

#[cfg(test)]
mod tests {
    use super::{RecentUpdates, SkipShare, UpdateCounts};

    #[test]
    fn the_newest_updates_are_at_least_two_hundred() {
        let mut recent = RecentUpdates::default();
        for (skipped, due, wanted) in
            [(2, 150, (2, 150)), (0, 100, (2, 250)), (1, 60, (3, 310)), (0, 40, (1, 200)), (9, 1000, (9, 1000))]
        {
            recent.add(skipped, due);
            assert_eq!(recent.share(), SkipShare { skipped: wanted.0, of: wanted.1 });
        }
        recent.add(3, 1);
        assert_eq!(recent.share().skipped, 12, "never more skipped than all");
    }

    #[test]
    fn counts_that_start_over_are_those_of_another_process() {
        let counts = |due, skipped| UpdateCounts { due, skipped, rescaled: 0 };
        assert_eq!(counts(100, 7).since(counts(60, 5)), counts(40, 2));
        assert_eq!(counts(10, 1).since(counts(60, 5)), counts(10, 1));
    }
}
