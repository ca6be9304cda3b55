//! The real program trains on the soft card (examples/soft_card) as on a GPU.
#![cfg(feature = "cuda")]
#![cfg_attr(feature = "cuda", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

mod helper;
#[path = "soft_card/libraries.rs"]
mod libraries;

use downshift::store::run_dir::RunDir;
use helper::{Place, journal_says};
use libraries::{CACHE, build_libraries, built_library};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The rung `plain` of the shipped digits, with few kernels.
const PLAIN: [&str; 4] = ["--set", "training.fused_kernels=false", "--set", "evaluation.every=1000 steps"];

/// A place whose programs find the soft card where they look for NVIDIA's libraries.
fn place_with_card() -> Place {
    build_libraries();
    let mut place = Place::real();
    let folder = place.dir.path().join("card");
    fs::create_dir(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(built_library("libsoft_card_driver.so"), folder.join(name)).unwrap();
    }
    symlink(built_library("libsoft_card_nvrtc.so"), folder.join("libnvrtc.so")).unwrap();
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/soft_card");
    let variables = [("LD_LIBRARY_PATH", folder), ("CUDA_PATH", headers), ("SOFT_CARD_CACHE", PathBuf::from(CACHE))];
    place.variables.extend(variables);
    place.variables.push(("SOFT_CARD_FAULTS", faults_of(&place)));
    place
}

fn faults_of(place: &Place) -> PathBuf {
    place.dir.path().join("faults.json")
}

/// Runs digits with these faults to its end, and returns the run.
fn run_with_faults(place: &Place, faults: &str) -> RunDir {
    fs::write(faults_of(place), faults).unwrap();
    let words = ["run", "digits", "--headless", "--device", "cuda", "--set", "training.steps=8"];
    let words: Vec<&str> = words.into_iter().chain(PLAIN).chain(["--set", "checkpoint.every=4 steps"]).collect();
    place.succeed(&words);
    place.newest().unwrap()
}

/// Steps 5 to 8 from the same checkpoint, on the CPU and on the card.
#[test]
fn losses_are_those_of_the_cpu() {
    let place = place_with_card();
    let steps = ["--set", "training.steps=8", "--set", "checkpoint.every=4 steps"];
    let words = ["run", "digits", "--headless", "--device", "cpu"].into_iter().chain(PLAIN).chain(steps);
    place.succeed(&words.collect::<Vec<&str>>());
    let on_cpu = place.rows();
    place.succeed(&["resume", "--from", "4", "--headless", "--device", "cuda"]);
    let on_card = place.rows();
    // The rows of the first attempt stay.
    assert_eq!((on_cpu.len(), on_card.len()), (8, 12));
    for (cpu, card) in on_cpu[4..].iter().zip(&on_card[8..]) {
        assert_eq!(cpu["step"], card["step"]);
        for (metric, limit) in [("loss", 1e-5), ("grad_norm", 1e-4)] {
            let value = |row: &Value| row[metric].as_f64().unwrap();
            let (expected, found) = (value(cpu), value(card));
            assert!((found - expected).abs() <= limit * expected, "{metric}: {found} on the card, {expected}: {card}");
        }
    }
}

#[test]
fn a_launch_failure_shifts_down() {
    let place = place_with_card();
    let run = run_with_faults(&place, r#"[{"launch": 300, "code": 719, "once": true}]"#);
    assert!(journal_says(&run, "device fault") && journal_says(&run, "CUDA_ERROR_LAUNCH_FAILED"));
    assert!(journal_says(&run, "shift down"));
}

#[test]
fn too_little_memory_is_an_out_of_memory() {
    let place = place_with_card();
    let run = run_with_faults(&place, r#"[{"capacity_mib": 1, "once": true}]"#);
    assert!(journal_says(&run, "out of device memory"));
    assert!(journal_says(&run, "shift down"));
}
