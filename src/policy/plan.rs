//! The climb plan: a run's stages in order, each proven before the next.
//!
//! A stage ends when its length is reached, its last steps were clean, and a checkpoint saved since
//! the last disturbance is proven. The keeper's own shifts come first: the run climbs back from a
//! fault, and then the plan continues.

use super::event::Effect;
use super::lifecycle::Lifecycle;
use super::machine::Policy;
use super::moves::Move;
use crate::config::climb::{Length, Stage};
use crate::protocol::control::{JournalKind, PlanStatus};
use crate::protocol::worker::Level;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A stage begins only if the run still lasts for this part of the calm stretch before it: a shift at the very end
/// costs a restart and trains nothing.
const WORTHWHILE: u64 = 10;

/// Progress of a run through its plan. Stored, so that it survives the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Index of the stage, from 0.
    stage: usize,
    /// The run's clock when the stage began.
    clock: u64,
    /// The step at which the stage began.
    step: u64,
    /// The user chose a rung outside the plan: the plan has ended.
    over: bool,
}

impl Progress {
    /// Creates the progress of a new run on `rung`: at the stage of that rung, or without a plan.
    #[must_use]
    pub fn begin(rung: usize, plan: &[Stage]) -> Self {
        let stage = plan.iter().position(|stage| stage.rung == rung);
        Self { stage: stage.unwrap_or(0), over: stage.is_none(), ..Self::default() }
    }

    /// Counts the stage from this checkpoint on; the part before it is not known.
    pub fn count_from(&mut self, clock: u64, step: u64) {
        (self.clock, self.step) = (clock, step);
    }

    /// Returns the index of the stage, unless the plan has ended.
    #[must_use]
    pub fn stage(&self) -> Option<usize> {
        (!self.over).then_some(self.stage)
    }

    /// Enters the next stage.
    pub fn enter_stage(&mut self, stage: usize, clock: u64, step: u64) {
        *self = Self { stage, clock, step, over: false };
    }

    /// Rewinds to where a worker resumes, so that redone steps count once.
    pub fn rewind_to(&mut self, clock: u64, step: u64) {
        (self.clock, self.step) = (self.clock.min(clock), self.step.min(step));
    }

    /// Records that the user chose a rung. The plan continues from the stage of that rung if it is the
    /// current or a later one, and ends otherwise. Returns true when it ends.
    pub fn choose_rung(&mut self, rung: usize, plan: &[Stage], clock: u64, step: u64) -> bool {
        if self.over || plan.is_empty() {
            return false;
        }
        match (self.stage..plan.len()).find(|stage| plan[*stage].rung == rung) {
            Some(stage) if stage == self.stage => {}
            Some(stage) => self.enter_stage(stage, clock, step),
            None => self.over = true,
        }
        self.over
    }
}

/// Conditions still missing before the next stage can begin, the most distant first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lacks {
    Length(Length),
    CleanSteps(u64),
    Proof,
    Nothing,
}

impl Policy {
    /// Returns the current stage, if the run follows a plan.
    fn current_stage(&self) -> Option<(usize, Stage)> {
        let index = self.ledger.climb.plan.stage()?;
        Some((index, *self.limits.plan.get(index)?))
    }

    /// Returns the stage that is due at `step`.
    pub(super) fn stage_due(&self, step: u64) -> Option<usize> {
        let (index, _) = self.current_stage().filter(|(_, stage)| stage.rung == self.rung)?;
        let runs = matches!(self.life, Lifecycle::Running(_));
        let due = runs
            && self.missing_for_next_stage(step)? == Lacks::Nothing
            && self.position.steps_left() >= self.calm_steps()? / WORTHWHILE;
        due.then_some(index + 1)
    }

    /// Returns the clean steps that this stage needs before the next one; a stage shorter than the climb's calm
    /// stretch must be calm over its whole length.
    fn calm_steps(&self) -> Option<u64> {
        let (_, stage) = self.current_stage()?;
        let in_steps = match stage.length? {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => {
                epochs.saturating_mul(self.position.epoch_units) / self.position.pace.units_per_step()
            }
        };
        Some(self.ledger.climb.required_calm(self.limits.watch.climb).unwrap_or(u64::MAX).min(in_steps))
    }

    /// Returns what this stage still lacks; none for the last stage.
    fn missing_for_next_stage(&self, step: u64) -> Option<Lacks> {
        let (index, stage) = self.current_stage()?;
        self.limits.plan.get(index + 1)?;
        let (length, begun) = (stage.length?, self.ledger.climb.plan);
        let steps = step.saturating_sub(begun.step);
        let left = match length {
            Length::Steps(steps_in_all) => Length::Steps(steps_in_all.saturating_sub(steps)),
            Length::Epochs(epochs) => {
                let in_all = epochs.saturating_mul(self.position.epoch_units);
                let left = in_all.saturating_sub(self.position.clock.unwrap_or(0).saturating_sub(begun.clock));
                Length::Epochs(left.div_ceil(self.position.epoch_units.max(1)))
            }
        };
        let climb = &self.ledger.climb;
        let unclean = self.calm_steps()?.saturating_sub(climb.clean_steps(step));
        Some(match (left, unclean) {
            (Length::Steps(1..) | Length::Epochs(1..), _) => Lacks::Length(left),
            (_, 1..) => Lacks::CleanSteps(unclean),
            (_, 0) if !climb.is_proven() => Lacks::Proof,
            (_, 0) => Lacks::Nothing,
        })
    }

    /// Enters the next stage, or proposes it when the autopilot is off.
    pub(super) fn next_stage(&mut self, stage: usize, now: Duration) -> Vec<Effect> {
        let done = self.limits.plan.get(stage.wrapping_sub(1)).and_then(|stage| stage.length);
        let why = done.map_or_else(String::new, |length| format!("{length} done and proven"));
        self.suggest_move(Move::Stage { stage }, &why, now)
    }

    /// Handles the user's choice of the current rung. Returns a journal line when that ends the plan.
    pub(super) fn note_chosen_rung(&mut self, rung: usize) -> Option<Effect> {
        let (clock, step) = (self.position.clock.unwrap_or(0), self.current_step());
        let ends = self.ledger.climb.plan.choose_rung(rung, &self.limits.plan, clock, step);
        let text = format!("the climb plan ends: no later stage uses {}", self.rung_name(rung));
        ends.then_some(Effect::Journal(Level::Info, JournalKind::Shift, text))
    }

    /// Returns the rung of a stage.
    pub(super) fn rung_of_stage(&self, stage: usize) -> usize {
        self.limits.plan.get(stage).map_or(self.rung, |stage| stage.rung)
    }

    /// Describes the run's progress through its plan.
    pub(super) fn describe_plan(&self) -> Option<String> {
        let (index, _) = self.current_stage()?;
        let place = format!("stage {} of {}", index + 1, self.limits.plan.len());
        let Some(lacks) = self.missing_for_next_stage(self.current_step()) else { return Some(place) };
        let next = self.rung_name(self.rung_of_stage(index + 1));
        Some(match lacks {
            Lacks::Length(left) => format!("{place}, {next} in {left}"),
            Lacks::CleanSteps(1) => format!("{place}, {next} in 1 clean step"),
            Lacks::CleanSteps(left) => format!("{place}, {next} in {left} clean steps"),
            Lacks::Proof | Lacks::Nothing => format!("{place}, {next} once a checkpoint is proven"),
        })
    }

    /// Returns the progress through the plan, for programs.
    #[must_use]
    pub fn plan_status(&self) -> Option<PlanStatus> {
        let plan = &self.limits.plan;
        if plan.is_empty() {
            return None;
        }
        let name = |index: usize| plan.get(index).map(|stage| self.rung_name(stage.rung).to_owned());
        let stage = self.ledger.climb.plan.stage();
        Some(PlanStatus {
            stages: plan.len(),
            stage: stage.map(|index| index + 1),
            rung: stage.and_then(name),
            next: stage.and_then(|index| name(index + 1)),
        })
    }
}
