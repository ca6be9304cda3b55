//! Limits the age of the newest checkpoint: an overdue one is requested, and a worker that still does
//! not save counts as hung. Also schedules planned restarts, which follow a checkpoint.

use super::event::Effect;
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Pressure, Start, Then};
use super::machine::Policy;
use crate::config::units::Every;
use crate::format::count;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Order, Phase};
use std::time::Duration;

/// Alarm key of this watch.
const ALARM: &str = "checkpoint age";
/// A save counts as failed when it takes this many times as long as the newest one.
const SLOWER: u32 = 3;

/// Watches the saves of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgeWatch {
    /// When this worker began to train, or last saved.
    since: Option<Duration>,
    /// When a checkpoint was requested that has not arrived yet.
    asked: Option<Duration>,
    /// The longest time between two saves of this worker, or before its first.
    longest: Option<Duration>,
    /// The alarm was raised and has not ended. It outlives the worker.
    told: bool,
    /// The probe found less space on the disk than `watch.disk_free_mib`. It outlives the worker.
    pub(super) disk_is_low: bool,
}

impl AgeWatch {
    /// Resets the clocks for another worker.
    pub fn renew(&mut self) {
        *self = Self { told: self.told, disk_is_low: self.disk_is_low, ..Self::default() };
    }

    /// Starts the clock: work has an age from the worker's first step on.
    pub fn trains(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// Records a durable checkpoint. Returns true when that ends the alarm.
    pub fn saved(&mut self, now: Duration) -> bool {
        let took = self.since.map(|since| now.saturating_sub(since));
        self.longest = self.longest.max(took);
        (self.since, self.asked) = (Some(now), None);
        std::mem::take(&mut self.told)
    }

    /// Resets the clocks after the keeper itself stalled: the worker is not to blame for that time.
    pub fn forgive(&mut self, now: Duration) {
        self.asked = self.asked.map(|_| now);
    }
}

impl Policy {
    /// Returns when the newest checkpoint becomes too old, or when a requested one is overdue.
    pub(super) fn age_deadline(&self) -> Option<Duration> {
        if !self.capability.saves_on_request() {
            return self.old_checkpoint_of_command();
        }
        if !matches!(self.life, Lifecycle::Running(Phase::Training)) {
            return None;
        }
        let limit = self.age_limit()?;
        let since = self.watches.age.since?;
        Some(self.watches.age.asked.map_or(since + limit, |asked| asked + self.answer_limit()))
    }

    /// Returns when the newest checkpoint becomes too old, for a command that cannot be asked to save: at
    /// `watch.checkpoint_age`, or after twice the longest time between its saves so far. Raised once until it saves.
    fn old_checkpoint_of_command(&self) -> Option<Duration> {
        let least = self.limits.times.old_after.filter(|_| !self.watches.age.told)?;
        let is_alive = matches!(self.life, Lifecycle::Running(_));
        let since = self.watches.age.since.filter(|_| is_alive)?;
        let limit = match self.limits.watch.checkpoint_age {
            Every::Auto => self.watches.age.longest.map(|longest| (longest * 2).max(least)),
            age => age.duration(),
        };
        Some(since + limit?)
    }

    fn age_limit(&self) -> Option<Duration> {
        self.limits.watch.checkpoint_limit(*self.limits.save_every.get(self.worker.rung)?)
    }

    fn answer_limit(&self) -> Duration {
        self.limits.watch.hang.checkpointing.duration().max(self.worker.save * SLOWER)
    }

    /// Handles an expired deadline.
    pub(super) fn handle_old_checkpoint(&mut self, now: Duration) -> Vec<Effect> {
        if let Some(asked) = self.watches.age.asked {
            let waited = format_span(now.saturating_sub(asked));
            return self.end_unsaved_worker(format!("hang: no checkpoint {waited} after one was requested"), now);
        }
        self.watches.age.told = true;
        let age = format_span(now.saturating_sub(self.watches.age.since.unwrap_or(now)));
        let newest = match self.position.durable {
            Some(step) => format!("the newest checkpoint is {}, saved {age} ago", count(step)),
            None => format!("there is no checkpoint after {age} of training"),
        };
        if !self.capability.saves_on_request() {
            let text = format!("{newest}; the command saves when it likes: look at its output and its disk");
            return vec![Effect::Alarm { key: ALARM, title: "checkpoint overdue", text }];
        }
        self.watches.age.asked = Some(now);
        let text = format!("{newest}; requesting one now (watch.checkpoint_age)");
        vec![Effect::Alarm { key: ALARM, title: "checkpoint overdue", text }, Effect::Order(Order::Checkpoint)]
    }

    /// Handles a failed save. A failed save that was requested because of age counts as a hang, except on
    /// a full disk: another worker could not save there either, and this one holds the work.
    pub(super) fn handle_failed_save(&mut self, message: &str, of_disk: bool, now: Duration) -> Vec<Effect> {
        if self.watches.age.asked.is_none() || !matches!(self.life, Lifecycle::Running(_)) {
            return Vec::new();
        }
        if of_disk || self.watches.age.disk_is_low {
            (self.watches.age.since, self.watches.age.asked) = (Some(now), None);
            let text =
                format!("the overdue checkpoint cannot be saved: {message}; free some space, training continues");
            return vec![Effect::Alarm { key: ALARM, title: "checkpoint overdue", text }];
        }
        self.end_unsaved_worker(format!("hang: the requested checkpoint cannot be saved: {message}"), now)
    }

    fn end_unsaved_worker(&mut self, cause: String, now: Duration) -> Vec<Effect> {
        self.watches.age.renew();
        let told = Effect::Journal(Level::Warn, JournalKind::Worker, format!("{cause}; ending the worker"));
        let then = Then::Recover(Fault::new(FailureClass::Hang, cause));
        let mut effects = vec![told];
        effects.extend(self.end_worker(then, Pressure::Terminated, now));
        effects
    }

    /// Ends the watch's alarm after a checkpoint arrived.
    pub(super) fn end_age_alarm(&mut self, now: Duration) -> Vec<Effect> {
        let over = self.watches.age.saved(now);
        over.then_some(Effect::AlarmOver(ALARM)).into_iter().collect()
    }

    /// Returns when the planned restart is due; never while saves fail, because that would lose steps.
    pub(super) fn restart_due(&self) -> Option<Duration> {
        let trains =
            matches!(self.life, Lifecycle::Running(Phase::Training)) && self.wishes.may_save() && self.may_end_worker();
        let every = self.limits.watch.restart_every.duration().filter(|_| trains)?;
        Some(self.worker.started + every)
    }

    /// Starts a planned restart. It goes through a checkpoint like any requested restart, so it loses no
    /// steps and costs no restart budget.
    pub(super) fn planned_restart(&mut self, now: Duration) -> Vec<Effect> {
        let after = format_span(now.saturating_sub(self.worker.started));
        let reason = format!("planned restart after {after} (watch.restart_every)");
        let told = Effect::Journal(Level::Info, JournalKind::Restart, reason.clone());
        let mut effects = vec![told];
        effects.extend(self.end_worker(Then::Start(Start::on(self.rung, reason)), Pressure::Asked, now));
        effects
    }
}

/// Formats a duration for display: `6 h`, `90 min`, `45 s`.
pub(super) fn format_span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
