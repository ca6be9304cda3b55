//! The card's memory: too little of it at any time, and its size in plans.

use super::card::{place_with_card, place_with_unused_card, run_with_faults};
use super::faults::break_in;
use super::gradients::write_text;
use super::holders::place_with_gauges;
use crate::helper::{journal, journal_says};
use downshift::protocol::control::RunState;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::path::PathBuf;

const CUT: &str = r#"[{"capacity_mib": 1, "once": true}]"#;

/// Reports whether the run said that its card had no room, and went on with smaller micro-batches.
fn is_relieved(run: &RunDir) -> bool {
    journal_says(run, ": out of device memory: the device has no room for a buffer of ")
        && journal_says(run, "full → accumulate")
}

#[test]
fn too_little_memory_is_an_out_of_memory() {
    let place = place_with_card();
    assert!(is_relieved(&run_with_faults(&place, CUT)));
}

#[test]
fn too_little_memory_in_a_step_is_an_out_of_memory() {
    let place = place_with_card();
    assert!(is_relieved(&break_in(&place, RunState::Training, CUT)));
    place.curve(8, 32);
}

#[test]
fn too_little_memory_in_an_evaluation_is_an_out_of_memory() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Evaluating, CUT);
    assert!(is_relieved(&run) && journal_says(&run, "worker ended at step 4"), "{:#?}", journal(&run));
}

/// The control of the tests above.
#[test]
fn an_out_of_memory_that_is_swallowed_relieves_nothing() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Training, r#"[{"capacity_mib": 1, "swallowed": true}]"#);
    assert!(!is_relieved(&run), "{:#?}", journal(&run));
}

/// A save asks for no memory of the device, and the memory of the host that it copies to need not be pinned.
#[test]
fn a_save_needs_no_memory_that_can_be_pinned() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Training, r#"[{"pinned_mib": 0}]"#);
    assert!(journal_says(&run, "checkpoint 4 · ") && !journal_says(&run, "worker ended"), "{:#?}", journal(&run));
}

#[test]
fn a_plan_without_nvml_asks_the_driver_for_the_cards_memory() {
    let place = place_with_unused_card();
    let plan: Value =
        serde_json::from_str(&place.succeed(&["plan", "digits", "--device", "cuda", "--format", "json"])).unwrap();
    assert_eq!(plan["card"]["total_bytes"], 8_u64 << 30, "{plan}");
    assert!(place.succeed(&["plan", "digits", "--device", "cuda"]).contains("On cuda:0 Soft Card 6.1: 8.0 GiB."));
}

/// Memory depends on shapes alone, so the card skips the kernels, and the steps last long enough for a busy machine to see their
/// peak. It has no context.
#[test]
fn every_rung_takes_the_memory_that_is_planned() {
    let (mut place, _) = place_with_gauges();
    place.variables.push(("SOFT_CARD_SKIP", PathBuf::from("1")));
    let data = write_text(&place);
    let words = ["plan", "text", "--device", "cuda", "--measure", "20", "--format", "json", "--set", &data];
    let shape = ["--set", "model.width=768", "--set", "model.sequence=256", "--set", "model.heads=12"];
    let plan: Value = serde_json::from_str(&place.succeed(&[&words[..], &shape].concat())).unwrap();
    let rungs = plan["rungs"].as_array().unwrap();
    assert_eq!(rungs.len(), 5);
    for rung in rungs {
        let bytes = |name: &str| rung.pointer(name).and_then(Value::as_u64).unwrap();
        let planned = bytes("/foreseen/training") - bytes("/foreseen/overhead");
        let measured = bytes("/measured/peak_bytes");
        let is_near = planned * 100 >= measured * 90 && planned * 100 <= measured * 110;
        assert!(measured > 256 << 20 && is_near, "{planned}, {measured}: {rung}");
    }
}
