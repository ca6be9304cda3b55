//! Decision state that outlives the keeper; stored after each change.

use super::budget::Budget;
use super::climb::Climb;
use super::failures::Failures;
use super::moves::Proposal;
use super::plan::Progress;
use super::shift::Shift;
use super::spike::FirstLosses;
use crate::config::climb::Stage;
use crate::config::knobs::Relief;
use crate::protocol::class::FailureClass;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The ledger of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Restarts used.
    pub budget: Budget,
    /// Downshifts and climbs.
    pub climb: Climb,
    /// The user's choice for the autopilot; none follows the run file.
    pub autopilot: Option<bool>,
    /// The move the keeper would make with the autopilot on.
    pub proposal: Option<Proposal>,
    /// Heat pauses since the last shift for heat.
    pub heat_pauses: u32,
    /// The failures so far.
    #[serde(flatten)]
    pub failures: Failures,
    /// Reliefs that no lower rung offered when needed; each is reported once.
    pub unrelieved: Vec<Relief>,
    /// Knobs that the script ignores, and their values in force.
    pub ignored: BTreeMap<String, Value>,
    /// The weights are spread over the ranks.
    pub sharded: bool,
    /// The first losses of the run, of both phases of a search.
    pub first_losses: [FirstLosses; 2],
    /// Step at which the run finished.
    pub finished_at: Option<u64>,
    /// The shift whose rung has not taken a step yet.
    pub shift: Option<Shift>,
    /// Rungs that cannot start here, and why.
    pub unusable: BTreeMap<usize, String>,
}

impl Ledger {
    /// Creates the ledger of a new run on this rung.
    #[must_use]
    pub fn begin(rung: usize, plan: &[Stage]) -> Self {
        let mut ledger = Self::default();
        ledger.climb.plan = Progress::begin(rung, plan);
        ledger
    }

    /// Creates the ledger of a run that continues from this checkpoint, and whose ledger was lost. Nothing before the
    /// checkpoint counts, as nothing is known about it.
    #[must_use]
    pub fn begin_at(rung: usize, plan: &[Stage], clock: u64, step: u64) -> Self {
        let mut ledger = Self::begin(rung, plan);
        ledger.climb.plan.count_from(clock, step);
        ledger.climb.record_disturbance(step);
        ledger
    }

    /// Reports whether workers load data sparingly: the host ran out of memory.
    #[must_use]
    pub fn is_lean(&self) -> bool {
        self.failures.count(FailureClass::HostOutOfMemory) > 0
    }

    /// Clears the budget when the user resumes the run; keeps everything learned about the ladder.
    pub fn refresh(&mut self) {
        self.budget = Budget::default();
        (self.heat_pauses, self.failures) = (0, Failures::default());
        self.unrelieved.clear();
        // The user may have changed the script, or the rung.
        self.ignored.clear();
        self.unusable.clear();
    }
}
