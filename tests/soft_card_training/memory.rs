//! The card's memory: too little of it, and its size in plans.

use crate::card::{place_with_card, place_with_unused_card, run_with_faults};
use crate::helper::journal_says;
use serde_json::Value;

#[test]
fn too_little_memory_is_an_out_of_memory() {
    let place = place_with_card();
    let run = run_with_faults(&place, r#"[{"capacity_mib": 1, "once": true}]"#);
    assert!(journal_says(&run, "out of device memory: the device has no room for a buffer of "));
    assert!(journal_says(&run, "full → accumulate"));
}

#[test]
fn a_plan_without_nvml_asks_the_driver_for_the_cards_memory() {
    let place = place_with_unused_card();
    let plan: Value =
        serde_json::from_str(&place.succeed(&["plan", "digits", "--device", "cuda", "--format", "json"])).unwrap();
    assert_eq!(plan["card"]["total_bytes"], 8_u64 << 30, "{plan}");
    assert!(place.succeed(&["plan", "digits", "--device", "cuda"]).contains("On cuda:0 Soft Card 6.1: 8.0 GiB."));
}
