//! The steps that refusals count, also under another keeper.

use super::super::super::Policy;
use super::super::super::event::{Effect, Event};
use super::super::super::ledger::Ledger;
use super::super::super::tests::{hello_from, seconds, starts, step};
use super::{PLAIN, begun};
use crate::outlook::cost::Reached;
use crate::outlook::request::Refusal;
use crate::protocol::control::Request;
use crate::protocol::worker::Order;

#[test]
fn a_refusal_counts_the_steps_that_the_run_took_itself() {
    let mut policy = begun(PLAIN);
    for number in [5_001, 5_002, 5_003] {
        policy.decide(step(number), seconds(number));
    }
    let effects = policy.decide(Event::Request(Request::Restart), seconds(5_004));
    let [Effect::Reply(Err(Refusal::LosesEverything { steps, .. }))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*steps, 3, "the others were taken before the run");
}

#[test]
fn another_keeper_goes_on_with_the_living_command() {
    let limits = PLAIN.limits();
    let mut policy = Policy::new(limits, 0, Ledger::default(), None);
    let reached = Reached { step: 60, taken: 60, durable: None };
    policy.adopt_worker(1, reached, 60, seconds(5));
    policy.decide(hello_from("cpu", None), seconds(5));
    let lost = |policy: &mut Policy, at| match &policy.decide(Event::Request(Request::Restart), seconds(at))[..] {
        [Effect::Reply(Err(Refusal::LosesEverything { steps, .. }))] => *steps,
        other => panic!("{other:?}"),
    };
    assert_eq!(lost(&mut policy, 5), 60, "the steps of before, although it has taken no other yet");
    policy.decide(step(70), seconds(6));
    assert_eq!(lost(&mut policy, 6), 70);
    assert_eq!(policy.rung(), 1);
    assert!(starts(&policy.decide(Event::Begin, seconds(6))).is_empty(), "no second command starts");
    let effects = policy.decide(Event::Request(Request::Stop), seconds(7));
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: true })));
}
