//! Fuzzed runs with a climb plan: the plans, and when a stage may end.

use super::{Lifecycle, Stream, Then, World};
use crate::config::climb::{Length, Stage};

/// Draws a plan; one run in three has none.
pub(super) fn draw_plan(dice: &mut Stream) -> Vec<Stage> {
    match dice.below(3) {
        0 => Vec::new(),
        1 => up_the_ladder(),
        _ => there_and_back(),
    }
}

/// Safe, then one kernel per operation, then everything.
fn up_the_ladder() -> Vec<Stage> {
    let stage = |rung, length| Stage { rung, length };
    vec![stage(5, Some(Length::Steps(100))), stage(3, Some(Length::Epochs(2))), stage(0, None)]
}

/// Up, down and up again.
fn there_and_back() -> Vec<Stage> {
    let stage = |rung, length| Stage { rung, length };
    vec![stage(1, Some(Length::Epochs(1))), stage(5, Some(Length::Steps(60))), stage(0, None)]
}

impl World {
    /// Checks that a stage leads only to the next one, and only once it is proven; the user may leave it at any time.
    pub(super) fn judge_plan(&self, before: Option<usize>, asked: bool) {
        let (after, seed) = (self.policy.ledger.climb.plan.stage(), self.seed);
        if asked || after == before {
            return;
        }
        let before = before.unwrap_or_else(|| panic!("seed {seed}: the plan came back"));
        // A stop that could not save leaves everything unchanged.
        let may_start = |stage: &usize| self.policy.unusable(self.plan[*stage].rung).is_none();
        let next = (before + 1..self.plan.len()).find(may_start);
        assert!(after.is_some() && after == next, "seed {seed}: from stage {before} to {after:?}, not {next:?}");
        let length = match self.plan[before].length {
            Some(Length::Steps(steps)) => steps,
            Some(Length::Epochs(epochs)) => epochs * 50,
            None => panic!("seed {seed}: the last stage has no next"),
        };
        let clean = self.policy.current_step().saturating_sub(self.calm.disturbed);
        assert!(clean >= length.min(80), "seed {seed}: stage {before} left after {clean} clean steps");
        assert!(self.calm.proven > 0, "seed {seed}: nothing is proven");
        assert!(matches!(self.policy.life(), Lifecycle::Stopping { then: Then::Start(_), .. }), "seed {seed}");
        assert!(self.autopilot, "seed {seed}: without the autopilot it only proposes");
    }
}
