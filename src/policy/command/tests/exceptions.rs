//! Exceptions that a script raises again and again.

use super::{RESUMES, begun, seconds, starts};
use crate::policy::Policy;
use crate::policy::event::Event;
use crate::policy::tests::{hello_from, step};
use crate::protocol::cause::Cause;
use crate::protocol::exit::Exit;
use crate::protocol::worker::FailureClass;

fn raise(what: &str) -> Event {
    Event::Exited(Exit::with_code(1), Cause::new(FailureClass::Exception, vec![what.to_owned()]))
}

/// Ends the worker by this exception; returns whether another one starts. It takes a step if asked to.
fn starts_after(policy: &mut Policy, what: &str, takes_step: bool) -> bool {
    if takes_step {
        policy.decide(step(1), seconds(1));
    }
    let mut effects = policy.decide(raise(what), seconds(2));
    effects.extend(policy.decide(Event::Tick, seconds(60)));
    policy.decide(hello_from("cpu", None), seconds(61));
    !starts(&effects).is_empty()
}

#[test]
fn the_same_exception_twice_before_the_first_step_needs_the_user() {
    let mut policy = begun(RESUMES);
    assert!(starts_after(&mut policy, "NameError: modle", false));
    assert!(!starts_after(&mut policy, "NameError: modle", false));

    let mut changes = begun(RESUMES);
    assert!(starts_after(&mut changes, "ConnectionError: try 1", false));
    assert!(starts_after(&mut changes, "ConnectionError: try 2", false), "it may go away");
    let mut trains = begun(RESUMES);
    assert!(starts_after(&mut trains, "ValueError: bad sample", true));
    assert!(starts_after(&mut trains, "ValueError: bad sample", true), "each took a step");
}
