//! A class A shift keeps the training problem: same samples, same gradient up to rounding.

use super::harness::{args, live, preset, with};
use downshift::protocol::worker::{DoneReason, Event, Order};
use serde_json::{Value, json};
use tempfile::TempDir;

fn batches(micro_batch: u64, accumulation: u64) -> Value {
    let knobs = [("training.micro_batch", json!(micro_batch)), ("training.accumulation", json!(accumulation))];
    with(preset(0.0), &knobs)
}

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / a.abs().max(1e-12)
}

#[test]
fn a_class_a_shift_keeps_loss_and_gradient() {
    let whole_dir = TempDir::new().unwrap();
    let whole = live(args(whole_dir.path(), batches(8, 1)), &[]);
    for (micro_batch, accumulation) in [(4, 2), (2, 4), (1, 8)] {
        let dir = TempDir::new().unwrap();
        let one = live(args(dir.path(), batches(8, 1)), &[(10, Order::Stop { checkpoint: true })]);
        let mut shifted = args(dir.path(), batches(micro_batch, accumulation));
        (shifted.rung, shifted.attempt) = (1, 2);
        let two = live(shifted, &[]);
        assert_eq!(two.outcome, Ok(DoneReason::Finished));
        let joined: Vec<_> = one.curve().into_iter().chain(two.curve()).collect();
        assert_eq!(joined.len(), whole.curve().len());
        for (shifted, unshifted) in joined.iter().zip(whole.curve()) {
            assert_eq!(shifted.0, unshifted.0);
            assert!(relative(unshifted.1, shifted.1) < 1e-5, "loss: {shifted:?}, {unshifted:?}");
        }
        // The first step after the shift starts from the same weights, so its gradient is the same.
        let (first, unshifted) = (two.curve()[0], whole.curve()[10]);
        assert_eq!(first.0, 11);
        assert!(relative(unshifted.2, first.2) < 1e-5, "gradient norm: {first:?}, {unshifted:?}");
    }
}

#[test]
fn a_smaller_batch_keeps_the_length_of_a_run_unless_the_rung_sets_its_own() {
    let steps = |micro_batch: u64, steps: u64| {
        let knobs = [("training.epochs", Value::Null), ("training.steps", json!(steps))];
        with(batches(micro_batch, 1), &knobs)
    };
    // An epoch is 10 steps of 4 samples and one of a single sample: 20 steps are 77 samples, and 37 are left
    // after the first 10. With the other length it is 79 samples, of which 39 are left.
    for (shifted, last) in [(steps(2, 20), 10 + 1 + 18), (steps(1, 20), 10 + 37), (steps(2, 40), 10 + 1 + 19)] {
        let dir = TempDir::new().unwrap();
        live(args(dir.path(), steps(4, 20)), &[(10, Order::Stop { checkpoint: true })]);
        let mut low = args(dir.path(), shifted.clone());
        (low.rung, low.attempt) = (1, 2);
        let (told, hello) = (live(low, &[]), |event: &Event| match event {
            Event::Hello(hello) => Some(hello.total_steps),
            _ => None,
        });
        assert_eq!(told.outcome, Ok(DoneReason::Finished));
        assert_eq!(told.curve().last().map(|row| row.0), Some(last), "{shifted}");
        assert_eq!(told.events.iter().find_map(hello), Some(last), "what it says of its length is true");
    }
}

#[test]
fn gradient_checkpointing_changes_nothing() {
    let (plain_dir, recompute_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = live(args(plain_dir.path(), preset(0.3)), &[]);
    let knobs = [("training.gradient_checkpointing", json!(true))];
    let recompute = live(args(recompute_dir.path(), with(preset(0.3), &knobs)), &[]);
    for (a, b) in plain.curve().iter().zip(recompute.curve()) {
        assert!(relative(a.1, b.1) < 1e-5, "{a:?} {b:?}");
    }
}

#[test]
fn loader_threads_change_nothing() {
    let (one_dir, many_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let one = live(args(one_dir.path(), preset(0.3)), &[]);
    let knobs = [("training.loader", json!({ "threads": 5, "prefetch": 0 }))];
    assert_eq!(live(args(many_dir.path(), with(preset(0.3), &knobs)), &[]).curve(), one.curve());
}
