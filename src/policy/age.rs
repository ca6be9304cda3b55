//! How old the newest checkpoint may become: then one is asked for, and where that brings none the
//! worker counts as hanging. And planned restarts, which follow a checkpoint.

use super::cause::Cause;
use super::event::Effect;
use super::life::{Life, Pressure, Start, Then};
use super::machine::Policy;
use crate::config::watch::span;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Order, Phase};
use std::time::Duration;

/// The alarm of this watch.
const ALARM: &str = "checkpoint age";
/// A save may take so many times as long as the newest before it counts as failed.
const SLOWER: u32 = 3;

/// Watches the saves of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgeWatch {
    /// When this worker began to train, or last saved.
    since: Option<Duration>,
    /// When a checkpoint was asked for that has not come yet.
    asked: Option<Duration>,
}

impl AgeWatch {
    /// The worker trains: from its first step on its work has an age.
    pub fn trains(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// A checkpoint is durable. True where it was asked for.
    pub fn saved(&mut self, now: Duration) -> bool {
        self.since = Some(now);
        self.asked.take().is_some()
    }

    /// The keeper itself stood still: what it missed is not the worker's fault.
    pub fn forgive(&mut self, now: Duration) {
        self.asked = self.asked.map(|_| now);
    }
}

impl Policy {
    /// When the newest checkpoint is too old, or the answer to a request for one.
    pub(super) fn age_deadline(&self) -> Option<Duration> {
        if !matches!(self.life, Life::Running(Phase::Training)) {
            return None;
        }
        let limit = self.age_limit()?;
        let since = self.age.since?;
        Some(self.age.asked.map_or(since + limit, |asked| asked + self.answer_limit()))
    }

    fn age_limit(&self) -> Option<Duration> {
        self.limits.watch.checkpoint_limit(*self.limits.save_every.get(self.worker_rung)?)
    }

    fn answer_limit(&self) -> Duration {
        span(self.limits.watch.hang.checkpointing).max(self.save * SLOWER)
    }

    /// The deadline is over.
    pub(super) fn too_old(&mut self, now: Duration) -> Vec<Effect> {
        if let Some(asked) = self.age.asked {
            let waited = words(now.saturating_sub(asked));
            return self.no_checkpoint(format!("hang: no checkpoint {waited} after one was asked for"), now);
        }
        self.age.asked = Some(now);
        let age = words(now.saturating_sub(self.age.since.unwrap_or(now)));
        let newest = match self.durable {
            Some(step) => format!("checkpoint {step} is the newest, and training has gone on for {age} since"),
            None => format!("there is no checkpoint after {age} of training"),
        };
        let text = format!("{newest}; one is asked for now (watch.checkpoint_age)");
        vec![Effect::Alarm { key: ALARM, title: "checkpoint overdue", text }, Effect::Order(Order::Checkpoint)]
    }

    /// A save has failed. One that was asked for because the newest is too old counts as a hang; but
    /// where the disk is full another worker could not save either, and this one holds the work.
    pub(super) fn save_failed(&mut self, message: &str, now: Duration) -> Vec<Effect> {
        if self.age.asked.is_none() || !matches!(self.life, Life::Running(_)) {
            return Vec::new();
        }
        if self.disk_is_low {
            (self.age.since, self.age.asked) = (Some(now), None);
            let text = format!("the overdue checkpoint cannot be saved: {message}; free some room, training goes on");
            return vec![Effect::Alarm { key: ALARM, title: "checkpoint overdue", text }];
        }
        self.no_checkpoint(format!("hang: the checkpoint that was asked for cannot be saved: {message}"), now)
    }

    fn no_checkpoint(&mut self, cause: String, now: Duration) -> Vec<Effect> {
        self.age = AgeWatch::default();
        let told = Effect::Journal(Level::Warn, JournalKind::Worker, format!("{cause}; the worker is ended"));
        let then = Then::Recover(Cause::new(FailureClass::Hang, cause));
        let mut effects = vec![told];
        effects.extend(self.press(then, Pressure::Terminated, now));
        effects
    }

    /// A checkpoint came.
    pub(super) fn age_ends(&mut self, now: Duration) -> Vec<Effect> {
        let overdue = self.age.saved(now);
        overdue.then_some(Effect::AlarmOver(ALARM)).into_iter().collect()
    }

    /// When the worker is to be restarted by plan: not while saves fail, since that would lose steps.
    pub(super) fn restart_due(&self) -> Option<Duration> {
        let trains = matches!(self.life, Life::Running(Phase::Training)) && self.wishes.may_save();
        let every = self.limits.watch.restart_every.duration().filter(|_| trains)?;
        Some(self.born + every)
    }

    /// A planned restart: asked for like any other, so nothing is lost and no budget is used.
    pub(super) fn planned_restart(&mut self, now: Duration) -> Vec<Effect> {
        let after = words(now.saturating_sub(self.born));
        let reason = format!("planned restart after {after} (watch.restart_every)");
        let told = Effect::Journal(Level::Info, JournalKind::Restart, reason.clone());
        let mut effects = vec![told];
        effects.extend(self.press(Then::Start(Start::on(self.rung, reason)), Pressure::Asked, now));
        effects
    }
}

/// A span for people: `6 h`, `90 min`, `45 s`.
pub(super) fn words(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
