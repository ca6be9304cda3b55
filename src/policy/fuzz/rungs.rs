//! Rungs that fail: some cannot start, and above a safe one each worker crashes at the same step.

use super::super::reason::{Exhausted, Reason};
use super::super::shift::Shift;
use super::{Exit, FailureClass, Outcome, Stream, World, limits, plausible_relief};
use std::collections::BTreeSet;

/// The rungs of a run that fail, and what the policy knows of them.
#[derive(Debug, Default)]
pub(super) struct Rungs {
    /// Cannot start.
    broken: BTreeSet<usize>,
    /// The step at which workers crash, and the first rung on which none does.
    crash: Option<(u64, usize)>,
    /// Have failed to start since the user last resumed the run.
    refused: BTreeSet<usize>,
    /// The rung that the user asked for last.
    asked: Option<usize>,
    /// The rung of the newest worker.
    newest: usize,
    /// The newest worker died before the first step after its shift.
    on_trial: bool,
    /// The class of the newest failure.
    class: Option<FailureClass>,
}

impl Rungs {
    /// Draws the rungs that fail; the first one starts.
    pub fn draw(dice: &mut Stream, first: usize) -> Self {
        let rungs = limits(&[]).rungs.len();
        let count = [0, 0, 1, 2, rungs as u64][dice.below(5) as usize];
        let mut broken: BTreeSet<usize> = (0..count).map(|_| dice.below(rungs as u64) as usize).collect();
        broken.remove(&first);
        let crash = (dice.below(4) == 0).then(|| (20 + dice.below(400), 1 + dice.below(rungs as u64) as usize));
        Self { broken, crash, newest: first, ..Self::default() }
    }

    /// Records that the user resumed the run, which tries every rung again.
    pub fn refresh(&mut self) {
        self.refused.clear();
    }

    /// Reports whether the newest worker crashes at this step.
    pub fn crashes_at(&self, step: u64) -> bool {
        self.crash.is_some_and(|(at, healthy)| step == at && self.newest < healthy)
    }

    /// Reports whether the newest worker died before the first step after its shift.
    pub fn died_on_trial(&self) -> bool {
        self.on_trial
    }

    /// Reports whether a start on this rung costs no restart: a safer rung is tried, or one is left that cannot start.
    pub fn is_free(&self, rung: usize) -> bool {
        rung > self.newest || self.on_trial && rung != self.newest
    }
}

impl World {
    /// Records whether the worker that dies is the first one after a shift, and took no step.
    pub(super) fn note_trial(&mut self) {
        let target = self.policy.ledger.shift.as_ref().map(Shift::target);
        self.rungs.on_trial = target == Some(self.rungs.newest);
    }

    /// Records the failure of a worker.
    pub(super) fn note_failure(&mut self, class: FailureClass) {
        self.rungs.class = Some(class);
    }

    /// Starts a worker on a rung. Returns true if it fails before its first step.
    pub(super) fn fails_to_start(&mut self, rung: usize) -> bool {
        let (seed, asked) = (self.seed, self.rungs.asked == Some(rung));
        (self.rungs.newest, self.rungs.on_trial) = (rung, false);
        let fails = self.rungs.broken.contains(&rung);
        let is_again = fails && !self.rungs.refused.insert(rung);
        assert!(!is_again || asked, "seed {seed}: {rung} failed to start, and nobody asked for it");
        self.rungs.asked = None;
        fails
    }

    /// Ends a worker that cannot start.
    pub(super) fn fail_to_start(&mut self) {
        match self.dice.below(5) {
            0 => self.die(Exit::with_code(2)),
            1 => self.die(Exit::by_signal(11)),
            2 => self.fail(FailureClass::Config),
            3 => self.fail(FailureClass::Checkpoint),
            _ => self.fail(FailureClass::DeviceFault),
        }
    }

    /// Checks that an open shift leads to the rung of the run.
    pub(super) fn judge_shift(&mut self, asked: bool) {
        let (seed, rung) = (self.seed, self.policy.rung());
        if asked {
            self.rungs.asked = Some(rung);
        }
        let target = self.policy.ledger.shift.as_ref().map(Shift::target);
        assert!(
            target.is_none_or(|target| target == rung),
            "seed {seed}: on {rung}, and the shift leads to {target:?}"
        );
    }

    /// Checks that no rung ends the run by failing to start, and that each safer one was tried before the keeper gave up.
    pub(super) fn judge_end(&self, outcome: &Outcome) {
        let (seed, class) = (self.seed, self.rungs.class);
        let failed_to_start = matches!(outcome, Outcome::Failed(FailureClass::Config | FailureClass::Checkpoint, _));
        assert!(!failed_to_start, "seed {seed}: {outcome:?}");
        let Outcome::NeedsPerson(why) = outcome else { return };
        let is_spent = matches!(why, Reason::NoProgress { spent: Exhausted::WithoutProgress(_), .. });
        let gives_up = is_spent && self.policy.autopilot();
        let relief = class.filter(|_| gives_up).and_then(|class| plausible_relief(class, None));
        let unused = relief.and_then(|relief| self.policy.lower_rung(relief));
        assert_eq!(unused, None, "seed {seed}: {class:?} on {}, and this rung was not tried", self.policy.rung());
    }
}
