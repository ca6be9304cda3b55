//! A start without tuning, and the tuned kernels that replace its own.

use super::caches::copy;
use super::card::{place_with_card, place_with_unused_card, set_faults};
use crate::helper::{Place, journal_says, wait_for, wait_status};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Eight steps of digits on its first rung, without tuning.
const LATER: [&str; 11] = [
    "run",
    "digits",
    "--headless",
    "--device",
    "cuda",
    "--set",
    "training.steps=8",
    "--set",
    "training.autotune=later",
    "--set",
    "checkpoint.every=2 steps",
];

fn caches(place: &Place) -> PathBuf {
    place.variables.iter().rfind(|(name, _)| *name == "XDG_CACHE_HOME").unwrap().1.join("downshift")
}

/// Returns the largest count of kernels that a start of this kind used before its first step.
fn kernels_used(caches: &Path, kind: &str) -> u64 {
    let files = fs::read_dir(caches.join("kernels/counts")).unwrap().flatten();
    let of_kind = files.filter(|file| file.file_name().to_string_lossy().ends_with(kind));
    of_kind.map(|file| fs::read_to_string(file.path()).unwrap().parse().unwrap()).max().unwrap()
}

#[test]
fn a_start_without_tuning_compiles_less_and_takes_over_tuned_kernels_at_a_save() {
    let prepared = caches(&place_with_card());
    let mut place = place_with_unused_card();
    place.variables.push(("XDG_CACHE_HOME", place.dir.path().join("cache")));
    // Time for the copy below, before the last save.
    set_faults(&place, r#"[{"slow_ms": 1}]"#);
    let mut child = place.command(&LATER).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "a step", |status| status.step >= 1);
    let (untuned, tuned) = (kernels_used(&caches(&place), "-untuned"), kernels_used(&prepared, "-tuning"));
    assert!(untuned > 20 && untuned * 3 / 2 < tuned, "{untuned} kernels without tuning, {tuned} with it");
    // As `prepare` leaves them.
    copy(&prepared.join("tuning"), &caches(&place).join("tuning"));
    assert!(child.wait().unwrap().success());
    assert!(journal_says(&run, "restart with tuned kernels: `downshift prepare` has tuned them"));
    place.curve(8, 32);
}
