//! Requests of the user, by key or command.

use super::event::Effect;
use super::life::{Life, Outcome, Pressure, Start, Then};
use super::machine::Policy;
use crate::protocol::control::{JournalKind, Request, Target};
use crate::protocol::worker::{Level, Order};
use std::time::Duration;

const NO_SHIFT: &str = "the run is ending; shift after `downshift resume`";

impl Policy {
    pub(super) fn asked(&mut self, request: &Request, now: Duration) -> Vec<Effect> {
        if let Life::Over(_) = self.life {
            return refuse("the run is over; `downshift resume` starts it again from its newest checkpoint");
        }
        match request {
            // The keeper handles these itself.
            Request::Subscribe | Request::Prune => Vec::new(),
            Request::Shift { to } => self.asked_to_shift(to, now),
            Request::Checkpoint => match self.life {
                Life::Running(_) => accept("saves at the next step border", vec![Effect::Order(Order::Checkpoint)]),
                _ => refuse("no worker is running, so there is nothing new to save"),
            },
            Request::Restart => self.asked_to_restart(now),
            Request::Pause => self.asked_to_pause(now),
            Request::Resume => self.asked_to_resume(now),
            Request::Stop => self.asked_to_stop(now),
            Request::Accept => self.asked_to_accept(now),
            Request::Autopilot { on } => {
                self.ledger.autopilot = Some(*on);
                let text = if *on {
                    "autopilot on: the keeper may shift alone"
                } else {
                    "autopilot off: the keeper proposes, a person shifts"
                };
                let mut effects = vec![Effect::Asked(Level::Info, JournalKind::Request, text.to_owned())];
                if *on {
                    effects.extend(self.settle_proposal(now));
                }
                accept(text, effects)
            }
        }
    }

    fn asked_to_accept(&mut self, now: Duration) -> Vec<Effect> {
        let why = self.ledger.proposal.as_ref().map(|proposal| proposal.why.clone()).unwrap_or_default();
        match self.accept_proposal("you", now) {
            Ok((message, mut effects)) => {
                let text = format!("accept the proposal ({why})");
                effects.insert(0, Effect::Asked(Level::Info, JournalKind::Request, text));
                accept(&message, effects)
            }
            Err(why) => refuse(&why),
        }
    }

    pub(super) fn asked_to_shift(&mut self, to: &Target, now: Duration) -> Vec<Effect> {
        let target = match self.target(to) {
            Ok(target) => target,
            Err(why) => return refuse(&why),
        };
        if !self.may_shift() {
            return refuse(NO_SHIFT);
        }
        let (from, onto) = (self.rung_name(self.rung).to_owned(), self.rung_name(target).to_owned());
        let direction = if target > self.rung { "down" } else { "up" };
        let reason = format!("shift {direction}: {from} → {onto}");
        let start = Start::on(target, reason.clone());
        self.ledger.proposal = None;
        self.wishes.before(&self.ledger.climb);
        self.ledger.climb.chosen(self.at());
        let mut told = vec![Effect::Asked(Level::Info, JournalKind::Shift, reason)];
        told.extend(self.plan_chosen(target));
        match std::mem::replace(&mut self.life, Life::New) {
            Life::Running(phase) => {
                self.life = Life::Running(phase);
                told.extend(self.press(Then::Start(start), Pressure::Asked, now));
                self.rung = target;
                accept(&format!("shifts to {onto} at the next step border"), told)
            }
            Life::Stopping { then: Then::Start(_) | Then::Recover(_) | Then::Cool(_), pressure, until } => {
                self.life = Life::Stopping { then: Then::Start(start), pressure, until };
                self.rung = target;
                accept(&format!("goes on to {onto} instead"), told)
            }
            Life::AwaitingVram { until, .. } => {
                self.life = Life::AwaitingVram { start, until };
                self.rung = target;
                accept(&format!("starts on {onto} once the card is free"), told)
            }
            Life::BackingOff { until, .. } => {
                self.life = Life::BackingOff { start, until };
                self.rung = target;
                accept(&format!("starts on {onto} after the wait"), told)
            }
            Life::Cooling { until, .. } => {
                self.life = Life::Cooling { start, until };
                self.rung = target;
                accept(&format!("starts on {onto} once the card has cooled"), told)
            }
            Life::Paused => {
                self.life = Life::Paused;
                self.rung = target;
                accept(&format!("stays paused; resumes on {onto}"), told)
            }
            other => {
                self.life = other;
                refuse(NO_SHIFT)
            }
        }
    }

    /// Reports whether the state of the run allows a shift.
    fn may_shift(&self) -> bool {
        match &self.life {
            Life::New | Life::Over(_) => false,
            Life::Stopping { then, .. } => matches!(then, Then::Start(_) | Then::Recover(_) | Then::Cool(_)),
            _ => true,
        }
    }

    /// Resolves the target rung, if it differs from the current one.
    fn target(&self, to: &Target) -> Result<usize, String> {
        let (here, rungs) = (self.rung, &self.limits.rungs);
        let target = match to {
            Target::Down if here + 1 >= rungs.len() => {
                return Err(format!("{} is the safest rung", self.rung_name(here)));
            }
            Target::Up if here == 0 => return Err(format!("{} is the fastest rung", self.rung_name(here))),
            Target::Down => here + 1,
            Target::Up => here - 1,
            Target::Rung(name) => rungs
                .iter()
                .position(|rung| rung == name)
                .or_else(|| name.parse().ok().filter(|number| *number < rungs.len()))
                .ok_or_else(|| format!("no rung `{name}`; the ladder has {}", rungs.join(", ")))?,
        };
        if target == here {
            return Err(format!("the run is on {} already", self.rung_name(here)));
        }
        self.limits.barriers.get(&(here, target)).map_or(Ok(target), |why| Err(why.clone()))
    }

    /// Handles a resume. In any state of the run it opens a fresh restart budget.
    fn asked_to_resume(&mut self, now: Duration) -> Vec<Effect> {
        self.ledger.refresh();
        match self.life {
            Life::Paused | Life::BackingOff { .. } | Life::Cooling { .. } => {
                let reason = format!("resumed on {}", self.rung_name(self.rung));
                let text = format!("resume on {}", self.rung_name(self.rung));
                let mut effects = vec![Effect::Asked(Level::Info, JournalKind::Request, text)];
                effects.extend(self.start(Start::on(self.rung, reason), now));
                accept("starts again from the newest checkpoint", effects)
            }
            _ => accept("goes on already; its restart budget is fresh", Vec::new()),
        }
    }

    fn asked_to_restart(&mut self, now: Duration) -> Vec<Effect> {
        if !matches!(self.life, Life::Running(_)) {
            return refuse("no worker is running that could be restarted");
        }
        let name = self.rung_name(self.rung).to_owned();
        let start = Start::on(self.rung, format!("restart on {name}"));
        let text = format!("restart on {name}");
        let mut effects = vec![Effect::Asked(Level::Info, JournalKind::Restart, text)];
        effects.extend(self.press(Then::Start(start), Pressure::Asked, now));
        accept(&format!("saves at the next step border and starts again on {name}"), effects)
    }

    fn asked_to_pause(&mut self, now: Duration) -> Vec<Effect> {
        let told = Effect::Asked(Level::Info, JournalKind::Request, "pause".to_owned());
        match self.life {
            Life::Running(_) => {
                let mut effects = vec![told];
                effects.extend(self.press(Then::Pause, Pressure::Asked, now));
                accept("saves at the next step border, then ends the worker and frees its memory", effects)
            }
            Life::AwaitingVram { .. } | Life::BackingOff { .. } | Life::Cooling { .. } => {
                self.life = Life::Paused;
                accept("pauses now", vec![told])
            }
            Life::Paused => refuse("the run is paused already"),
            _ => refuse("the worker is ending already"),
        }
    }

    fn asked_to_stop(&mut self, now: Duration) -> Vec<Effect> {
        let told = Effect::Asked(Level::Info, JournalKind::Request, "stop".to_owned());
        match self.life {
            Life::Running(_) if self.wishes.stop_is_repeated(now) && self.wishes.stop_was_refused() => {
                let text = format!("stop without saving, as it was asked for again; {}", self.unsaved());
                let mut effects = vec![Effect::Asked(Level::Warn, JournalKind::Request, text)];
                effects.extend(self.press(Then::End, Pressure::Asked, now));
                accept(&format!("ends without saving; {}", self.unsaved()), effects)
            }
            Life::Running(_) => {
                let mut effects = vec![told];
                self.wishes.stop_asked(now);
                effects.extend(self.press(Then::End, Pressure::Asked, now));
                accept("saves at the next step border, then ends; ask again to end without waiting", effects)
            }
            Life::Stopping { then: Then::End, pressure: Pressure::Asked, .. } if !self.wishes.stop_is_repeated(now) => {
                accept(
                    "saves at the next step border already; ask again in a moment to end without waiting",
                    Vec::new(),
                )
            }
            Life::Stopping { then: Then::End, pressure: Pressure::Asked, .. } => {
                let effects = self.press(Then::End, Pressure::Terminated, now);
                accept("ends without waiting for the checkpoint", effects)
            }
            Life::Stopping { pressure, until, .. } => {
                self.wishes.stop_asked(now);
                self.life = Life::Stopping { then: Then::End, pressure, until };
                accept("ends instead of starting again", vec![told])
            }
            _ => {
                let mut effects = vec![told];
                effects.extend(self.finish(Outcome::Stopped));
                accept("ends now", effects)
            }
        }
    }
}

fn accept(message: &str, mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.insert(0, Effect::Reply { accepted: true, message: message.to_owned() });
    effects
}

fn refuse(message: &str) -> Vec<Effect> {
    vec![Effect::Reply { accepted: false, message: message.to_owned() }]
}
