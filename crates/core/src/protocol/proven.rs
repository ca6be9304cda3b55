//! The rung that an ended run goes on with: one that carried it.

use super::control::Status;

impl Status {
    /// Returns the rung to go on with instead of the current one, which failed and never took a step in this run: the nearest
    /// one above that took steps, else the nearest one below.
    #[must_use]
    pub fn proven_rung(&self) -> Option<usize> {
        let has_run = |rung: &usize| self.rungs.get(*rung).is_some_and(|record| record.steps > 0);
        let mut others = (0..self.rung).rev().chain(self.rung + 1..self.rungs.len());
        let is_broken = self.rungs.get(self.rung).is_some_and(|record| record.steps == 0 && record.fault.is_some());
        if is_broken { others.find(has_run) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::blank;
    use serde_json::{from_value, json};

    #[test]
    fn a_rung_that_took_no_step_is_left_for_the_nearest_one_that_did() {
        let status = |rung: usize, steps: [u64; 4]| {
            let mut status = blank::status();
            status.rung = rung;
            let record = |steps: u64| {
                from_value(json!({ "name": "rung", "steps": steps, "fault": ["exit code 2", 90] })).unwrap()
            };
            status.rungs = steps.map(record).to_vec();
            status
        };
        let proven = |rung: usize, steps: [u64; 4]| status(rung, steps).proven_rung();
        assert_eq!(proven(2, [90, 30, 0, 5]), Some(1));
        assert_eq!(proven(0, [0, 0, 7, 9]), Some(2), "a climb");
        assert_eq!(proven(1, [90, 1, 0, 0]), None);
        assert_eq!(proven(1, [0, 0, 0, 0]), None, "the whole run never took a step");
        let mut stopped = status(1, [90, 0, 0, 0]);
        stopped.rungs[1].fault = None;
        assert_eq!(stopped.proven_rung(), None, "it was stopped before its first step");
    }
}
