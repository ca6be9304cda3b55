//! Decision state that outlives the keeper; stored after each change.

use super::budget::Budget;
use super::climb::Climb;
use super::moves::Proposal;
use super::plan::Progress;
use super::recurrence::Recurring;
use super::shift::Shift;
use super::spike::FirstLosses;
use crate::config::climb::Stage;
use crate::config::knobs::Relief;
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
    /// Step of the last hang or crash that a restart on the same rung answered.
    #[serde(alias = "hung_at")]
    pub restarted_at: Option<u64>,
    /// Set once the host ran out of memory: workers load data sparingly from then on.
    pub lean: bool,
    /// Step and key of the last fault that the data may have caused.
    pub poison: Option<(u64, String)>,
    /// The failure of the last worker that ends the run if it comes back.
    #[serde(alias = "raised_at")]
    pub recurring: Option<Recurring>,
    /// The last worker ended since too many steps were not finite, which no rung relieves, and none was finite since.
    pub ended_in_nan: bool,
    /// First step of the last jump of the loss that a rollback answered without leaving out data.
    pub jumped_at: Option<u64>,
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
    /// Where data was last skipped for such a fault, on the run's clock; skipped once, not again.
    pub left_out: Option<u64>,
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

    /// Clears the budget when the user resumes the run; keeps everything learned about the ladder.
    pub fn refresh(&mut self) {
        self.budget = Budget::default();
        (self.heat_pauses, self.restarted_at, self.lean, self.poison, self.recurring) = (0, None, false, None, None);
        self.unrelieved.clear();
        // The user may have changed the script, or the rung.
        self.ignored.clear();
        self.unusable.clear();
        (self.jumped_at, self.ended_in_nan) = (None, false);
    }
}
