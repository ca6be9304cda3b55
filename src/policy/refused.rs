//! Requests whose checkpoint cannot be written. The worker trains on: its unsaved steps are worth more
//! than a shift, a pause or a quick end.

use super::event::Effect;
use super::lifecycle::{Lifecycle, Pressure, Then};
use super::machine::Policy;
use super::reason::{Cancelled, Unsaved};
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{DoneReason, Level, Phase};
use std::time::Duration;

/// Stop requests within this window count once.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Requests made to the live worker.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// A save for a request has failed, and none has succeeded since.
    refused: bool,
    /// The blocked request was a stop.
    stop_refused: bool,
    /// When a stop was requested.
    stop_at: Option<Duration>,
}

impl Wishes {
    /// Records a durable checkpoint: saving works.
    pub fn saved(&mut self) {
        (self.refused, self.stop_refused) = (false, false);
    }

    /// Reports whether saving works, as far as known.
    pub fn may_save(&self) -> bool {
        !self.refused
    }

    /// Reports whether a stop failed because its checkpoint could not be written.
    pub fn stop_was_refused(&self) -> bool {
        self.stop_refused
    }

    /// Records a stop request that saves first.
    pub fn note_stop(&mut self, now: Duration) {
        self.stop_refused = false;
        if self.stop_at.is_none_or(|at| now.saturating_sub(at) >= AT_ONCE) {
            self.stop_at = Some(now);
        }
    }

    /// Reports whether a stop requested now is a second request, and not the same one from another client.
    pub fn stop_is_repeated(&self, now: Duration) -> bool {
        self.stop_at.is_some_and(|at| now.saturating_sub(at) >= AT_ONCE)
    }
}

impl Policy {
    /// Handles a worker that was to save and end, but could not save.
    pub(super) fn handle_refused_stop(&mut self, step: u64, message: &str, now: Duration) -> Vec<Effect> {
        let Lifecycle::Stopping { then, pressure: Pressure::Asked, .. } = &self.life else { return Vec::new() };
        let then = then.clone();
        self.wishes.refused = true;
        let what = match &then {
            // Ending the run matters more than losing some steps: do not postpone it.
            Then::Conclude(_) => {
                let text = format!("cannot save before the end: {message}; {}", self.unsaved_steps());
                let mut effects = vec![Effect::Journal(Level::Error, JournalKind::Checkpoint, text)];
                effects.extend(self.end_worker(then, Pressure::Asked, now));
                return effects;
            }
            Then::Start(start) => start.reason.clone(),
            Then::Cool(_) => "the cooling pause".to_owned(),
            Then::Pause => "the pause".to_owned(),
            Then::End | Then::Recover(_) => "the stop".to_owned(),
        };
        self.wishes.stop_refused = then == Then::End;
        self.worker.stop_withdrawn = true;
        self.life = Lifecycle::Running(Phase::Training);
        self.cancel_shift();
        let (is_stop, unsaved) = (self.wishes.stop_refused, self.unsaved_steps());
        vec![Effect::Cancel(Cancelled { what, step, message: message.to_owned(), unsaved, is_stop })]
    }

    /// Reports whether the worker ended as asked by a stop that was withdrawn before it had heard of that: no fault, but
    /// the run has to start again.
    #[must_use]
    pub fn ends_by_withdrawn_stop(&self) -> bool {
        let runs = matches!(self.life, Lifecycle::Running(_));
        runs && self.worker.stop_withdrawn && self.worker.done == Some(DoneReason::Stopped)
    }

    /// Returns how much an end without a save would lose.
    pub(super) fn unsaved_steps(&self) -> Unsaved {
        let since = self.position.durable;
        Unsaved { steps: self.current_step().saturating_sub(since.unwrap_or(0)), since }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::event::{Effect, Event};
    use super::super::ledger::Ledger;
    use super::super::lifecycle::Lifecycle;
    use super::super::reason::{Cancelled, Unsaved};
    use super::super::tests::{hello_from, limits, saved, seconds};
    use crate::outlook::request::Refusal;
    use crate::protocol::cause::Cause;
    use crate::protocol::control::{Request, Target};
    use crate::protocol::exit::Exit;
    use crate::protocol::worker::{DoneReason, Event as WorkerEvent, FailureClass, Level, Order};

    fn running() -> Policy {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy.decide(hello_from("cpu", None), seconds(1));
        policy
    }

    fn refuse(policy: &mut Policy, at: u64) -> Cancelled {
        let event = WorkerEvent::StopRefused { step: 9, message: "No space left on device".to_owned() };
        match &policy.decide(Event::Worker(event), seconds(at))[..] {
            [Effect::Cancel(cancelled)] => cancelled.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_whose_save_fails_changes_nothing() {
        for request in [Request::Shift { to: Target::Down }, Request::Pause, Request::Restart, Request::Stop] {
            let mut policy = running();
            let climb = policy.ledger().climb.clone();
            policy.decide(Event::Request(request.clone()), seconds(2));
            let cancelled = refuse(&mut policy, 3);
            assert_eq!((cancelled.step, cancelled.unsaved), (9, Unsaved { steps: 0, since: None }));
            assert_eq!(cancelled.is_stop, request == Request::Stop, "{cancelled}");
            assert!(matches!(policy.life(), Lifecycle::Running(_)), "{request:?}");
            assert_eq!((policy.rung(), &policy.ledger().climb), (0, &climb), "{request:?}");
        }
    }

    #[test]
    fn a_worker_that_hears_too_late_that_a_stop_was_withdrawn_starts_again_without_a_fault() {
        let end = |policy: &mut Policy, at: u64| {
            let done = WorkerEvent::Done { reason: DoneReason::Stopped, step: 9 };
            policy.decide(Event::Worker(done), seconds(at));
            let cause = Cause::new(FailureClass::Unknown, vec!["exit code 75".to_owned()]);
            policy.decide(Event::Exited(Exit::of_command(Some(75), None), cause), seconds(at))
        };
        let mut policy = running();
        policy.decide(Event::Request(Request::Stop), seconds(2));
        refuse(&mut policy, 3);
        let budget = policy.ledger().clone();
        let effects = end(&mut policy, 4);
        assert!(matches!(&effects[..], [Effect::Start(start)] if start.reason.contains("withdrawn")), "{effects:?}");
        assert_eq!(policy.ledger(), &budget);
        // The next worker was asked for nothing.
        policy.decide(hello_from("cpu", None), seconds(5));
        let effects = end(&mut policy, 6);
        assert!(matches!(&effects[0], Effect::Journal(Level::Error, ..)), "{effects:?}");
        assert_ne!(policy.ledger(), &budget, "that one is a fault");
    }

    #[test]
    fn a_refused_shift_changes_nothing() {
        let mut policy = running();
        policy.ledger.climb.record_downshift(0, 1, 7);
        policy.decide(Event::Request(Request::Stop), seconds(2));
        let before = policy.ledger().clone();
        let effects = policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(3));
        assert!(matches!(&effects[..], [Effect::Reply(Err(Refusal::Ending { .. }))]), "{effects:?}");
        assert_eq!(policy.ledger(), &before);
    }

    #[test]
    fn a_run_that_was_stopped_before_it_began_starts_no_worker() {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
        policy.decide(Event::Request(Request::Stop), seconds(0));
        assert_eq!(policy.decide(Event::Begin, seconds(1)), []);
        assert!(matches!(policy.life(), Lifecycle::Over(_)));
    }

    #[test]
    fn a_stop_asked_again_ends_without_saving_until_saving_works() {
        let asks = |policy: &mut Policy, at: u64| policy.decide(Event::Request(Request::Stop), seconds(at));
        let without = Effect::Order(Order::Stop { checkpoint: false });
        let mut policy = running();
        asks(&mut policy, 2);
        assert!(refuse(&mut policy, 3).is_stop);
        assert!(!asks(&mut policy, 3).contains(&without), "another client in the same moment");
        refuse(&mut policy, 4);
        policy.decide(saved(20), seconds(5));
        assert!(!asks(&mut policy, 9).contains(&without), "there is room again");
        refuse(&mut policy, 10);
        let effects = asks(&mut policy, 20);
        assert!(effects.contains(&without), "{effects:?}");
        assert!(matches!(&effects[0], Effect::Reply(Ok(message)) if message.contains("not saved")), "{effects:?}");
    }
}
