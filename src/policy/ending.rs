//! How a worker is ended (request, SIGTERM, SIGKILL), and the outcome of every expired wait.

use super::event::{Effect, Signal};
use super::fault::Fault;
use super::lifecycle::{Lifecycle, Outcome, Pressure, Then};
use super::machine::Policy;
use super::reason::Reason;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Order, Phase};
use std::time::Duration;

/// Time for the stacks of a hung command, before its processes are ended.
const STACKS: Duration = Duration::from_millis(1500);

impl Policy {
    pub(super) fn handle_tick(&mut self, now: Duration) -> Vec<Effect> {
        if self.next_wake().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match std::mem::replace(&mut self.life, Lifecycle::New) {
            Lifecycle::Running(phase) => {
                self.life = Lifecycle::Running(phase);
                self.tick_running(phase, now)
            }
            Lifecycle::Stopping { then, pressure: Pressure::Asked, .. } => {
                self.end_worker(then, Pressure::Terminated, now)
            }
            Lifecycle::Stopping { then, pressure: Pressure::Terminated, .. } => {
                let told = "the worker ignored SIGTERM; sending SIGKILL".to_owned();
                let mut effects = vec![Effect::Journal(Level::Warn, JournalKind::Worker, told)];
                effects.extend(self.end_worker(then, Pressure::Killed, now));
                effects
            }
            Lifecycle::Stopping { .. } => self.finish_run(Outcome::NeedsPerson(Reason::Unkillable(None))),
            Lifecycle::AwaitingVram { start, .. } => self.handle_no_room(start, now),
            Lifecycle::BackingOff { start, .. } => self.start_worker(start, now),
            Lifecycle::Cooling { .. } => {
                let (celsius, resume_c) = self.watches.heat.temperatures();
                let waited = self.limits.watch.heat.give_up.duration();
                self.finish_run(Outcome::NeedsPerson(Reason::StaysHot { celsius, resume_c, waited }))
            }
            other => {
                self.life = other;
                Vec::new()
            }
        }
    }

    /// Handles an expired deadline of a live worker.
    fn tick_running(&mut self, phase: Phase, now: Duration) -> Vec<Effect> {
        if now < self.watches.hang.deadline() {
            return match self.age_deadline() {
                Some(due) if due <= now => self.handle_old_checkpoint(now),
                _ => self.planned_restart(now),
            };
        }
        if let Some(told) = self.note_silence(now) {
            return told;
        }
        let hang = &self.watches.hang;
        let silence = if phase == Phase::Training { hang.silence() } else { hang.limit() }.as_secs();
        let mut cause = format!("hang: no progress for {silence} s while {}", describe_phase(phase));
        if let Some(rank) = self.watches.hang.describe_last_rank() {
            cause = format!("{cause}: {rank}");
        }
        let grace = self.limits.watch.ending.grace.duration().as_secs_f64();
        let told = format!("{cause}; the worker gets SIGTERM, and SIGKILL after {grace} s");
        let mut effects = vec![Effect::Journal(Level::Warn, JournalKind::Worker, told)];
        let then = Then::Recover(Fault::new(FailureClass::Hang, cause));
        if self.worker.companion.is_there {
            effects.push(Effect::Order(Order::Stacks));
            self.life = Lifecycle::Stopping { then, pressure: Pressure::Asked, until: now + STACKS };
            return effects;
        }
        effects.extend(self.end_worker(then, Pressure::Terminated, now));
        effects
    }

    /// Asks the worker to end, by the contract or by a signal.
    pub(super) fn end_worker(&mut self, then: Then, pressure: Pressure, now: Duration) -> Vec<Effect> {
        let ending = &self.limits.watch.ending;
        let (effect, grace) = match pressure {
            Pressure::Asked => {
                let checkpoint = match &then {
                    // Work that is about to be rolled back is not worth saving.
                    Then::Start(start) => start.back.is_none(),
                    Then::Conclude(_) => self.wishes.may_save(),
                    Then::End => !self.wishes.stop_was_refused(),
                    _ => true,
                };
                let grace = self.stop_grace_of_command(pressure, checkpoint).unwrap_or_else(|| self.stop_grace());
                (Effect::Order(Order::Stop { checkpoint }), grace)
            }
            Pressure::Terminated => (Effect::Signal(Signal::Terminate), ending.grace.duration()),
            Pressure::Killed => (Effect::Signal(Signal::Kill), ending.kill.duration()),
        };
        self.life = Lifecycle::Stopping { then, pressure, until: now + grace };
        vec![effect]
    }

    /// Returns the time a stop may take: one step, one save and a margin.
    fn stop_grace(&self) -> Duration {
        let wanted = self.watches.hang.longest_step() * 2 + self.worker.save * 3;
        wanted.clamp(Duration::from_secs(5), Duration::from_mins(2)).max(match self.life {
            Lifecycle::Running(Phase::Training | Phase::Checkpointing) => Duration::ZERO,
            // While loading, compiling or evaluating, a worker listens only at the next phase boundary.
            _ => Duration::from_secs(30),
        })
    }
}

/// Describes the worker's current phase.
fn describe_phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Compiling => "compiling kernels",
        Phase::Training => "training",
        Phase::Evaluating => "evaluating",
        Phase::Checkpointing => "checkpointing",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::event::{Effect, Event, Signal};
    use super::super::ledger::Ledger;
    use super::super::lifecycle::{Back, Start};
    use super::super::tests::{KILLED, hello_from, limits, seconds};

    fn begun() -> Policy {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy
    }

    #[test]
    fn time_that_the_keeper_missed_does_not_shorten_the_grace() {
        let mut policy = begun();
        let due = policy.next_wake().unwrap();
        let terminated = policy.decide(Event::Tick, due);
        assert!(terminated.contains(&Effect::Signal(Signal::Terminate)), "{terminated:?}");
        policy.decide(Event::StoodStill(seconds(20)), due + seconds(20));
        let early = policy.decide(Event::Tick, due + seconds(24));
        assert!(early.is_empty(), "its grace is 5 s of a keeper that looks: {early:?}");
        let killed = policy.decide(Event::Tick, due + seconds(25));
        assert!(killed.contains(&Effect::Signal(Signal::Kill)), "{killed:?}");
    }

    #[test]
    fn a_start_that_is_put_off_on_an_unreadable_card_says_so_once() {
        let mut policy = begun();
        policy.decide(hello_from("cuda:0 X", None), seconds(1));
        policy.decide(KILLED, seconds(2));
        let mut told = 0;
        for second in 3..60 {
            for effect in policy.decide(Event::Tick, seconds(second)) {
                match effect {
                    Effect::Start(start) => {
                        policy.decide(Event::StartPutOff(start, seconds(1)), seconds(second));
                    }
                    Effect::Journal(_, _, text) => told += u32::from(text.contains("cannot be read")),
                    _ => {}
                }
            }
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn a_start_that_is_put_off_costs_no_restart_and_does_not_go_back_twice() {
        let mut policy = begun();
        let back = Some(Back { before: 9, steps: 5, skip: Some((4, 11)) });
        let start = Start { back, ..Start::on(0, "again") };
        for tried in 1..=20 {
            let put_off = policy.decide(Event::StartPutOff(start.clone(), seconds(1)), seconds(tried));
            assert!(put_off.is_empty(), "{put_off:?}");
            let effects = policy.decide(Event::Tick, seconds(tried + 1));
            assert!(matches!(&effects[..], [Effect::Start(start)] if start.back.is_none()), "{effects:?}");
        }
    }
}
