//! The way back up the ladder: one rung after a calm stretch, on probation. Each failed climb doubles
//! the required calm.
//!
//! ```text
//!  keeper shifts down ─▶ counting ── `after` × 2^failed clean steps, a proven checkpoint ─▶ one shift up
//!                           ▲                                                            │
//!                           └──── fault on probation: back down, failed + 1 ◀── probation ┘── calm: counting
//! ```
//! A climb retraces the keeper's own shifts, one at a time, and goes no further: a rung the user chose
//! is the top, and skipped rungs stay skipped.

use super::plan::Progress;
use crate::config::watch;
use serde::{Deserialize, Serialize};

/// History of downshifts and climbs. Stored, so that it survives the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Climb {
    /// Rungs the keeper left, in order; the climb visits them in reverse.
    left: Vec<usize>,
    /// First step of the current clean stretch.
    since: u64,
    /// Newest proven checkpoint.
    proven: Option<u64>,
    /// Failed climbs.
    failed: u32,
    /// The rung the climb started from, while on probation.
    from: Option<usize>,
    /// Current stage of the climb plan.
    pub plan: Progress,
}

impl Climb {
    /// Records an automatic downshift at `step`.
    pub fn record_downshift(&mut self, from: usize, to: usize, step: u64) {
        self.left.push(from);
        self.left.retain(|rung| *rung < to);
        self.left.dedup();
        self.from = None;
        self.since = step;
    }

    /// Records that the user chose a rung: there is nothing to climb back to.
    pub fn choose_rung(&mut self, step: u64) {
        self.left.clear();
        (self.from, self.since) = (None, step);
    }

    /// Rewinds to `step`, where a worker resumes, so that redone steps count once.
    pub fn rewind_to(&mut self, step: u64) {
        self.since = self.since.min(step);
        self.proven = self.proven.filter(|proven| *proven <= step);
    }

    /// Restarts the clean stretch after a disturbance at `step`.
    pub fn record_disturbance(&mut self, step: u64) {
        self.since = step;
    }

    /// Records a proven checkpoint.
    pub fn record_proven(&mut self, step: u64) {
        self.proven = self.proven.max(Some(step));
    }

    /// Returns the clean steps that a climb or its probation needs; none when no climb is possible.
    fn needed_steps(&self, knobs: watch::Climb) -> Option<u64> {
        self.required_calm(knobs).filter(|_| self.failed < knobs.failures)
    }

    /// Returns the clean steps needed before any step up the ladder; none without `watch.climb`.
    #[must_use]
    pub fn required_calm(&self, knobs: watch::Climb) -> Option<u64> {
        (knobs.after > 0).then(|| knobs.after.saturating_mul(1 << self.failed.min(32)))
    }

    /// Returns the clean steps up to `step`.
    #[must_use]
    pub fn clean_steps(&self, step: u64) -> u64 {
        step.saturating_sub(self.since)
    }

    /// Reports whether a checkpoint saved since the last disturbance is proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.proven.is_some_and(|proven| proven > self.since)
    }

    /// Returns the clean steps left before the next climb from `rung` and the rung it leads to; none when
    /// no climb will follow.
    #[must_use]
    pub fn next_climb(&self, rung: usize, step: u64, knobs: watch::Climb) -> Option<(u64, usize)> {
        let back = self.left.iter().copied().rev().find(|left| *left < rung)?;
        Some((self.needed_steps(knobs)?.saturating_sub(self.clean_steps(step)), back))
    }

    /// Reports whether to climb from `rung` at `step`: the stretch is long enough, and a checkpoint saved
    /// during it is proven.
    #[must_use]
    pub fn is_due(&self, rung: usize, step: u64, knobs: watch::Climb) -> bool {
        self.is_proven() && self.from.is_none() && matches!(self.next_climb(rung, step, knobs), Some((0, _)))
    }

    /// Records a climb at `step`; probation begins.
    pub fn record_climb(&mut self, from: usize, to: usize, step: u64) {
        self.from = Some(from);
        self.since = step;
        self.left.retain(|rung| *rung < to);
    }

    /// Records the next stage of the plan; probation begins when its rung is faster.
    pub fn record_stage(&mut self, from: usize, to: usize, step: u64, knobs: watch::Climb) {
        self.left.clear();
        self.since = step;
        self.from = Some(from).filter(|from| to < *from && self.needed_steps(knobs).is_some());
    }

    /// Records a step. Returns true when it ends a probation.
    pub fn record_step(&mut self, step: u64, knobs: watch::Climb) -> bool {
        let calm = self.needed_steps(knobs).is_some_and(|needed| self.clean_steps(step) >= needed);
        calm && self.from.take().is_some()
    }

    /// Records a fault at `step`. Returns the rung to go back to when the fault makes a climb fail.
    pub fn record_fault(&mut self, rung: usize, step: u64) -> Option<usize> {
        self.since = step;
        let back = self.from.take()?;
        self.failed += 1;
        self.left.push(rung);
        self.left.retain(|left| *left < back);
        self.left.dedup();
        Some(back)
    }

    /// Returns the number of failed climbs.
    #[must_use]
    pub fn failed_climbs(&self) -> u32 {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::Climb;
    use crate::config::watch;

    const KNOBS: watch::Climb = watch::Climb { after: 100, failures: 3 };

    fn down() -> Climb {
        let mut climb = Climb::default();
        climb.record_downshift(0, 2, 1000);
        climb
    }

    #[test]
    fn it_climbs_after_a_calm_stretch_and_a_proven_checkpoint_only() {
        let mut climb = down();
        assert_eq!(climb.next_climb(2, 1040, KNOBS), Some((60, 0)));
        assert!(!climb.is_due(2, 1100, KNOBS), "nothing proven");
        climb.record_proven(990);
        assert!(!climb.is_due(2, 1100, KNOBS), "proven before the shift");
        climb.record_proven(1010);
        assert!(!climb.is_due(2, 1099, KNOBS));
        assert!(climb.is_due(2, 1100, KNOBS));
        climb.record_disturbance(1099);
        assert!(!climb.is_due(2, 1100, KNOBS), "after a skipped step the count starts over");
    }

    #[test]
    fn it_goes_back_the_way_it_came_one_shift_at_a_time() {
        let mut climb = down();
        climb.record_downshift(2, 5, 1100);
        assert_eq!(climb.next_climb(5, 1100, KNOBS), Some((100, 2)), "not by way of 4 and 3, which it never was on");
        climb.record_climb(5, 2, 1200);
        assert!(climb.from.is_some() && climb.next_climb(2, 1200, KNOBS) == Some((100, 0)));
        assert!(!climb.record_step(1299, KNOBS) && climb.record_step(1300, KNOBS));
        climb.record_climb(2, 0, 1300);
        assert_eq!(climb.next_climb(0, 1400, KNOBS), None, "home");
    }

    #[test]
    fn each_failed_climb_doubles_the_wait_and_after_three_it_stays() {
        let mut climb = down();
        for (failed, wait) in [(1, 200), (2, 400)] {
            climb.record_climb(2, 1, 2000);
            assert_eq!(climb.record_fault(1, 2050), Some(2), "back to where it was calm");
            assert_eq!((climb.failed_climbs(), climb.next_climb(2, 2050, KNOBS)), (failed, Some((wait, 1))));
        }
        climb.record_climb(2, 1, 3000);
        assert_eq!(climb.record_fault(1, 3001), Some(2));
        assert_eq!(climb.next_climb(2, 9000, KNOBS), None);
        let stored = serde_json::to_string(&climb).unwrap();
        assert_eq!(serde_json::from_str::<Climb>(&stored).unwrap(), climb, "it survives the keeper");
    }

    #[test]
    fn faults_after_the_probation_fail_no_climb_and_the_user_decides() {
        let mut climb = down();
        assert_eq!(climb.record_fault(2, 1050), None);
        climb.record_climb(2, 1, 1200);
        climb.record_step(1300, KNOBS);
        assert_eq!(climb.record_fault(1, 1400), None);
        climb.choose_rung(1500);
        assert_eq!(climb.next_climb(1, 9000, KNOBS), None);
        let mut never = down();
        never.record_proven(1010);
        assert!(!never.is_due(2, 99_000, watch::Climb { after: 0, failures: 3 }));
    }

    #[test]
    fn redone_steps_count_once() {
        let mut climb = down();
        climb.rewind_to(900);
        assert_eq!(climb.next_climb(2, 950, KNOBS), Some((50, 0)), "counted from where it went on");
        climb.record_proven(940);
        climb.rewind_to(930);
        assert!(!climb.is_due(2, 1100, KNOBS), "that checkpoint is gone");
    }
}
