//! The run's memory plan, once it is available: the estimate for each rung, corrected by the measured
//! needs of rungs that ran.

use crate::protocol::control::RungRecord;
use crate::protocol::plan::{Measured, MemoryEstimate, PLAN_FILE, Plan};
use crate::untrusted::file::{self, Limit};
use std::path::Path;

/// The plan, as far as it is available.
#[derive(Debug, Default)]
pub struct Planned(Option<Plan>);

impl Planned {
    /// Writes the estimates into the rungs. The plan is computed alongside the start of the run; until it
    /// is there, this looks for it. Returns, once, why no rung could be planned.
    pub fn settle(&mut self, run_dir: &Path, rungs: &mut [RungRecord]) -> Option<String> {
        let mut news = None;
        if self.0.is_none() {
            let text = file::read(&run_dir.join(PLAN_FILE), Limit::Record).ok();
            self.0 = text.and_then(|text| serde_json::from_slice(&text).ok());
            news = self.0.as_ref().and_then(Plan::unknown_for_all).map(|why| format!("memory: {why}"));
        }
        let plan = self.0.as_mut().filter(|plan| plan.rungs.len() == rungs.len())?;
        for (planned, rung) in plan.rungs.iter_mut().zip(rungs.iter()) {
            let estimate = planned.estimate.as_ref();
            planned.measured = Measured::in_a_run(estimate, rung.vram_bytes, rung.ram_bytes, plan.gpu);
        }
        plan.settle();
        for (planned, rung) in plan.rungs.iter().zip(rungs) {
            let beside = if plan.gpu { 0 } else { planned.estimate.as_ref().map_or(0, MemoryEstimate::baseline) };
            rung.planned_bytes = planned.total_bytes.map(|bytes| bytes + beside);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::Planned;
    use crate::keeper::status_snapshot::blank_record;
    use crate::protocol::plan::{Fit, MemoryEstimate, PLAN_FILE, Plan, RungPlan};

    #[test]
    fn the_plan_is_found_when_it_is_there_and_corrected_by_what_was_seen() {
        let place = tempfile::tempdir().unwrap();
        let mut rungs = ["full", "safe"].map(blank_record);
        let mut planned = Planned::default();
        planned.settle(place.path(), &mut rungs);
        assert_eq!(rungs[0].planned_bytes, None, "there is no plan yet");
        let rung = |name: &str, training| RungPlan {
            name: name.to_owned(),
            micro_batch: 1,
            estimate: Some(MemoryEstimate { weights: 100, training, ..MemoryEstimate::default() }),
            unknown: None,
            total_bytes: None,
            verdict: Fit::Unknown,
            measured: None,
            failed: None,
        };
        let rungs_planned = vec![rung("full", 500), rung("safe", 300)];
        let (run, task, device) = ("a".to_owned(), "lm".to_owned(), "cuda:0".to_owned());
        let plan = Plan { version: 1, run, task, device, gpu: true, card: None, rungs: rungs_planned };
        std::fs::write(place.path().join(PLAN_FILE), serde_json::to_vec(&plan).unwrap()).unwrap();
        planned.settle(place.path(), &mut rungs);
        assert_eq!(rungs.clone().map(|rung| rung.planned_bytes), [Some(500), Some(300)]);
        rungs[0].vram_bytes = Some(900);
        planned.settle(place.path(), &mut rungs);
        assert_eq!(rungs.map(|rung| rung.planned_bytes), [Some(900), Some(100 + 400)], "twice as much beyond state");
    }

    #[test]
    fn a_run_that_is_too_large_to_plan_is_reported_once() {
        let place = tempfile::tempdir().unwrap();
        let mut rungs = ["full", "safe"].map(blank_record);
        let rung = |name: &str| RungPlan {
            name: name.to_owned(),
            micro_batch: 1,
            estimate: None,
            unknown: Some("not planned: too large".to_owned()),
            total_bytes: None,
            verdict: Fit::Unknown,
            measured: None,
            failed: None,
        };
        let (run, task, device) = ("a".to_owned(), "lm".to_owned(), "cpu".to_owned());
        let rungs_planned = vec![rung("full"), rung("safe")];
        let plan = Plan { version: 1, run, task, device, gpu: false, card: None, rungs: rungs_planned };
        std::fs::write(place.path().join(PLAN_FILE), serde_json::to_vec(&plan).unwrap()).unwrap();
        let mut planned = Planned::default();
        let news = planned.settle(place.path(), &mut rungs);
        assert_eq!(news.as_deref(), Some("memory: not planned: too large"));
        assert_eq!(planned.settle(place.path(), &mut rungs), None);
        assert_eq!(rungs.map(|rung| rung.planned_bytes), [None, None]);
    }
}
