//! What decisions depend on beyond the life of a keeper: stored after each change.

use super::budget::Budget;
use super::climb::Climb;
use super::moves::Proposal;
use super::plan::Progress;
use crate::config::climb::Stage;
use crate::config::knobs::Relief;
use serde::{Deserialize, Serialize};

/// The books of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Restarts used up.
    pub budget: Budget,
    /// The way back up.
    pub climb: Climb,
    /// What a person said about the autopilot; the run file's word where nothing.
    pub autopilot: Option<bool>,
    /// What the keeper would do if it might.
    pub proposal: Option<Proposal>,
    /// Pauses for a hot card since the last shift for it.
    pub heat_pauses: u32,
    /// The step of the last hang.
    pub hung_at: Option<u64>,
    /// The host ran out of memory once: workers load data sparingly from now on.
    pub lean: bool,
    /// The step and the kind of the last fault that may be the data's.
    pub poison: Option<(u64, String)>,
    /// What no rung below relieved when it was needed: told once.
    pub unrelieved: Vec<Relief>,
    /// Where data were last left out for that, on the clock of the run: once, not again.
    pub left_out: Option<u64>,
}

impl Ledger {
    /// The books of a run that is yet to begin, on this rung.
    #[must_use]
    pub fn begin(rung: usize, plan: &[Stage]) -> Self {
        let mut ledger = Self::default();
        ledger.climb.plan = Progress::begin(rung, plan);
        ledger
    }

    /// A person takes the run up again: what was used up is forgotten, what was learned of the
    /// ladder is not.
    pub fn refresh(&mut self) {
        self.budget = Budget::default();
        (self.heat_pauses, self.hung_at, self.lean, self.poison) = (0, None, false, None);
        self.unrelieved.clear();
    }
}
