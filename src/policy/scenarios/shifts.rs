//! Rungs that cannot start, and failures that come back.

use super::{Ledger, Scenario};
use crate::config::climb::{Length, Stage};
use crate::config::knobs::Relief;
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::{Lifecycle, Outcome};
use crate::policy::machine::Policy;
use crate::policy::reason::Reason;
use crate::policy::tests::{KILLED, exited, failed, limits, seconds, starts};
use crate::protocol::cause::Cause;
use crate::protocol::control::{Request, Target};
use crate::protocol::exit::Exit;
use crate::protocol::worker::FailureClass;

/// Returns a run that was asked to shift from full to plain at step 100, and whose worker on plain has loaded.
fn shifted() -> Scenario {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    scenario.save();
    scenario.ask(Request::Shift { to: Target::Rung("plain".to_owned()) });
    assert_eq!(scenario.end(), [1]);
    scenario
}

fn ended_by(class: FailureClass, exit: Exit) -> Event {
    Event::Exited(exit, Cause::new(class, vec!["seen".to_owned()]))
}

/// Ends the worker in this way, and waits for the next one. Returns the rungs that are started.
fn end_by(scenario: &mut Scenario, event: &Event) -> Vec<usize> {
    let mut effects = scenario.tell(event.clone());
    while matches!(scenario.policy.life(), Lifecycle::BackingOff { .. }) {
        scenario.now += seconds(1);
        effects.extend(scenario.tell(Event::Tick));
    }
    if !matches!(scenario.policy.life(), Lifecycle::Over(_)) {
        scenario.resume(scenario.policy.position.durable);
    }
    starts(&effects)
}

#[test]
fn a_rung_that_fails_before_its_first_step_is_left_again_whatever_the_cause() {
    let crash = Exit::by_signal(11);
    let ways = [
        exited(2),
        exited(0),
        ended_by(FailureClass::Crash, crash),
        ended_by(FailureClass::Config, Exit::with_code(13)),
        ended_by(FailureClass::Checkpoint, Exit::with_code(14)),
        ended_by(FailureClass::Data, Exit::with_code(15)),
        ended_by(FailureClass::DeviceFault, Exit::with_code(11)),
        ended_by(FailureClass::Driver, Exit::with_code(1)),
        ended_by(FailureClass::Exception, Exit::with_code(1)),
        Event::StartFailed("no such program".to_owned()),
    ];
    for way in ways {
        let mut scenario = shifted();
        assert_eq!(end_by(&mut scenario, &way), [0], "{way:?}");
        assert!(scenario.policy.unusable(1).is_some(), "{way:?}");
        assert_eq!(scenario.policy.ledger().budget, Ledger::default().budget, "it costs no restart: {way:?}");
        // The keeper does not choose it: plain helps against kernel faults.
        scenario.steps(150, 1.0);
        assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [3], "{way:?}");
    }
}

#[test]
fn a_failure_that_may_pass_gets_the_rung_a_second_start() {
    let passing = Cause { may_pass: true, ..Cause::new(FailureClass::Data, Vec::new()) };
    for way in [KILLED, Event::Exited(Exit::with_code(1), passing)] {
        let mut scenario = shifted();
        assert_eq!(end_by(&mut scenario, &way), [1], "{way:?}");
        assert_eq!(end_by(&mut scenario, &way), [0], "{way:?}");
    }
}

#[test]
fn the_user_may_force_a_rung_that_did_not_start() {
    let mut scenario = shifted();
    end_by(&mut scenario, &exited(2));
    let steps = scenario.step + 10;
    scenario.steps(steps, 1.0);
    scenario.ask(Request::Shift { to: Target::Rung("plain".to_owned()) });
    assert_eq!(scenario.end(), [1]);
    scenario.steps(steps + 10, 1.0);
    assert_eq!(scenario.policy.unusable(1), None);
    assert_eq!(end_by(&mut scenario, &exited(2)), [1], "after its first step it is a rung like any other");
}

#[test]
fn a_shift_on_trial_survives_the_keeper() {
    let scenario = shifted();
    let stored = serde_json::to_string(scenario.policy.ledger()).unwrap();
    let mut later = Policy::new(limits(), 1, serde_json::from_str(&stored).unwrap(), None);
    later.set_durable_step(Some(100));
    let mut later = Scenario::with_policy(later);
    assert_eq!(end_by(&mut later, &exited(2)), [0]);
    let stored = serde_json::to_string(later.policy.ledger()).unwrap();
    let last = Policy::new(limits(), 0, serde_json::from_str(&stored).unwrap(), None);
    assert_eq!(last.unusable(1), Some("exit code 2"));
}

#[test]
fn a_run_that_ended_on_a_broken_rung_before_trials_were_known_goes_back_when_it_is_resumed() {
    let policy = || {
        let mut policy = Policy::new(limits(), 1, Ledger::default(), None);
        policy.set_durable_step(Some(100));
        policy
    };
    let mut alone = Scenario::with_policy(policy());
    assert_ne!(end_by(&mut alone, &exited(2)), [0], "nothing is known of other rungs");
    let mut known = policy();
    known.put_on_trial(0);
    assert_eq!(end_by(&mut Scenario::with_policy(known), &exited(2)), [0]);
    let mut own = policy();
    own.put_on_trial(1);
    assert_ne!(end_by(&mut Scenario::with_policy(own), &exited(2)), [0]);
}

#[test]
fn a_shift_that_answers_a_fault_goes_on_to_the_next_rung_that_relieves_it() {
    let mut scenario = Scenario::begin(true);
    scenario.policy.limits.relieves[1].push(Relief::Memory);
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [1]);
    assert_eq!(end_by(&mut scenario, &exited(2)), [3]);
    assert_eq!(end_by(&mut scenario, &exited(2)), [0; 0], "full would run out of memory again");
    let Lifecycle::Over(Outcome::NeedsPerson(Reason::RungCannotStart { answers, rung, fault })) =
        scenario.policy.life()
    else {
        panic!("{:?}", scenario.policy.life())
    };
    assert_eq!((answers.relief, rung.as_str(), fault.text.as_str()), (Relief::Memory, "safe", "exit code 2"));
    assert_eq!(scenario.policy.rung(), 0);
}

#[test]
fn a_shift_for_kernels_goes_back_as_a_restart_may_survive() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [1]);
    let rungs: Vec<usize> = (0..3).flat_map(|_| end_by(&mut scenario, &exited(2))).collect();
    assert_eq!(rungs, [3, 2, 0], "any safer rung may help, and then a restart");
}

#[test]
fn a_climb_to_a_rung_that_cannot_start_is_not_repeated() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [3]);
    scenario.steps(1000, 1.0);
    scenario.save();
    scenario.steps(2100, 1.0);
    scenario.save();
    assert_eq!(scenario.end(), [0]);
    assert_eq!(end_by(&mut scenario, &exited(2)), [3], "as far down as it came from");
    assert_eq!(scenario.policy.ledger().climb.failed_climbs(), 0);
    for _ in 0..20 {
        let to = scenario.step + 500;
        scenario.steps(to, 1.0);
        scenario.save();
        assert_ne!(scenario.policy.rung(), 0);
    }
}

#[test]
fn a_stage_whose_rung_cannot_start_is_skipped() {
    let plan: Vec<Stage> = [(3, Some(50)), (1, Some(50)), (0, None)]
        .map(|(rung, steps)| Stage { rung, length: steps.map(Length::Steps) })
        .to_vec();
    let ledger = Ledger { autopilot: Some(true), ..Ledger::begin(3, &plan) };
    let mut scenario =
        Scenario::with_policy(Policy::new(super::super::event::Limits { plan, ..limits() }, 3, ledger, None));
    let next = |scenario: &mut Scenario| {
        let to = scenario.step;
        scenario.steps(to + 30, 1.0);
        scenario.save();
        scenario.steps(to + 200, 1.0);
        scenario.save();
        scenario.end()
    };
    assert_eq!(next(&mut scenario), [1]);
    assert_eq!(end_by(&mut scenario, &exited(2)), [3]);
    assert_eq!(scenario.policy.plan_status().unwrap().next.as_deref(), Some("full"));
    assert_eq!(next(&mut scenario), [0]);
}

#[test]
fn out_of_memory_before_the_first_step_takes_a_lower_rung() {
    let mut scenario = Scenario::begin(true);
    scenario.ask(Request::Shift { to: Target::Rung("cool".to_owned()) });
    assert_eq!(scenario.end(), [2]);
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [3]);
    assert_eq!(scenario.policy.unusable(2), None, "the memory may be free later");
    assert_eq!(end_by(&mut scenario, &exited(2)), [0], "full carried the run");
}

#[test]
fn a_crash_that_comes_back_tries_each_safer_rung_before_the_run_needs_attention() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    scenario.save();
    let crash = |scenario: &mut Scenario| {
        scenario.steps(150, 1.0);
        end_by(scenario, &ended_by(FailureClass::Crash, Exit::by_signal(11)))
    };
    let rungs: Vec<usize> = (0..4).flat_map(|_| crash(&mut scenario)).collect();
    assert_eq!(rungs, [0, 1, 3], "unchanged, then for kernels, then the safest");
    let life = scenario.policy.life();
    assert!(matches!(life, Lifecycle::Over(Outcome::NeedsPerson(Reason::NoProgress { .. }))), "{life:?}");
}

#[test]
fn before_the_run_needs_attention_each_safer_rung_that_could_help_is_tried_once() {
    let rungs = |way: &Event| {
        let mut scenario = Scenario::begin(true);
        scenario.steps(100, 1.0);
        scenario.save();
        let mut rungs = Vec::new();
        while !matches!(scenario.policy.life(), Lifecycle::Over(_)) {
            let to = scenario.step + 21 + rungs.len() as u64;
            scenario.steps(to, 1.0);
            rungs.extend(end_by(&mut scenario, way));
        }
        rungs
    };
    assert_eq!(rungs(&exited(77)), [0, 0, 0, 1, 3]);
    assert_eq!(rungs(&KILLED), [0, 0, 0], "no rung stops a kill from outside");
    assert_eq!(rungs(&failed_early()), [0, 0, 0], "nor an end before the last step");
    let memory = ended_by(FailureClass::DeviceOutOfMemory, Exit::with_code(10));
    assert_eq!(rungs(&memory)[..1], [3], "a class with a rung of its own");
}

fn failed_early() -> Event {
    ended_by(FailureClass::EarlyExit, Exit::with_code(0))
}

#[test]
fn a_failure_that_may_pass_ends_the_run_only_once_it_comes_back() {
    let passing = |class| Event::Exited(Exit::with_code(1), Cause { may_pass: true, ..Cause::new(class, Vec::new()) });
    for class in [FailureClass::Data, FailureClass::Config, FailureClass::Driver, FailureClass::GpuLost] {
        let mut scenario = Scenario::begin(true);
        scenario.steps(100, 1.0);
        scenario.save();
        scenario.steps(150, 1.0);
        assert_eq!(end_by(&mut scenario, &passing(class)), [0], "{class}: the first time");
        scenario.steps(170, 1.0);
        assert_eq!(end_by(&mut scenario, &passing(class)), [0], "{class}: at another step");
        scenario.steps(170, 1.0);
        let effects = scenario.tell(passing(class));
        let over = matches!(scenario.policy.life(), Lifecycle::Over(Outcome::Failed(..) | Outcome::NeedsPerson(_)));
        assert!(over && starts(&effects).is_empty(), "{class}: at the same step: {effects:?}");
    }
    let mut certain = Scenario::begin(true);
    certain.steps(100, 1.0);
    certain.tell(failed(FailureClass::Data));
    let effects = certain.tell(exited(15));
    assert!(matches!(&effects[..], [Effect::Finish(Outcome::Failed(FailureClass::Data, _))]), "{effects:?}");
}
