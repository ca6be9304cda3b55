//! The policy of a command. It saves when it likes, or when a signal asks it; without arguments to resume, whatever
//! ends it costs everything since its start, and a start from the beginning may overwrite its own outputs. So the
//! keeper ends a command automatically only where little is lost.

mod limits;

pub use limits::{CommandTimes, StartedBy};

use super::age::format_span;
use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Outcome, Pressure};
use super::machine::Policy;
use super::moves::Move;
use super::reason::Reason;
use crate::format::count;
use crate::outlook::continuation::{Continuation, How, NewRun};
use crate::outlook::cost::{Cost, Reached};
use crate::outlook::request::Situation;
use crate::protocol::capability::{Capability, Resumption};
use crate::protocol::companion::CompanionNews;
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
        let Some(within) = self.limits.times.companion_within else { return false };
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
        let can = self.capability;
        can.may_end && (can.saves_on_request() || can.can_resume() && self.position.durable.is_some())
    }

    /// Returns what decides about a request.
    pub(super) fn situation(&self, now: Duration) -> Situation<'_> {
        Situation {
            state: self.life.state(),
            is_running: matches!(self.life, Lifecycle::Running(_)),
            is_ending: !self.may_shift(),
            capability: self.capability,
            may_learn_more: self.may_learn_more(now),
            reached: self.position.reached(),
            rung: self.rung,
            rungs: self.limits.rungs.iter().map(String::as_str).collect(),
            below: self.surroundings().rung_below(self.rung, &self.limits.knobs),
            continuation: self.continuation(),
            again: self.limits.commands.again.as_ref(),
        }
    }

    /// Returns what the worker can do, as far as it is known now.
    #[must_use]
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// Says where a command starts again that was ended without a save.
    pub(super) fn describe_start(&self) -> String {
        match Cost::of(self.capability, self.position.reached()) {
            Some(Cost::BackTo { checkpoint, .. }) => format!("from its checkpoint at step {}", count(checkpoint)),
            _ => "from its beginning".to_owned(),
        }
    }

    /// Returns how the run continues after its end.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        if matches!(self.life, Lifecycle::Over(Outcome::Finished)) {
            return self.limits.commands.by_resume(How::Nothing);
        }
        let durable = self.position.durable.filter(|_| self.capability.can_resume());
        self.limits.commands.after(!self.capability.may_restart(), durable)
    }

    /// Returns how the run starts anew, if nothing resumes its command.
    pub(super) fn if_lost(&self) -> Option<&NewRun> {
        self.limits.commands.again.as_ref().filter(|_| !self.capability.may_restart())
    }

    /// Returns the end of the run, if its command may not be started again.
    pub(super) fn end_of_command(&self, fault: &Fault) -> Option<Outcome> {
        let fault = fault.clone();
        if let Some(pattern) = self.worker.unmatched.clone().filter(|_| self.starts_over()) {
            return Some(Outcome::NeedsPerson(Reason::UnmatchedOutputs { fault, pattern }));
        }
        if matches!(self.started_by, StartedBy::User { .. }) && self.starts_over() {
            return Some(Outcome::NeedsPerson(Reason::UnknownStart(fault)));
        }
        if self.capability.may_restart() {
            return None;
        }
        let (saves, again) = (self.capability.saves_on_request(), self.if_lost().cloned());
        Some(Outcome::NeedsPerson(Reason::NothingResumes { fault, saves, again }))
    }

    /// Takes note of who started the process that runs from now on.
    pub fn note_start(&mut self, started_by: StartedBy) {
        self.started_by = started_by;
        self.capability.may_end = started_by != StartedBy::User { may_end: false };
    }

    /// Reports whether a restart begins anew although the run file says how to resume, and does not allow that.
    fn starts_over(&self) -> bool {
        let can = self.limits.capability;
        can.resumes == Resumption::Checkpoints && !can.may_start_over && self.position.durable.is_none()
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
            | CommandNews::TimeLeft { .. }
            | CommandNews::Unread(_)
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
        self.capability = self.capability.with_companion(self.limits.capability, companion.resumes());
    }

    /// Reports whether the script trains without the companion that it had in an earlier attempt.
    #[must_use]
    pub fn misses_companion(&self) -> bool {
        let expected = self.capability.resumes == Resumption::Companion;
        let taken = self.current_step().saturating_sub(self.position.loaded.unwrap_or(0));
        expected && !self.worker.companion.is_there && taken >= SILENT_STEPS
    }

    /// Forgets a companion that the script no longer has.
    pub fn forget_companion(&mut self) {
        self.capability = self.capability.with_companion(self.limits.capability, false);
    }

    /// Handles the introduction of a companion, or another value in it.
    fn handle_companion(&mut self, companion: &CompanionNews) -> Vec<Effect> {
        self.restore_companion(companion);
        self.position.epoch_units = companion.epoch_units.unwrap_or(self.position.epoch_units);
        let is_ended = self.capability.may_end_hung();
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
        if self.capability.may_end_hung() {
            return None;
        }
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
        let why = if self.capability.may_end {
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
        let by_companion = || (self.capability.resumes == Resumption::Companion).then_some(SAVING);
        let save = || self.limits.times.save_within.or_else(by_companion).filter(|_| checkpoint).unwrap_or_default();
        (self.capability.is_command() && pressure == Pressure::Asked).then(|| save() + ENDING)
    }
}

#[cfg(test)]
pub(super) mod tests;
