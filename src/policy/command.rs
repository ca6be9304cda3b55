//! The policy of a command. It saves when it likes, or when a signal asks it; without arguments to resume, whatever
//! ends it costs everything since its start, and a start from the beginning may overwrite its own outputs. So the
//! keeper ends a command automatically only where little is lost.

mod limits;

pub use limits::{CommandLimits, StartedBy};

use super::age::format_span;
use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Outcome, Pressure};
use super::machine::Policy;
use super::moves::Move;
use super::reason::Reason;
use super::refusal::Refusal;
use crate::config::command::Level as CommandLevel;
use crate::config::command::cost::{Reached, ShiftCost};
use crate::format::count;
use crate::protocol::companion::CompanionNews;
use crate::protocol::continuation::{Continuation, How, NewRun};
use crate::protocol::control::JournalKind;
use crate::protocol::resumed::Resumed;
use crate::protocol::worker::{CommandNews, FailureClass, Level, Order, Phase};
use std::time::Duration;

/// Time to end a command that need not save: its own graces, and a margin.
const ENDING: Duration = Duration::from_secs(10);
/// Time that a companion has to save, and the harness to publish, unless the run file says otherwise.
const SAVING: Duration = Duration::from_mins(1);
/// Steps after which a companion that has not introduced itself is missing, and so are epochs that were not reported.
pub(super) const SILENT_STEPS: u64 = 20;
/// Time in which imports and the loading of a model end; a companion that is silent for longer is not waited for.
pub const COMPANION_WAIT: Duration = Duration::from_mins(5);
/// Alarm key of a silent command.
const SILENT: &str = "silent command";

impl Policy {
    /// Reports whether the companion of the command may report yet: before its first step, for a while.
    #[must_use]
    pub fn awaits_companion(&self, now: Duration) -> bool {
        let Some(within) = self.limits.command.and_then(|command| command.companion_within) else { return false };
        !self.worker.companion.is_there
            && match self.life {
                Lifecycle::New | Lifecycle::AwaitingTurn { .. } | Lifecycle::AwaitingVram { .. } => true,
                Lifecycle::Running(Phase::Starting) => now.saturating_sub(self.worker.started) < within,
                _ => false,
            }
    }

    /// Reports whether the command has taken no step yet, and its companion may still say that it saves and resumes.
    fn may_learn_more(&self, now: Duration) -> bool {
        self.position.reached().taken == 0 && self.awaits_companion(now)
    }

    /// Continues with the worker that an earlier keeper started on this rung.
    pub fn adopt_worker(&mut self, rung: usize, reached: Reached, clock: u64, now: Duration) {
        let loaded = self.position.loaded;
        let _ = self.launch_worker(super::lifecycle::Start::on(rung, "taken over"), now);
        self.position.loaded = loaded;
        (self.position.step, self.position.clock) = (Some(reached.step), Some(clock));
        self.position.began_after = (reached.step > 0).then(|| reached.step.saturating_sub(reached.taken));
        self.position.is_continued = true;
    }

    /// Reports whether the keeper may end the live worker on its own: its work is saved, or can be.
    pub(super) fn may_end_worker(&self) -> bool {
        let is_saved = |command: CommandLimits| {
            command.save_time().is_some() || command.can_resume() && self.position.durable.is_some()
        };
        self.limits.command.is_none_or(|command| command.may_end() && is_saved(command))
    }

    /// Refuses a request that ends a live worker which cannot start again.
    pub(super) fn refuse_loss(&self, now: Duration) -> Result<(), Refusal> {
        let lives = matches!(self.life, Lifecycle::Running(_));
        let Some(command) = self.limits.command.filter(|_| lives) else { return Ok(()) };
        let steps = self.position.reached().taken;
        match self.shift_cost() {
            _ if !command.may_end() => Err(Refusal::NotOurs),
            Some(ShiftCost::Refused(_)) if self.may_learn_more(now) => Err(Refusal::NotKnownYet),
            Some(ShiftCost::Refused(CommandLevel::Command)) => {
                Err(Refusal::LosesEverything { steps, advice: self.if_lost().map_or_else(String::new, NewRun::advice) })
            }
            Some(ShiftCost::Refused(CommandLevel::Checkpoints | CommandLevel::Companion)) => {
                Err(Refusal::NothingSaved { steps })
            }
            _ => Ok(()),
        }
    }

    /// Returns the cost of an end of the command now, as its preview tells it; none for a worker of ours.
    fn shift_cost(&self) -> Option<ShiftCost> {
        Some(ShiftCost::of(self.limits.command?.resumption(), self.position.reached()))
    }

    /// Reports whether the worker saves when it is asked to: not a command that neither a signal nor a companion asks.
    #[must_use]
    pub fn saves_on_request(&self) -> bool {
        self.limits.command.is_none_or(|command| command.save_time().is_some())
    }

    /// Refuses to save what cannot be asked to.
    pub(super) fn refuse_save(&self, now: Duration) -> Result<(), Refusal> {
        match self.saves_on_request() {
            true => Ok(()),
            false if self.may_learn_more(now) => Err(Refusal::NotKnownYet),
            false => Err(Refusal::CannotAskToSave),
        }
    }

    /// Says where a command starts again that was ended without a save.
    pub(super) fn describe_start(&self) -> String {
        match self.shift_cost() {
            Some(ShiftCost::BackTo { checkpoint, .. }) => format!("from its checkpoint at step {}", count(checkpoint)),
            _ => "from its beginning".to_owned(),
        }
    }

    /// Returns how the run continues after its end.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        if matches!(self.life, Lifecycle::Over(Outcome::Finished)) {
            return self.limits.commands.by_resume(How::Nothing);
        }
        let resumes = self.limits.command.is_none_or(CommandLimits::can_resume);
        self.limits.commands.after(self.is_lost(), self.position.durable.filter(|_| resumes))
    }

    /// Returns how the run starts anew, if nothing resumes its command.
    pub(super) fn if_lost(&self) -> Option<&NewRun> {
        self.limits.commands.again.as_ref().filter(|_| self.is_lost())
    }

    fn is_lost(&self) -> bool {
        self.limits.command.is_some_and(|command| !command.may_restart())
    }

    /// Returns the end of the run, if its command may not be started again.
    pub(super) fn end_of_command(&self, fault: &Fault) -> Option<Outcome> {
        let command = self.limits.command?;
        let fault = fault.clone();
        if let Some(pattern) = self.worker.unmatched.clone().filter(|_| self.starts_over(command)) {
            return Some(Outcome::NeedsPerson(Reason::UnmatchedOutputs { fault, pattern }));
        }
        if matches!(command.started_by, StartedBy::User { .. }) && self.starts_over(command) {
            return Some(Outcome::NeedsPerson(Reason::UnknownStart(fault)));
        }
        if command.may_restart() {
            return None;
        }
        let (saves, again) = (command.save_time().is_some(), self.if_lost().cloned());
        Some(Outcome::NeedsPerson(Reason::NothingResumes { fault, saves, again }))
    }

    /// Takes note of who started the process that runs from now on.
    pub fn note_start(&mut self, started_by: StartedBy) {
        if let Some(command) = &mut self.limits.command {
            command.started_by = started_by;
        }
    }

    /// Reports whether a restart begins anew although the run file says how to resume, and does not allow that.
    fn starts_over(&self, command: CommandLimits) -> bool {
        command.resumes && !command.from_start && self.position.durable.is_none()
    }

    /// Returns the end of a run whose command ended while no keeper watched it, unless it may start again.
    #[must_use]
    pub fn end_of_lost_command(&self) -> Option<Outcome> {
        self.end_of_command(&Fault::new(FailureClass::Unknown, "the command ended while no keeper watched it"))
    }

    /// Handles a move that would end a command whose work is not saved: it is only noted, once for each worker.
    pub(super) fn note_unmade_move(&mut self, what: Move, why: &str) -> Vec<Effect> {
        let kind = std::mem::discriminant(&what);
        if self.worker.unmade.contains(&kind) {
            return Vec::new();
        }
        self.worker.unmade.push(kind);
        let text = format!("{why}; training continues, because ending the command would lose its work");
        vec![Effect::Journal(Level::Warn, JournalKind::Health, text)]
    }

    /// Handles news of the command.
    pub(super) fn handle_command_news(&mut self, news: &CommandNews, now: Duration) -> Vec<Effect> {
        match news {
            CommandNews::Length { units, .. } => {
                self.position.total_units = if *units == 0 { u64::MAX } else { *units };
                Vec::new()
            }
            CommandNews::Active => {
                self.watches.hang.active(now);
                self.end_silence()
            }
            CommandNews::Companion(companion) => self.handle_companion(companion),
            CommandNews::Ranks { rows } => {
                self.watches.hang.ranks(rows, now);
                Vec::new()
            }
            CommandNews::WentBack { step, samples } => {
                self.go_back_to(*step, *samples);
                Vec::new()
            }
            CommandNews::Resumed { resumed, samples } => {
                self.correct_start(resumed, *samples);
                Vec::new()
            }
            CommandNews::Updates(counts) => {
                let why = self.watches.updates.observe_counts(*counts, &self.limits.watch);
                self.relieve_numerics(why, now)
            }
            CommandNews::Epoch { epoch } => {
                self.position.epoch = Some(*epoch);
                self.ledger.climb.plan.see_epoch(*epoch);
                Vec::new()
            }
            CommandNews::Unmatched { pattern } => {
                self.worker.unmatched = Some(pattern.clone());
                Vec::new()
            }
            CommandNews::Stacks { .. }
            | CommandNews::Measured { .. }
            | CommandNews::Fingerprint(_)
            | CommandNews::Ended { .. } => Vec::new(),
        }
    }

    /// Counts from the step at which the command trains on, if that is another one than it was asked to resume from.
    fn correct_start(&mut self, resumed: &Resumed, samples: u64) {
        let has_stepped = self.position.step != self.position.loaded;
        if resumed.step() != resumed.asked() && !has_stepped {
            self.position.loaded = Some(resumed.step()).filter(|step| *step > 0);
            self.go_back_to(resumed.step(), samples);
        }
    }

    fn go_back_to(&mut self, step: u64, samples: u64) {
        self.position.go_back(step, samples);
        self.ledger.climb.rewind_to(step);
        self.ledger.climb.plan.rewind_to(samples, step);
    }

    /// Takes over what an earlier keeper knew about the companion of the command.
    pub fn restore_companion(&mut self, companion: &CompanionNews) {
        if let Some(command) = &mut self.limits.command {
            command.companion_save = companion.resumes().then_some(SAVING);
        }
    }

    /// Reports whether the script trains without the companion that it had in an earlier attempt.
    #[must_use]
    pub fn misses_companion(&self) -> bool {
        let expected = self.limits.command.is_some_and(|command| command.companion_save.is_some());
        let taken = self.current_step().saturating_sub(self.position.loaded.unwrap_or(0));
        expected && !self.worker.companion.is_there && taken >= SILENT_STEPS
    }

    /// Forgets a companion that the script no longer has.
    pub fn forget_companion(&mut self) {
        if let Some(command) = &mut self.limits.command {
            command.companion_save = None;
        }
    }

    /// Handles the introduction of a companion, or another value in it.
    fn handle_companion(&mut self, companion: &CompanionNews) -> Vec<Effect> {
        self.restore_companion(companion);
        self.position.epoch_units = companion.epoch_units.unwrap_or(self.position.epoch_units);
        let is_ended = self.limits.command.is_some_and(CommandLimits::may_end_hung);
        // One that sees only optimizer steps cannot tell a save or an evaluation from a hang.
        if companion.framework.sees_losses() {
            self.watches.hang.watch_companion(is_ended);
        }
        self.worker.companion.is_there = true;
        self.compare_knobs(companion)
    }

    /// Ends the alarm of a silent command.
    pub(super) fn end_silence(&mut self) -> Vec<Effect> {
        let over = std::mem::take(&mut self.worker.silent);
        over.then_some(Effect::AlarmOver(SILENT)).into_iter().collect()
    }

    /// Handles the silence of a command that cannot start again: nothing is ended, you are told.
    pub(super) fn note_silence(&mut self, now: Duration) -> Option<Vec<Effect>> {
        let command = self.limits.command.filter(|command| !command.may_end_hung())?;
        let long = format_span(self.watches.hang.limit());
        self.watches.hang.alarmed(now);
        if std::mem::replace(&mut self.worker.silent, true) {
            return Some(Vec::new());
        }
        let seen = match self.watches.hang.describe_last_rank() {
            Some(rank) => format!("the command has made no progress for {long}: {rank}"),
            None => format!("the command has printed nothing and used no CPU time for {long}"),
        };
        // A process that was adopted is ended with `--may-end` only.
        let why = if command.may_end() {
            ", because nothing resumes it: `downshift stop` ends it, and with `restart: from_start` in a run file it would \
             start over"
        } else {
            ""
        };
        let text = format!("{seen}; it is left alone{why}");
        let mut effects = vec![Effect::Alarm { key: SILENT, title: "no sign of life", text }];
        effects.extend(self.worker.companion.is_there.then_some(Effect::Order(Order::Stacks)));
        Some(effects)
    }

    /// Returns the time that a stop of a command takes.
    pub(super) fn stop_grace_of_command(&self, pressure: Pressure, checkpoint: bool) -> Option<Duration> {
        let command = self.limits.command.filter(|_| pressure == Pressure::Asked)?;
        Some(command.save_time().filter(|_| checkpoint).unwrap_or_default() + ENDING)
    }
}

#[cfg(test)]
pub(super) mod tests;
