//! The climb plan: a run's stages in order, each proven before the next.
//!
//! A stage ends when its length is reached, its last steps were clean, and a checkpoint saved since
//! the last disturbance is proven. The keeper's own shifts come first: the run climbs back from a
//! fault, and then the plan continues.

use super::command::SILENT_STEPS;
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
/// Steps after which the first epoch should have been named.
const LONG_EPOCH: u64 = 1000;

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
    /// The lowest epoch that a command reported on this stage. It counts where the length of an epoch is not known.
    epoch: Option<u64>,
    /// The journal says what keeps this stage from ending.
    is_told: bool,
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
        *self = Self { stage, clock, step, ..Self::default() };
    }

    /// Rewinds to where a worker resumes, so that redone steps count once.
    pub fn rewind_to(&mut self, clock: u64, step: u64) {
        (self.clock, self.step) = (self.clock.min(clock), self.step.min(step));
    }

    /// Records the epoch that a command reported.
    pub fn see_epoch(&mut self, epoch: u64) {
        self.epoch = Some(self.epoch.map_or(epoch, |begun| begun.min(epoch)));
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
    /// The length of the stage is in epochs, and none was reported.
    Epochs,
    CleanSteps(u64),
    Proof,
    Nothing,
}

impl Policy {
    /// Reports whether the next stage could begin where the last one ended: a command that nothing resumes would start over.
    fn may_follow_plan(&self) -> bool {
        self.capability.can_resume()
    }

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
            && self.may_follow_plan()
            && self.missing_for_next_stage(step)? == Lacks::Nothing
            && self.position.steps_left() >= self.calm_steps()? / WORTHWHILE;
        self.stage_after(index).filter(|_| due)
    }

    /// Returns the stage that follows this one: the next whose rung can start here.
    fn stage_after(&self, index: usize) -> Option<usize> {
        (index + 1..self.limits.plan.len()).find(|stage| self.may_choose(self.rung_of_stage(*stage)))
    }

    /// Returns the clean steps that this stage needs before the next one; a stage shorter than the climb's calm
    /// stretch must be calm over its whole length.
    fn calm_steps(&self) -> Option<u64> {
        let (_, stage) = self.current_stage()?;
        let in_steps = match stage.length? {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) if self.position.knows_epoch_length() => {
                epochs.saturating_mul(self.position.epoch_units) / self.position.pace.units_per_step()
            }
            Length::Epochs(epochs) => {
                let steps = self.current_step().saturating_sub(self.ledger.climb.plan.step);
                epochs.saturating_mul(steps).checked_div(self.epochs_done().unwrap_or(0)).unwrap_or(u64::MAX)
            }
        };
        Some(self.ledger.climb.required_calm(self.limits.watch.climb).unwrap_or(u64::MAX).min(in_steps))
    }

    /// Returns what this stage still lacks; none for the last stage.
    fn missing_for_next_stage(&self, step: u64) -> Option<Lacks> {
        let (index, stage) = self.current_stage()?;
        self.stage_after(index)?;
        let (length, begun) = (stage.length?, self.ledger.climb.plan);
        let steps = step.saturating_sub(begun.step);
        let left = match length {
            Length::Steps(steps_in_all) => Length::Steps(steps_in_all.saturating_sub(steps)),
            Length::Epochs(epochs) => match self.epochs_left(epochs) {
                Some(left) => Length::Epochs(left),
                None => return Some(Lacks::Epochs),
            },
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

    /// Returns the epochs that a stage of this length still lasts; none before anything tells them.
    fn epochs_left(&self, epochs: u64) -> Option<u64> {
        if !self.position.knows_epoch_length() {
            return Some(epochs.saturating_sub(self.epochs_done()?));
        }
        let units = self.position.epoch_units;
        let done = self.position.clock.unwrap_or(0).saturating_sub(self.ledger.climb.plan.clock);
        Some(epochs.saturating_mul(units).saturating_sub(done).div_ceil(units.max(1)))
    }

    /// Returns the epochs of this stage that a command has reported as done.
    fn epochs_done(&self) -> Option<u64> {
        Some(self.position.epoch?.saturating_sub(self.ledger.climb.plan.epoch?))
    }

    /// Says once what keeps the stage of a command from ending, after enough steps to know.
    pub(super) fn note_stalled_plan(&mut self, step: u64) -> Option<Effect> {
        let lacks = self.missing_for_next_stage(step).filter(|_| self.capability.is_command())?;
        let taken = step.saturating_sub(self.position.loaded.unwrap_or(0));
        let enough = if lacks == Lacks::Epochs { LONG_EPOCH } else { SILENT_STEPS };
        if self.ledger.climb.plan.is_told || taken < enough {
            return None;
        }
        let rung = self.rung_name(self.rung);
        let text = if !self.may_follow_plan() {
            format!(
                "the climb plan is not followed: nothing resumes the command, so the next stage would start it from its \
                 beginning; the run stays on {rung}"
            )
        } else if lacks == Lacks::Epochs {
            format!(
                "the climb plan counts epochs, and the script has named none in {taken} steps, so {rung} lasts until it \
                 does: print `epoch N` with the steps, or give the stages of climb.plan a length in `steps:`"
            )
        } else {
            return None;
        };
        self.ledger.climb.plan.is_told = true;
        Some(Effect::Journal(Level::Warn, JournalKind::Shift, text))
    }

    /// Enters the next stage, or proposes it when the autopilot is off.
    pub(super) fn next_stage(&mut self, stage: usize, now: Duration) -> Vec<Effect> {
        let done = self.current_stage().and_then(|(_, stage)| stage.length);
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
        let (index, _) = self.current_stage().filter(|_| self.may_follow_plan())?;
        let place = format!("stage {} of {}", index + 1, self.limits.plan.len());
        let Some(lacks) = self.missing_for_next_stage(self.current_step()) else { return Some(place) };
        let next = self.rung_name(self.rung_of_stage(self.stage_after(index)?));
        Some(match lacks {
            Lacks::Length(left) => format!("{place}, {next} in {left}"),
            Lacks::Epochs => format!("{place}, {next} once epochs are reported"),
            Lacks::CleanSteps(1) => format!("{place}, {next} in 1 clean step"),
            Lacks::CleanSteps(left) => format!("{place}, {next} in {left} clean steps"),
            Lacks::Proof | Lacks::Nothing => format!("{place}, {next} once training is well past a checkpoint"),
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
        let stage = self.ledger.climb.plan.stage().filter(|_| self.may_follow_plan());
        Some(PlanStatus {
            stages: plan.len(),
            stage: stage.map(|index| index + 1),
            rung: stage.and_then(name),
            next: stage.and_then(|index| name(self.stage_after(index)?)),
        })
    }
}
