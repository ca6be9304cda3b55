//! Exceptions that a script raises again and again.

use super::{RESUMES, begun, seconds, starts};
use crate::policy::Policy;
use crate::policy::event::Event;
use crate::policy::lifecycle::{Lifecycle, Outcome};
use crate::policy::reason::Reason;
use crate::policy::tests::{hello_from, step};
use crate::protocol::cause::Cause;
use crate::protocol::exit::Exit;
use crate::protocol::worker::FailureClass;

fn raise(what: &str) -> Event {
    Event::Exited(Exit::with_code(1), Cause::new(FailureClass::Exception, vec![what.to_owned()]))
}

/// Ends the worker by this exception, after a step if one is given; returns whether another worker starts.
fn starts_after(policy: &mut Policy, what: &str, taken: Option<u64>) -> bool {
    if let Some(taken) = taken {
        policy.decide(step(taken), seconds(1));
    }
    let mut effects = policy.decide(raise(what), seconds(2));
    effects.extend(policy.decide(Event::Tick, seconds(60)));
    policy.decide(hello_from("cpu", None), seconds(61));
    !starts(&effects).is_empty()
}

#[test]
fn the_same_exception_twice_before_the_first_step_needs_the_user() {
    let mut policy = begun(RESUMES);
    assert!(starts_after(&mut policy, "NameError: modle", None));
    assert!(!starts_after(&mut policy, "NameError: modle", None));

    let mut changes = begun(RESUMES);
    assert!(starts_after(&mut changes, "ConnectionError: try 1", None));
    assert!(starts_after(&mut changes, "ConnectionError: try 2", None), "it may go away");
    let mut trains = begun(RESUMES);
    assert!(starts_after(&mut trains, "ValueError: bad sample", Some(1)));
    assert!(starts_after(&mut trains, "ValueError: bad sample", Some(1)), "each took a step");
}

#[test]
fn the_same_exception_at_one_step_after_different_checkpoints_needs_the_user() {
    let fails = "KeyError: 'label_17'";
    let mut policy = begun(RESUMES);
    assert!(starts_after(&mut policy, fails, Some(220)), "from the beginning");
    policy.decide(hello_from("cpu", Some(200)), seconds(62));
    assert!(!starts_after(&mut policy, fails, Some(220)));

    let mut moves = begun(RESUMES);
    assert!(starts_after(&mut moves, fails, Some(220)));
    moves.decide(hello_from("cpu", Some(200)), seconds(62));
    assert!(starts_after(&mut moves, fails, Some(230)), "at another step");
}

#[test]
fn a_checkpoint_that_cannot_be_loaded_needs_the_user_once_there_is_no_older_one() {
    let fails = "NotADirectoryError: step100.safetensors";
    let mut policy = begun(RESUMES);
    assert!(starts_after(&mut policy, "ConnectionError", Some(100)));
    let starts_after_load = |policy: &mut Policy, loaded| {
        policy.decide(hello_from("cpu", Some(loaded)), seconds(62));
        starts_after(policy, fails, None)
    };
    assert!(starts_after_load(&mut policy, 100), "it may pass");
    assert!(starts_after_load(&mut policy, 100), "an older one may load");
    let mut older = policy.clone();
    assert!(!starts_after_load(&mut policy, 100), "there is none");
    assert!(matches!(policy.life(), Lifecycle::Over(Outcome::NeedsPerson(Reason::CannotLoad { step: 100, .. }))));
    assert!(starts_after_load(&mut older, 50), "an older one is tried");
}
