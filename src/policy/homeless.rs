//! The end of a run whose directory is gone. Its worker has nowhere to save, and nothing would find it again: a command
//! outlives its keeper, and would hold the card.

use super::event::Effect;
use super::lifecycle::{Lifecycle, Outcome, Pressure, Then};
use super::machine::Policy;
use super::reason::Reason;
use std::time::Duration;

impl Policy {
    /// Ends the worker by force, and then the run.
    pub(super) fn end_homeless(&mut self, why: Reason, now: Duration) -> Vec<Effect> {
        match std::mem::replace(&mut self.life, Lifecycle::New) {
            over @ Lifecycle::Over(_) => {
                self.life = over;
                Vec::new()
            }
            Lifecycle::Running(phase) => {
                self.life = Lifecycle::Running(phase);
                self.end_worker(Then::Conclude(why), Pressure::Terminated, now)
            }
            Lifecycle::Stopping { then, pressure, until } => {
                let then = if then == Then::End { then } else { Then::Conclude(why) };
                if pressure == Pressure::Asked {
                    return self.end_worker(then, Pressure::Terminated, now);
                }
                self.life = Lifecycle::Stopping { then, pressure, until };
                Vec::new()
            }
            _ => self.finish_run(Outcome::NeedsPerson(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::event::{Effect, Event, Signal};
    use super::super::ledger::Ledger;
    use super::super::lifecycle::{Lifecycle, Outcome};
    use super::super::reason::Reason;
    use super::super::tests::{KILLED, hello_from, limits, seconds};
    use crate::protocol::control::Request;

    fn lost() -> Reason {
        Reason::Moved("/runs/x".to_owned())
    }

    fn training() -> Policy {
        let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy.decide(hello_from("cpu", None), seconds(1));
        policy
    }

    #[test]
    fn a_worker_without_a_run_directory_is_ended_before_the_run() {
        let mut policy = training();
        assert_eq!(policy.decide(Event::Homeless(lost()), seconds(2)), [Effect::Signal(Signal::Terminate)]);
        assert_eq!(policy.decide(Event::Homeless(lost()), seconds(3)), [], "the directory stays lost");
        policy.decide(KILLED, seconds(4));
        assert_eq!(*policy.life(), Lifecycle::Over(Outcome::NeedsPerson(lost())));
        assert_eq!(policy.decide(Event::Homeless(lost()), seconds(5)), []);
    }

    #[test]
    fn a_stop_whose_save_has_nowhere_to_go_ends_by_force() {
        let mut policy = training();
        policy.decide(Event::Request(Request::Stop), seconds(2));
        let effects = policy.decide(Event::Homeless(lost()), seconds(3));
        assert_eq!(effects, [Effect::Signal(Signal::Terminate)]);
        policy.decide(KILLED, seconds(4));
        assert_eq!(*policy.life(), Lifecycle::Over(Outcome::Stopped), "it was asked for");
    }
}
