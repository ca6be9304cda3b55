//! Requests of the user, by key or command.

use super::event::Effect;
use super::lifecycle::{Lifecycle, Pressure, Start, Then};
use super::machine::Policy;
use crate::outlook::request::Refusal;
use crate::protocol::control::{JournalKind, Request, Target};
use crate::protocol::worker::{Level, Order};
use std::time::Duration;

/// The answer to a request, and the effects of an accepted one.
type Answer = Result<(String, Vec<Effect>), Refusal>;

impl Policy {
    pub(super) fn answer_request(&mut self, request: &Request, now: Duration) -> Vec<Effect> {
        match self.try_request(request, now) {
            Ok(None) => Vec::new(),
            Ok(Some((message, mut effects))) => {
                effects.insert(0, Effect::Reply(Ok(message)));
                effects
            }
            Err(refusal) => vec![Effect::Reply(Err(refusal))],
        }
    }

    fn try_request(&mut self, request: &Request, now: Duration) -> Result<Option<(String, Vec<Effect>)>, Refusal> {
        self.situation(now).check(request)?;
        Ok(Some(match request {
            // The keeper handles these itself.
            Request::Subscribe | Request::Prune | Request::StandBy { .. } => return Ok(None),
            Request::Shift { to } => self.request_shift(to, now)?,
            Request::Checkpoint => {
                ("will save at the next step boundary".to_owned(), vec![Effect::Order(Order::Checkpoint)])
            }
            Request::Restart => self.request_restart(now),
            Request::Pause => self.request_pause(now)?,
            Request::Resume => self.request_resume(now),
            Request::Stop => self.request_stop(now),
            Request::Accept => self.request_accept(now)?,
            Request::Autopilot { on } => self.set_autopilot(*on, now),
        }))
    }

    fn set_autopilot(&mut self, on: bool, now: Duration) -> (String, Vec<Effect>) {
        self.ledger.autopilot = Some(on);
        let text = if on {
            "autopilot on: the keeper shifts on its own"
        } else {
            "autopilot off: the keeper proposes, and you decide"
        };
        let mut effects = vec![request_note(Level::Info, JournalKind::Request, text)];
        if on {
            effects.extend(self.settle_proposal(now));
        }
        (text.to_owned(), effects)
    }

    fn request_accept(&mut self, now: Duration) -> Answer {
        let why = self.ledger.proposal.as_ref().map(|proposal| proposal.why.clone()).unwrap_or_default();
        let (message, mut effects) = self.accept_proposal("you", now)?;
        effects.insert(0, request_note(Level::Info, JournalKind::Request, format!("accept the proposal ({why})")));
        Ok((message, effects))
    }

    pub(super) fn request_shift(&mut self, to: &Target, now: Duration) -> Answer {
        let target = self.resolve_target(to, now)?;
        let (from, onto) = (self.rung_name(self.rung).to_owned(), self.rung_name(target).to_owned());
        let direction = if target > self.rung { "down" } else { "up" };
        let reason = format!("shift {direction}: {from} → {onto}");
        let start = Start::on(target, reason.clone());
        let mut effects = vec![request_note(Level::Info, JournalKind::Shift, reason)];
        effects.extend(self.settle_on(target));
        let answer = match std::mem::replace(&mut self.life, Lifecycle::New) {
            Lifecycle::Running(phase) => {
                self.life = Lifecycle::Running(phase);
                effects.extend(self.end_worker(Then::Start(start), Pressure::Asked, now));
                if self.capability.saves_on_request() {
                    format!("will shift to {onto} at the next step boundary")
                } else {
                    format!("will end the command and start it on {onto}, {}", self.describe_start())
                }
            }
            Lifecycle::Stopping { pressure, until, .. } => {
                self.life = Lifecycle::Stopping { then: Then::Start(start), pressure, until };
                format!("will continue on {onto} instead")
            }
            Lifecycle::AwaitingTurn { since, waiting, .. } => {
                self.life = Lifecycle::AwaitingTurn { start, since, waiting };
                format!("will start on {onto} once it is this run's turn on the card")
            }
            Lifecycle::AwaitingVram { until, .. } => {
                self.life = Lifecycle::AwaitingVram { start, until };
                format!("will start on {onto} once the GPU is free")
            }
            Lifecycle::BackingOff { until, .. } => {
                self.life = Lifecycle::BackingOff { start, until };
                format!("will start on {onto} after the wait")
            }
            Lifecycle::Cooling { until, .. } => {
                self.life = Lifecycle::Cooling { start, until };
                format!("will start on {onto} once the GPU has cooled")
            }
            rests => {
                self.life = rests;
                format!("stays paused; will resume on {onto}")
            }
        };
        Ok((answer, effects))
    }

    /// Chooses the rung that a run without a worker goes on with from this step and clock. Returns the journal lines.
    ///
    /// # Errors
    /// Returns why the run cannot go on with that rung, or is on it already.
    pub fn choose_rung(&mut self, to: &Target, step: u64, clock: u64) -> Result<Vec<Effect>, Refusal> {
        let target = self.resolve_target(to, Duration::ZERO)?;
        (self.position.durable, self.position.clock) = (Some(step), Some(clock));
        let text = format!("shift: {} → {}", self.rung_name(self.rung), self.rung_name(target));
        let mut effects = vec![request_note(Level::Info, JournalKind::Shift, text)];
        effects.extend(self.settle_on(target));
        Ok(effects)
    }

    /// Goes on with a rung that the user chose. Returns a journal line if that ends the climb plan.
    fn settle_on(&mut self, target: usize) -> Option<Effect> {
        self.begin_shift(target, None);
        self.ledger.proposal = None;
        self.ledger.climb.choose_rung(self.current_step());
        let ends = self.note_chosen_rung(target);
        self.rung = target;
        ends
    }

    /// Reports whether the state of the run allows a shift.
    pub(super) fn may_shift(&self) -> bool {
        match &self.life {
            Lifecycle::New | Lifecycle::Over(_) => false,
            Lifecycle::Stopping { then, .. } => matches!(then, Then::Start(_) | Then::Recover(_) | Then::Cool(_)),
            _ => true,
        }
    }

    fn resolve_target(&self, to: &Target, now: Duration) -> Result<usize, Refusal> {
        let target = self.situation(now).resolve(to)?;
        self.barrier(self.rung, target).map_or(Ok(target), |why| Err(Refusal::OtherShape(why)))
    }

    /// Handles a resume. In any state of the run it opens a fresh restart budget.
    fn request_resume(&mut self, now: Duration) -> (String, Vec<Effect>) {
        self.ledger.refresh();
        let start = Start::on(self.rung, format!("resumed on {}", self.rung_name(self.rung)));
        match self.life {
            Lifecycle::Stopping { ref mut then, .. } if matches!(then, Then::Pause) => {
                *then = Then::Start(Start::on(self.rung, "restart after a withdrawn pause"));
                let note = request_note(Level::Info, JournalKind::Request, "resume instead of the pause");
                ("continues once the worker has ended".to_owned(), vec![note])
            }
            Lifecycle::Paused | Lifecycle::BackingOff { .. } | Lifecycle::Cooling { .. } => {
                let text = format!("resume on {}", self.rung_name(self.rung));
                let mut effects = vec![request_note(Level::Info, JournalKind::Request, text)];
                effects.extend(self.start_worker(start, now));
                let answer = match &self.life {
                    Lifecycle::AwaitingTurn { waiting, .. } => format!("waits for the card: {waiting}"),
                    _ => "continues from the newest checkpoint".to_owned(),
                };
                (answer, effects)
            }
            Lifecycle::AwaitingTurn { ref waiting, .. } => (format!("waits for the card: {waiting}"), Vec::new()),
            _ => ("already running; its restart budget is fresh".to_owned(), Vec::new()),
        }
    }

    fn request_restart(&mut self, now: Duration) -> (String, Vec<Effect>) {
        let name = self.rung_name(self.rung).to_owned();
        let text = format!("restart on {name}");
        let start = Start::on(self.rung, text.clone());
        let mut effects = vec![request_note(Level::Info, JournalKind::Restart, text)];
        effects.extend(self.end_worker(Then::Start(start), Pressure::Asked, now));
        let answer = if self.capability.saves_on_request() {
            format!("will save at the next step boundary and restart on {name}")
        } else {
            format!("will end the command and start it again on {name}, {}", self.describe_start())
        };
        (answer, effects)
    }

    fn request_pause(&mut self, now: Duration) -> Answer {
        let mut effects = vec![request_note(Level::Info, JournalKind::Request, "pause")];
        match self.life {
            Lifecycle::Running(_) => {
                effects.extend(self.end_worker(Then::Pause, Pressure::Asked, now));
                let answer = if self.capability.saves_on_request() {
                    "will save at the next step boundary, then end the worker and free its memory".to_owned()
                } else {
                    let lost = self.unsaved_steps();
                    format!(
                        "will end the command, which frees its memory; {lost}; `{}` starts it again",
                        self.continuation().command
                    )
                };
                Ok((answer, effects))
            }
            Lifecycle::AwaitingTurn { .. }
            | Lifecycle::AwaitingVram { .. }
            | Lifecycle::BackingOff { .. }
            | Lifecycle::Cooling { .. } => {
                self.life = Lifecycle::Paused;
                Ok(("pauses now".to_owned(), effects))
            }
            _ => Err(Refusal::WorkerEnding),
        }
    }

    fn request_stop(&mut self, now: Duration) -> (String, Vec<Effect>) {
        let stop = request_note(Level::Info, JournalKind::Request, "stop");
        match self.life {
            Lifecycle::Running(_) if self.wishes.stop_is_repeated(now) && self.wishes.stop_was_refused() => {
                let text = format!("stop without saving, as the second request; {}", self.unsaved_steps());
                let mut effects = vec![request_note(Level::Warn, JournalKind::Request, text)];
                effects.extend(self.end_worker(Then::End, Pressure::Asked, now));
                (format!("ends without saving; {}", self.unsaved_steps()), effects)
            }
            Lifecycle::Running(_) => {
                let mut effects = vec![stop];
                self.wishes.note_stop(now);
                effects.extend(self.end_worker(Then::End, Pressure::Asked, now));
                let answer = if !self.capability.may_end {
                    "stops watching; the training goes on"
                } else if self.capability.saves_on_request() {
                    "will save at the next step boundary, then end; a second stop does not wait for that"
                } else {
                    "will end the command; a second stop does not wait for it"
                };
                (answer.to_owned(), effects)
            }
            Lifecycle::Stopping { then: Then::End, pressure: Pressure::Asked, .. }
                if !self.wishes.stop_is_repeated(now) =>
            {
                ("already saving before the end; another stop in a moment does not wait for it".to_owned(), Vec::new())
            }
            Lifecycle::Stopping { then: Then::End, pressure: Pressure::Asked, .. } => {
                let effects = self.end_worker(Then::End, Pressure::Terminated, now);
                ("ends without waiting for the checkpoint".to_owned(), effects)
            }
            Lifecycle::Stopping { pressure, until, .. } => {
                self.wishes.note_stop(now);
                self.life = Lifecycle::Stopping { then: Then::End, pressure, until };
                ("ends instead of starting again".to_owned(), vec![stop])
            }
            _ => {
                let mut effects = vec![stop];
                effects.extend(self.end_as_asked());
                ("ends now".to_owned(), effects)
            }
        }
    }
}

/// Creates the journal line of a request; the keeper adds its author.
fn request_note(level: Level, kind: JournalKind, text: impl Into<String>) -> Effect {
    Effect::Asked(level, kind, text.into())
}
