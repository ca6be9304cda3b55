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
    pub fn descended(&mut self, from: usize, to: usize, step: u64) {
        self.left.push(from);
        self.left.retain(|rung| *rung < to);
        self.left.dedup();
        self.from = None;
        self.since = step;
    }

    /// Records that the user chose a rung: there is nothing to climb back to.
    pub fn chosen(&mut self, step: u64) {
        self.left.clear();
        (self.from, self.since) = (None, step);
    }

    /// Rewinds to `step`, where a worker resumes, so that redone steps count once.
    pub fn resumed(&mut self, step: u64) {
        self.since = self.since.min(step);
        self.proven = self.proven.filter(|proven| *proven <= step);
    }

    /// Restarts the clean stretch after a disturbance at `step`.
    pub fn disturbed(&mut self, step: u64) {
        self.since = step;
    }

    /// Records a proven checkpoint.
    pub fn proven(&mut self, step: u64) {
        self.proven = self.proven.max(Some(step));
    }

    /// Returns the clean steps that a climb or its probation needs; none when no climb is possible.
    fn needed(&self, knobs: watch::Climb) -> Option<u64> {
        self.patience(knobs).filter(|_| self.failed < knobs.failures)
    }

    /// Returns the clean steps needed before any step up the ladder; none without `watch.climb`.
    #[must_use]
    pub fn patience(&self, knobs: watch::Climb) -> Option<u64> {
        (knobs.after > 0).then(|| knobs.after.saturating_mul(1 << self.failed.min(32)))
    }

    /// Returns the clean steps up to `step`.
    #[must_use]
    pub fn clean(&self, step: u64) -> u64 {
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
    pub fn ahead(&self, rung: usize, step: u64, knobs: watch::Climb) -> Option<(u64, usize)> {
        let back = self.left.iter().copied().rev().find(|left| *left < rung)?;
        Some((self.needed(knobs)?.saturating_sub(self.clean(step)), back))
    }

    /// Reports whether to climb from `rung` at `step`: the stretch is long enough, and a checkpoint saved
    /// during it is proven.
    #[must_use]
    pub fn is_due(&self, rung: usize, step: u64, knobs: watch::Climb) -> bool {
        self.is_proven() && self.from.is_none() && matches!(self.ahead(rung, step, knobs), Some((0, _)))
    }

    /// Records a climb at `step`; probation begins.
    pub fn climbed(&mut self, from: usize, to: usize, step: u64) {
        self.from = Some(from);
        self.since = step;
        self.left.retain(|rung| *rung < to);
    }

    /// Records the next stage of the plan; probation begins when its rung is faster.
    pub fn staged(&mut self, from: usize, to: usize, step: u64, knobs: watch::Climb) {
        self.left.clear();
        self.since = step;
        self.from = Some(from).filter(|from| to < *from && self.needed(knobs).is_some());
    }

    /// Records a step. Returns true when it ends a probation.
    pub fn stepped(&mut self, step: u64, knobs: watch::Climb) -> bool {
        let calm = self.needed(knobs).is_some_and(|needed| self.clean(step) >= needed);
        calm && self.from.take().is_some()
    }

    /// Records a fault at `step`. Returns the rung to go back to when the fault makes a climb fail.
    pub fn fault(&mut self, rung: usize, step: u64) -> Option<usize> {
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
    pub fn failed(&self) -> u32 {
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
        climb.descended(0, 2, 1000);
        climb
    }

    #[test]
    fn it_climbs_after_a_calm_stretch_and_a_proven_checkpoint_only() {
        let mut climb = down();
        assert_eq!(climb.ahead(2, 1040, KNOBS), Some((60, 0)));
        assert!(!climb.is_due(2, 1100, KNOBS), "nothing proven");
        climb.proven(990);
        assert!(!climb.is_due(2, 1100, KNOBS), "proven before the shift");
        climb.proven(1010);
        assert!(!climb.is_due(2, 1099, KNOBS));
        assert!(climb.is_due(2, 1100, KNOBS));
        climb.disturbed(1099);
        assert!(!climb.is_due(2, 1100, KNOBS), "a skipped step begins the calm anew");
    }

    #[test]
    fn it_goes_back_the_way_it_came_one_shift_at_a_time() {
        let mut climb = down();
        climb.descended(2, 5, 1100);
        assert_eq!(climb.ahead(5, 1100, KNOBS), Some((100, 2)), "not by way of 4 and 3, which it never was on");
        climb.climbed(5, 2, 1200);
        assert!(climb.from.is_some() && climb.ahead(2, 1200, KNOBS) == Some((100, 0)));
        assert!(!climb.stepped(1299, KNOBS) && climb.stepped(1300, KNOBS));
        climb.climbed(2, 0, 1300);
        assert_eq!(climb.ahead(0, 1400, KNOBS), None, "home");
    }

    #[test]
    fn each_failed_climb_doubles_the_wait_and_after_three_it_stays() {
        let mut climb = down();
        for (failed, wait) in [(1, 200), (2, 400)] {
            climb.climbed(2, 1, 2000);
            assert_eq!(climb.fault(1, 2050), Some(2), "back to where it was calm");
            assert_eq!((climb.failed(), climb.ahead(2, 2050, KNOBS)), (failed, Some((wait, 1))));
        }
        climb.climbed(2, 1, 3000);
        assert_eq!(climb.fault(1, 3001), Some(2));
        assert_eq!(climb.ahead(2, 9000, KNOBS), None);
        let stored = serde_json::to_string(&climb).unwrap();
        assert_eq!(serde_json::from_str::<Climb>(&stored).unwrap(), climb, "it survives the keeper");
    }

    #[test]
    fn faults_beyond_the_probation_are_no_failed_climbs_and_a_person_has_the_last_word() {
        let mut climb = down();
        assert_eq!(climb.fault(2, 1050), None);
        climb.climbed(2, 1, 1200);
        climb.stepped(1300, KNOBS);
        assert_eq!(climb.fault(1, 1400), None);
        climb.chosen(1500);
        assert_eq!(climb.ahead(1, 9000, KNOBS), None);
        let mut never = down();
        never.proven(1010);
        assert!(!never.is_due(2, 99_000, watch::Climb { after: 0, failures: 3 }));
    }

    #[test]
    fn redone_steps_count_once() {
        let mut climb = down();
        climb.resumed(900);
        assert_eq!(climb.ahead(2, 950, KNOBS), Some((50, 0)), "counted from where it went on");
        climb.proven(940);
        climb.resumed(930);
        assert!(!climb.is_due(2, 1100, KNOBS), "that checkpoint is gone");
    }
}
