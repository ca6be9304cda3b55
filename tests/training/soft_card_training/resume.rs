//! Resume and shifts on the card.

use super::card::{eight_steps, place_with_card};
use crate::helper::{Place, stop_run, wait_for, wait_status};
use serde_json::Value;
use std::fs;

/// Everything of a step but its times.
fn computed(row: &Value) -> [Option<f64>; 3] {
    ["step", "loss", "grad_norm"].map(|name| row[name].as_f64())
}

fn weights(place: &Place) -> Vec<u8> {
    fs::read(place.newest().unwrap().path().join("checkpoints/step-000000008/model.safetensors")).unwrap()
}

#[test]
fn a_resume_with_one_kernel_per_operation_is_exact() {
    let place = place_with_card();
    place.succeed(&eight_steps());
    let (straight, unbroken) = (place.rows(), weights(&place));
    place.succeed(&["resume", "--from", "4", "--headless", "--device", "cuda"]);
    let all = place.rows();
    assert_eq!((straight.len(), all.len()), (8, 12));
    for (one, other) in straight[4..].iter().zip(&all[8..]) {
        assert_eq!(computed(one), computed(other));
    }
    assert!(unbroken == weights(&place), "other weights after the resume");
}

#[test]
fn every_rung_of_digits_trains_and_no_step_is_lost() {
    let place = place_with_card();
    let words = ["run", "digits", "--headless", "--device", "cuda", "--set", "evaluation.every=1000 steps"];
    let mut child = place.command(&words).stdout(std::process::Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    for rung in 0..=4 {
        let begin = wait_status(&run, "an attempt on the rung", |status| status.rung == rung).step;
        wait_status(&run, "two steps", |status| status.step >= begin + 2);
        if rung < 4 {
            place.succeed(&["shift", "down"]);
        }
    }
    place.succeed(&["shift", "up"]);
    let begin = wait_status(&run, "an attempt one rung up", |status| status.rung == 3).step;
    let last = wait_status(&run, "two steps", |status| status.step >= begin + 2).step;
    stop_run(&place, &mut child);
    // Every rung of digits has the same effective batch.
    place.curve(last, 32);
}
