use super::super::Policy;
use super::super::command::tests::{PLAIN, introduces};
use super::super::event::{Effect, Event, Limits};
use super::super::ledger::Ledger;
use super::super::lifecycle::{Lifecycle, Outcome};
use super::super::reason::Reason;
use super::super::tests::{ended_with, failed, hello_from, saved, seconds, starts, step};
use crate::config::knobs::Relief;
use crate::protocol::blank::companion;
use crate::protocol::companion::{CompanionNews, Grade, IgnoredKnob};
use crate::protocol::control::{Request, Target};
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Phase};
use serde_json::{Value, json};

const OUT_OF_MEMORY: FailureClass = FailureClass::DeviceOutOfMemory;

/// Four rungs: a smaller batch, a smaller one still, and another variable.
fn ladder() -> Limits {
    let knobs = vec![
        json!({"training": {"micro_batch": 8}}),
        json!({"training": {"micro_batch": 4}}),
        json!({"training": {"micro_batch": 2}}),
        json!({"training": {"micro_batch": 2}, "environment": {"MALLOC_ARENA_MAX": "2"}}),
    ];
    let relieves = vec![vec![], vec![Relief::Memory], vec![Relief::Memory], vec![Relief::Memory]];
    let rungs = ["full", "half", "quarter", "arenas"].map(str::to_owned).to_vec();
    Limits { rungs, relieves, knobs, ..PLAIN.limits() }
}

/// Returns the news that these batches are in force while the rung says `rung`.
fn in_force(rung: u64, batch: u64) -> Event {
    let name = || "training.micro_batch".to_owned();
    let ignored = IgnoredKnob { name: name(), rung: rung.into(), in_force: batch.into() };
    introduces(CompanionNews {
        knobs: [(name(), Value::from(batch))].into(),
        ignored: if rung == batch { Vec::new() } else { vec![ignored] },
        ..companion(Grade::Exact, true)
    })
}

/// Lets a new worker begin on the current rung.
fn begins(policy: &mut Policy, at: u64) {
    policy.decide(hello_from("cpu", None), seconds(at));
    policy.decide(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), seconds(at));
}

fn begun(limits: Limits) -> Policy {
    let mut policy = Policy::new(limits, 0, Ledger::default(), None);
    policy.decide(Event::Begin, seconds(0));
    begins(&mut policy, 1);
    policy
}

/// Lets the worker run out of memory at this step; returns the effects.
fn run_out(policy: &mut Policy, number: u64) -> Vec<Effect> {
    policy.decide(step(number), seconds(number));
    policy.decide(saved(number), seconds(number));
    policy.decide(failed(OUT_OF_MEMORY), seconds(number));
    policy.decide(ended_with(OUT_OF_MEMORY), seconds(number))
}

fn journal(effects: &[Effect]) -> Vec<&str> {
    let texts = effects.iter().filter_map(|effect| match effect {
        Effect::Journal(_, _, text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_script_that_follows_its_argument_descends_rung_by_rung() {
    let mut policy = begun(ladder());
    assert_eq!(policy.decide(in_force(8, 8), seconds(2)), []);
    assert_eq!(starts(&run_out(&mut policy, 10)), [1]);
    begins(&mut policy, 11);
    assert_eq!(policy.decide(in_force(4, 4), seconds(12)), []);
    assert_eq!(starts(&run_out(&mut policy, 20)), [2]);
}

#[test]
fn a_rung_that_only_a_gpu_notices_is_passed_over_on_the_cpu() {
    let mut limits = ladder();
    let segments = json!({"PYTORCH_ALLOC_CONF": "expandable_segments:True"});
    limits.knobs[1] = json!({"training": {"micro_batch": 8}, "environment": segments});
    for (device, wanted) in [("cpu", 2), ("cuda:0", 1)] {
        let mut policy = Policy::new(limits.clone(), 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy.decide(hello_from(device, None), seconds(1));
        policy.decide(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), seconds(1));
        assert_eq!(policy.nearest_rung(Relief::Memory), Some(wanted), "{device}");
        assert_eq!(policy.situation(seconds(2)).resolve(&Target::Down), Ok(wanted), "{device}: by hand");
    }
}

#[test]
fn a_shift_to_an_ignored_value_does_not_count_and_no_further_one_follows() {
    let mut policy = begun(ladder());
    policy.decide(in_force(8, 8), seconds(2));
    assert_eq!(starts(&run_out(&mut policy, 10)), [1]);
    begins(&mut policy, 11);
    let effects = policy.decide(in_force(4, 8), seconds(12));
    assert_eq!(
        journal(&effects),
        [
            "the script ignores training.micro_batch: the rung says 4, in force is 8. The shift full → half changed nothing \
          else, so it does not count"
        ]
    );
    assert!(effects.contains(&Effect::UncountShift), "{effects:?}");
    assert_eq!(policy.decide(in_force(4, 8), seconds(13)), [], "said once");
    // `quarter` changes the same knob alone; `arenas` changes another one.
    assert_eq!(starts(&run_out(&mut policy, 20)), [3]);
}

#[test]
fn a_run_that_no_rung_can_help_needs_attention_instead_of_looping() {
    let mut short = ladder();
    short.knobs.truncate(3);
    short.rungs.truncate(3);
    let mut policy = begun(short);
    policy.decide(in_force(8, 8), seconds(2));
    run_out(&mut policy, 10);
    begins(&mut policy, 11);
    policy.decide(in_force(4, 8), seconds(12));
    let effects = run_out(&mut policy, 20);
    assert_eq!(starts(&effects), [0; 0]);
    let Lifecycle::Over(Outcome::NeedsPerson(why @ Reason::IgnoredKnobs { relief, .. })) = policy.life() else {
        panic!("{effects:?}")
    };
    assert_eq!(*relief, Relief::Memory);
    let told = "the script ignores training.micro_batch: the rung says 2, in force is 8, so no rung helps against lack of memory";
    assert!(why.to_string().contains(told), "{why}");

    // The same on the last rung of all, where no other one is left.
    let mut last = ladder();
    last.knobs.truncate(2);
    last.rungs.truncate(2);
    let mut policy = begun(last);
    run_out(&mut policy, 10);
    begins(&mut policy, 11);
    policy.decide(in_force(4, 8), seconds(12));
    run_out(&mut policy, 20);
    let Lifecycle::Over(Outcome::NeedsPerson(Reason::IgnoredKnobs { ignored, .. })) = policy.life() else {
        panic!("{:?}", policy.life())
    };
    assert_eq!(ignored[0].in_force, 8);
}

#[test]
fn a_script_that_was_repaired_climbs_down_again() {
    let mut policy = begun(ladder());
    policy.decide(in_force(8, 8), seconds(2));
    run_out(&mut policy, 10);
    begins(&mut policy, 11);
    policy.decide(in_force(4, 8), seconds(12));
    assert!(policy.ledger().ignored.contains_key("training.micro_batch"));
    policy.decide(in_force(4, 4), seconds(13));
    assert!(policy.ledger().ignored.is_empty());
    assert_eq!(starts(&run_out(&mut policy, 20)), [2]);
    begins(&mut policy, 21);
    policy.decide(in_force(2, 8), seconds(22));
    policy.decide(Event::Request(Request::Resume), seconds(23));
    assert!(policy.ledger().ignored.is_empty(), "the user may have changed the script");
}

#[test]
fn a_shift_by_hand_is_possible_and_named() {
    let mut policy = begun(ladder());
    policy.decide(in_force(8, 8), seconds(2));
    policy.decide(step(3), seconds(3));
    let effects = policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(4));
    assert!(matches!(&effects[0], Effect::Reply(Ok(_))), "{effects:?}");
    policy.decide(ended_with(FailureClass::Killed), seconds(5));
    begins(&mut policy, 6);
    assert!(policy.decide(in_force(4, 8), seconds(7)).contains(&Effect::UncountShift));
}

#[test]
fn sharded_weights_stay_on_rungs_with_as_many_ranks() {
    let ranked = |ranks: u64, micro: u64| json!({"ranks": ranks, "training": {"micro_batch": micro}});
    let knobs = vec![ranked(2, 8), ranked(1, 8), ranked(2, 4), ranked(1, 4)];
    for sharded in [false, true] {
        let mut policy = begun(Limits { knobs: knobs.clone(), ..ladder() });
        policy.decide(introduces(CompanionNews { sharded, ..companion(Grade::Exact, true) }), seconds(2));
        let next = if sharded { 2 } else { 1 };
        assert_eq!(starts(&run_out(&mut policy, 10)), [next], "the first rung that can go on");
        let mut policy = begun(Limits { knobs: knobs.clone(), ..ladder() });
        policy.decide(introduces(CompanionNews { sharded, ..companion(Grade::Exact, true) }), seconds(2));
        let effects = policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(3));
        let refused =
            matches!(&effects[..], [Effect::Reply(Err(why))] if why.to_string().contains("resume on as many only"));
        assert_eq!(refused, sharded, "{effects:?}");
    }
}
