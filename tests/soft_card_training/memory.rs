//! The card's memory: too little of it at any time, and its size in plans.

use crate::card::{eight_steps, place_with_card, place_with_unused_card, run_with_faults, set_faults};
use crate::helper::{Place, journal, journal_says, wait_for};
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::process::Stdio;

/// The card takes its time, so that faults set after the first step come before the fourth ends.
const SLOW: &str = r#"[{"slow_ms": 3}]"#;

/// Reports whether the run said that its card had no room, and went on with smaller micro-batches.
fn is_relieved(run: &RunDir) -> bool {
    journal_says(run, ": out of device memory: the device has no room for a buffer of ")
        && journal_says(run, "full → accumulate")
}

/// Trains eight steps with these settings, on a card that has these faults from the first step on.
fn run_cut_short(place: &Place, more: &[&str], faults: &str) -> RunDir {
    set_faults(place, SLOW);
    let words = [&eight_steps(), more].concat();
    let mut child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_for("a step", || live_status(&run).filter(|status| status.step > 0));
    set_faults(place, faults);
    assert!(child.wait().unwrap().success());
    place.curve(8, 32);
    run
}

/// Releases unused memory after the fourth step, so whatever comes next has to ask for it again.
const RELEASE: [&str; 2] = ["--set", "training.memory_cleanup_every=4"];
const CUT: &str = r#"[{"capacity_mib": 1, "once": true}]"#;

#[test]
fn too_little_memory_is_an_out_of_memory() {
    let place = place_with_card();
    assert!(is_relieved(&run_with_faults(&place, CUT)));
}

#[test]
fn too_little_memory_in_a_step_is_an_out_of_memory() {
    let place = place_with_card();
    let run = run_cut_short(&place, &RELEASE, CUT);
    assert!(is_relieved(&run) && journal_says(&run, "worker ended at step 4"), "{:#?}", journal(&run));
    assert!(journal_says(&run, "checkpoint 4 saved"), "it was not in the step after the fourth: {:#?}", journal(&run));
}

#[test]
fn too_little_memory_in_an_evaluation_is_an_out_of_memory() {
    let place = place_with_card();
    let run = run_cut_short(&place, &[&RELEASE[..], &["--set", "evaluation.every=4 steps"]].concat(), CUT);
    assert!(is_relieved(&run) && journal_says(&run, "worker ended at step 4"), "{:#?}", journal(&run));
}

/// The control of the tests above.
#[test]
fn an_out_of_memory_that_is_swallowed_relieves_nothing() {
    let faults = r#"[{"capacity_mib": 1, "swallowed": true}]"#;
    let place = place_with_card();
    let run = run_cut_short(&place, &RELEASE, faults);
    assert!(!is_relieved(&run), "{:#?}", journal(&run));
}

/// A save needs no memory of the device. The memory of the host that it copies to need not be pinned.
#[test]
fn a_save_needs_no_memory_that_can_be_pinned() {
    let place = place_with_card();
    let run = run_cut_short(&place, &[], r#"[{"pinned_mib": 0}]"#);
    assert!(journal_says(&run, "checkpoint 4 saved") && journal_says(&run, "finished at step 8"), "{:#?}", journal(&run));
    assert!(!journal_says(&run, "worker ended"), "{:#?}", journal(&run));
}

#[test]
fn a_plan_without_nvml_asks_the_driver_for_the_cards_memory() {
    let place = place_with_unused_card();
    let plan: Value =
        serde_json::from_str(&place.succeed(&["plan", "digits", "--device", "cuda", "--format", "json"])).unwrap();
    assert_eq!(plan["card"]["total_bytes"], 8_u64 << 30, "{plan}");
    assert!(place.succeed(&["plan", "digits", "--device", "cuda"]).contains("On cuda:0 Soft Card 6.1: 8.0 GiB."));
}
