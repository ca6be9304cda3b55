//! Runs with a climb plan: rungs 0 full, 1 plain, 2 cool, 3 safe. An epoch is 10 units of the clock, a step 32.

use super::{ASKED, Scenario};
use crate::config::climb::{Length, Stage};
use crate::policy::event::{Effect, Event, Limits};
use crate::policy::ledger::Ledger;
use crate::policy::machine::Policy;
use crate::policy::tests::{limits, seconds, starts};
use crate::protocol::control::{Request, Target};
use crate::protocol::worker::FailureClass;

/// Safe for 3 000 steps, plain for 2 560 epochs (800 steps), then full.
fn plan() -> Vec<Stage> {
    let stage = |rung, length| Stage { rung, length };
    vec![stage(3, Some(Length::Steps(3000))), stage(1, Some(Length::Epochs(2560))), stage(0, None)]
}

fn planned(plan: Vec<Stage>, autopilot: bool) -> Scenario {
    let first = plan[0].rung;
    let ledger = Ledger { autopilot: Some(autopilot), ..Ledger::begin(first, &plan) };
    Scenario::with_policy(Policy::new(Limits { plan, ..limits() }, first, ledger, None))
}

fn words(scenario: &Scenario) -> String {
    scenario.policy.describe_climb().unwrap_or_default()
}

#[test]
fn stages_follow_each_other_when_their_length_is_over_and_they_are_proven() {
    let mut scenario = planned(plan(), true);
    assert_eq!((scenario.policy.rung(), words(&scenario).as_str()), (3, "stage 1 of 3, plain in 3000 steps"));
    scenario.steps(500, 1.0);
    scenario.save();
    assert!(!scenario.steps(2999, 1.0).contains(&ASKED));
    assert_eq!(words(&scenario), "stage 1 of 3, plain in 1 step");
    assert!(scenario.steps(3000, 1.0).contains(&ASKED));
    scenario.save();
    assert_eq!(scenario.end(), [1]);
    // 800 steps are fewer than the 2000 of `watch.climb.after`: all of them have to be calm.
    assert_eq!(words(&scenario), "stage 2 of 3, full in 2560 epochs");
    assert!(!scenario.steps(3799, 1.0).contains(&ASKED));
    assert!(!scenario.steps(3900, 1.0).contains(&ASKED), "no checkpoint of this stage is proven");
    assert_eq!(words(&scenario), "stage 2 of 3, full once training is well past a checkpoint");
    scenario.save();
    assert!(scenario.steps(3901, 1.0).contains(&ASKED));
    scenario.save();
    assert_eq!(scenario.end(), [0]);
    assert_eq!(words(&scenario), "stage 3 of 3");
    assert!(!scenario.steps(20_000, 1.0).contains(&ASKED), "the last stage lasts");
}

#[test]
fn no_stage_begins_when_the_run_is_about_to_end() {
    // Stage 1 is as long as its calm stretch, so at least 300 of 3000 steps must follow it.
    for (total, wanted) in [(3299, false), (3300, true)] {
        let mut scenario = planned(vec![plan()[0], Stage { rung: 0, length: None }], true);
        scenario.policy.limits.watch.climb.after = 3000;
        scenario.policy.position.total_units = total * 32;
        scenario.steps(500, 1.0);
        scenario.save();
        assert_eq!(scenario.steps(3000, 1.0).contains(&ASKED), wanted, "{total} steps in all");
    }
}

#[test]
fn after_a_lost_store_a_stage_counts_from_the_newest_checkpoint() {
    let ledger = Ledger::begin_at(3, &plan(), 90_000 * 32, 90_000);
    let policy = Policy::new(Limits { plan: plan(), ..limits() }, 3, ledger, None);
    let mut scenario = Scenario { policy, now: seconds(1), step: 0 };
    scenario.tell(Event::Begin);
    scenario.resume(Some(90_000));
    assert!(!scenario.steps(92_999, 1.0).contains(&ASKED), "3000 steps from the checkpoint on");
    assert_eq!(words(&scenario), "stage 1 of 3, plain in 1 step");
}

#[test]
fn a_stage_may_lie_anywhere_on_the_ladder() {
    let stage = |rung, length| Stage { rung, length };
    let up_and_down = vec![stage(1, Some(Length::Steps(100))), stage(3, Some(Length::Steps(100))), stage(0, None)];
    let mut scenario = planned(up_and_down, true);
    for (step, wanted) in [(200, 3), (400, 0)] {
        scenario.steps(step - 100, 1.0);
        scenario.save();
        scenario.steps(step, 1.0);
        scenario.save();
        assert_eq!(scenario.end(), [wanted]);
    }
}

#[test]
fn a_fault_uses_the_ladder_and_the_plan_continues_after_it() {
    let mut scenario = planned(plan(), true);
    scenario.steps(100, 1.0);
    scenario.save();
    scenario.steps(3100, 1.0);
    scenario.save();
    scenario.end();
    assert_eq!(scenario.policy.rung(), 1);
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [3], "the stage began a moment ago");
    assert_eq!(words(&scenario), "climb to plain in 4000 clean steps");
    let back = scenario.step;
    scenario.steps(back + 3000, 1.0);
    scenario.save();
    assert!(!scenario.steps(back + 3999, 1.0).contains(&ASKED), "twice the patience, and no stage in between");
    assert!(scenario.steps(back + 4000, 1.0).contains(&ASKED));
    scenario.save();
    assert_eq!(scenario.end(), [1]);
    let again = scenario.step;
    scenario.steps(again + 400, 1.0);
    scenario.save();
    // The stage's length was reached long ago; it must be calm once more.
    assert!(scenario.steps(again + 800, 1.0).contains(&ASKED));
    scenario.save();
    assert_eq!(scenario.end(), [0]);
}

#[test]
fn the_plan_survives_the_keeper_and_redone_steps_count_once() {
    let mut scenario = planned(plan(), true);
    scenario.steps(1000, 1.0);
    scenario.save();
    scenario.steps(3100, 1.0);
    scenario.save();
    scenario.end();
    let stored = serde_json::to_string(scenario.policy.ledger()).unwrap();
    let ledger: Ledger = serde_json::from_str(&stored).unwrap();
    let limits = Limits { plan: plan(), ..limits() };
    let mut later = Scenario::with_policy(Policy::new(limits, 1, ledger, None));
    later.resume(Some(3000));
    assert_eq!(words(&later), "stage 2 of 3, full in 2560 epochs", "it begins where the worker went on from");
    let status = later.policy.plan_status().unwrap();
    assert_eq!((status.stage, status.stages, status.next.as_deref()), (Some(2), 3, Some("full")));
}

#[test]
fn without_the_autopilot_the_next_stage_is_a_proposal() {
    let mut scenario = planned(plan(), false);
    scenario.steps(500, 1.0);
    scenario.save();
    let effects = scenario.steps(3200, 1.0);
    assert!(!effects.contains(&ASKED));
    let told = effects.iter().filter(|effect| matches!(effect, Effect::Journal(..))).count();
    assert_eq!(told, 1, "once: {effects:?}");
    assert_eq!(scenario.proposal(), "3000 steps done and proven: would continue on plain, stage 2 of the climb plan");
    assert!(scenario.ask(Request::Accept).contains(&ASKED));
    assert_eq!(scenario.end(), [1]);
}

#[test]
fn a_rung_of_a_later_stage_moves_the_plan_on_and_any_other_ends_it() {
    let ask = |scenario: &mut Scenario, name: &str| {
        let effects = scenario.ask(Request::Shift { to: Target::Rung(name.to_owned()) });
        scenario.end();
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("the climb plan ends")))
    };
    let mut scenario = planned(plan(), true);
    scenario.steps(100, 1.0);
    scenario.save();
    assert!(!ask(&mut scenario, "plain"));
    assert_eq!(words(&scenario), "stage 2 of 3, full in 2560 epochs");
    assert!(ask(&mut scenario, "safe"), "an earlier stage is not gone back to");
    assert_eq!(scenario.policy.plan_status().unwrap().stage, None);
    scenario.steps(300, 1.0);
    scenario.save();
    assert!(!scenario.steps(9000, 1.0).contains(&ASKED), "the rung that the user chose is the top");
    let begun_elsewhere = Ledger::begin(2, &plan());
    assert_eq!(begun_elsewhere.climb.plan.stage(), None, "`--rung` has the last word");
    assert_eq!(Ledger::begin(0, &plan()).climb.plan.stage(), Some(2));
}

#[test]
fn a_stage_that_cannot_be_saved_for_is_not_left() {
    let mut scenario = planned(plan(), true);
    scenario.steps(500, 1.0);
    scenario.save();
    scenario.steps(3000, 1.0);
    let message = "No space left on device".to_owned();
    scenario.tell(Event::Worker(crate::protocol::worker::Event::StopRefused { step: 3000, message }));
    assert_eq!((scenario.policy.rung(), scenario.policy.plan_status().unwrap().stage), (3, Some(1)));
    assert!(!scenario.steps(3010, 1.0).contains(&ASKED), "until saving works again");
    scenario.save();
    assert!(scenario.steps(3011, 1.0).contains(&ASKED));
}
