//! Waits for the run's turn on its devices. The keeper reports what is in the way; a worker starts only when
//! nothing is.

use super::age::format_span;
use super::event::Effect;
use super::lifecycle::{Lifecycle, Start};
use super::machine::Policy;
use crate::protocol::claim::Waiting;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use std::time::Duration;

/// The wait for a reading of the GPU, which may have stopped.
const READING_WAIT: Duration = Duration::from_secs(2);

impl Policy {
    /// Takes in what is in the way of the next start; a waiting start may proceed.
    pub(super) fn handle_turn(&mut self, waiting: Option<Waiting>, now: Duration) -> Vec<Effect> {
        self.waiting = waiting;
        match (std::mem::replace(&mut self.life, Lifecycle::New), &self.waiting) {
            (Lifecycle::AwaitingTurn { start, since, .. }, None) => {
                self.take_turn(start, now.saturating_sub(since), now)
            }
            (Lifecycle::AwaitingTurn { start, since, .. }, Some(waiting)) => {
                self.life = Lifecycle::AwaitingTurn { start, since, waiting: waiting.clone() };
                Vec::new()
            }
            (other, _) => {
                self.life = other;
                Vec::new()
            }
        }
    }

    pub(super) fn await_turn(&mut self, start: Start, waiting: Waiting, now: Duration) -> Vec<Effect> {
        let text = format!("waiting for its turn: {waiting}");
        self.life = Lifecycle::AwaitingTurn { start, since: now, waiting };
        vec![Effect::Journal(Level::Info, JournalKind::Run, text)]
    }

    fn take_turn(&mut self, start: Start, waited: Duration, now: Duration) -> Vec<Effect> {
        let text = format!("it is this run's turn, after {}", format_span(waited));
        let mut effects = vec![Effect::Journal(Level::Info, JournalKind::Run, text)];
        if self.gpu.in_use || self.gpu.vram.is_none() {
            effects.extend(self.start_worker(start, now));
        } else {
            // The newest reading may still count memory of the run before, so the next one is the baseline.
            self.gpu.baseline = None;
            self.life = Lifecycle::AwaitingVram { start, until: now + READING_WAIT };
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::event::{Effect, Event};
    use super::super::ledger::Ledger;
    use super::super::lifecycle::{Lifecycle, Outcome};
    use super::super::tests::{hello, limits, seconds};
    use crate::protocol::claim::Waiting;
    use crate::protocol::control::{Request, RunState, Target};

    fn held() -> Waiting {
        let name = |text: &str| vec![text.to_owned()];
        Waiting::Devices { devices: "cuda:0".to_owned(), holders: name("other"), ahead: Vec::new() }
    }

    /// Returns a run that began while another one held its card.
    fn waiting() -> Policy {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), Some(7));
        assert_eq!(policy.decide(Event::Turn(Some(held())), seconds(0)), []);
        let effects = policy.decide(Event::Begin, seconds(1));
        let [Effect::Journal(_, _, text)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(text, "waiting for its turn: other holds cuda:0; next in the queue");
        assert_eq!(policy.life().state(), RunState::AwaitingCard);
        assert_eq!(policy.life().why().unwrap(), "other holds cuda:0; next in the queue");
        assert_eq!(policy.next_wake(), None, "time alone starts nothing");
        policy
    }

    fn starts(effects: &[Effect]) -> bool {
        effects.iter().any(|effect| matches!(effect, Effect::Start(_)))
    }

    #[test]
    fn a_run_waits_for_its_turn_and_then_starts() {
        let mut policy = waiting();
        assert_eq!(policy.decide(Event::Tick, seconds(3600)), []);
        let effects = policy.decide(Event::Turn(None), seconds(7200));
        let [Effect::Journal(_, _, text), Effect::Start(start)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(text, "it is this run's turn, after 119 min");
        assert_eq!(start.reason, "starts on full");
    }

    #[test]
    fn the_baseline_is_read_after_the_run_before_is_gone() {
        let mut policy = waiting();
        policy.decide(Event::Vram(Some(9000)), seconds(2));
        assert!(!starts(&policy.decide(Event::Turn(None), seconds(10))), "its reading may be an old one");
        let effects = policy.decide(Event::Vram(Some(50)), seconds(11));
        assert!(starts(&effects), "{effects:?}");
        assert_eq!(policy.baseline(), Some(50));
    }

    #[test]
    fn a_card_whose_readings_stop_is_not_waited_for_long() {
        let mut policy = waiting();
        policy.decide(Event::Vram(Some(9000)), seconds(2));
        policy.decide(Event::Turn(None), seconds(10));
        let effects = policy.decide(Event::Tick, policy.next_wake().unwrap());
        assert!(starts(&effects), "{effects:?}");
    }

    #[test]
    fn a_waiting_run_can_be_stopped_paused_and_shifted() {
        let effects = waiting().decide(Event::Request(Request::Stop), seconds(5));
        assert!(effects.contains(&Effect::Finish(Outcome::Stopped)), "{effects:?}");

        let mut policy = waiting();
        policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(5));
        let effects = policy.decide(Event::Turn(None), seconds(6));
        assert!(matches!(&effects[..], [_, Effect::Start(start)] if start.rung == 1), "{effects:?}");

        let mut policy = waiting();
        policy.decide(Event::Request(Request::Pause), seconds(5));
        assert_eq!(policy.life(), &Lifecycle::Paused);
        assert_eq!(policy.decide(Event::Turn(None), seconds(6)), [], "it is paused");
        assert!(starts(&policy.decide(Event::Request(Request::Resume), seconds(7))));
    }

    #[test]
    fn a_resumed_run_waits_like_any_other() {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
        policy.stay_paused();
        policy.decide(hello("cuda:0 X"), seconds(1));
        policy.decide(Event::Turn(Some(held())), seconds(2));
        assert!(!starts(&policy.decide(Event::Request(Request::Resume), seconds(2))));
        assert_eq!(policy.life().state(), RunState::AwaitingCard);
        // The run before may still hold memory, as the last worker of this run may.
        policy.decide(Event::Turn(None), seconds(9));
        assert_eq!(policy.life().state(), RunState::AwaitingVram);
    }
}
