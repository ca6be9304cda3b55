//! Kernels that were tuned while a run trained without tuning.

use super::{exited, hello, policy, seconds, starts, training};
use crate::policy::event::{Effect, Event};
use crate::protocol::control::Request;
use crate::protocol::worker::{Event as WorkerEvent, Order};

#[test]
fn tuned_kernels_are_taken_over_by_a_restart_or_proposed() {
    let mut policy = policy();
    training(&mut policy);
    let effects = policy.decide(Event::Worker(WorkerEvent::KernelsTuned), seconds(2));
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: true })), "{effects:?}");
    assert_eq!(starts(&policy.decide(exited(3), seconds(3))), [0], "on the same rung");
    training(&mut policy);
    policy.decide(Event::Request(Request::Autopilot { on: false }), seconds(4));
    assert!(starts(&policy.decide(Event::Worker(WorkerEvent::KernelsTuned), seconds(5))).is_empty());
    assert_eq!(policy.proposal().map(|proposal| proposal.does).as_deref(), Some("would restart with tuned kernels"));
    policy.decide(hello("cpu"), seconds(6));
    assert_eq!(policy.proposal(), None, "every start takes them");
}
