//! A card that skips kernels is asked for the work that a card which runs them does: scripts/step_costs.py counts on it.

use super::card::{PLAIN, place_with_card};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Trains three steps and returns the number of equal launches and copies.
fn launches_and_copies(skip: bool) -> BTreeMap<String, usize> {
    let mut place = place_with_card();
    let trace = place.dir.path().join("trace");
    place.variables.push(("SOFT_CARD_TRACE", trace.clone()));
    if skip {
        place.variables.push(("SOFT_CARD_SKIP", PathBuf::from("1")));
    }
    let words = ["run", "digits", "--headless", "--device", "cuda", "--set", "training.steps=3"];
    // Tuning chooses by time, and saves follow the clock; which weights are the best and which gradients are clipped
    // depends on values.
    let saves = ["checkpoint.every=never", "checkpoint.keep_best=false"];
    let steady = ["training.autotune=later", saves[0], saves[1], "optimizer.max_norm=null"];
    let steady = steady.iter().flat_map(|change| ["--set", change]);
    place.succeed(&words.into_iter().chain(PLAIN).chain(steady).collect::<Vec<_>>());
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(trace).unwrap().lines() {
        if line.starts_with(r#"{"launch""#) || line.starts_with(r#"{"copy""#) {
            // Of products and reductions that compute the same, CubeCL takes one or the other, whose vectors have other sizes.
            let end = ["_lhs_", "reduce_kernel_in_", ",\"grid\"", ",\"bytes\""].iter().find_map(|end| line.find(end));
            *counts.entry(line[..end.unwrap_or(line.len())].to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_card_that_skips_kernels_is_asked_for_the_same_work() {
    let real = launches_and_copies(false);
    assert!(real.values().sum::<usize>() > 1000, "{real:?}");
    let skipped = launches_and_copies(true);
    let differ = real.keys().chain(skipped.keys()).filter(|call| real.get(*call) != skipped.get(*call));
    let differ: Vec<_> = differ.map(|call| (call, real.get(call), skipped.get(call))).collect();
    assert!(differ.is_empty(), "{differ:#?}");
}
