//! A non-finite loss or gradient never reaches weights or moments.

use super::harness::{args, live, preset, tensors, with};
use downshift::protocol::inject::Inject;
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::store::checkpoint::{self, state::TrainState};
use serde_json::json;
use tempfile::TempDir;

#[test]
fn a_skipped_step_leaves_weights_and_moments_untouched() {
    let (clean_dir, struck_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    live(args(clean_dir.path(), preset(0.3)), &[(9, Order::Stop { checkpoint: true })]);
    let mut struck = args(struck_dir.path(), preset(0.3));
    struck.inject = Inject::parse_list("nan@10-12").unwrap();
    let told = live(struck, &[(12, Order::Stop { checkpoint: true })]);
    assert_eq!(tensors(struck_dir.path(), 12), tensors(clean_dir.path(), 9));
    let state = |run: &TempDir, step| -> TrainState {
        let loaded = checkpoint::load(&run.path().join(checkpoint::relative_path(step))).unwrap();
        serde_json::from_slice(&loaded.files[checkpoint::STATE]).unwrap()
    };
    let (clean, after) = (state(&clean_dir, 9), state(&struck_dir, 12));
    assert_eq!((after.optimizer_time, after.step, after.skipped, after.skips_in_a_row), (9, 12, 3, 3));
    assert_eq!((clean.optimizer_time, clean.position.samples, after.position.samples), (9, 65, 82));
    let at = |wanted: &dyn Fn(&Event) -> bool| told.events.iter().position(wanted).unwrap();
    let announced = at(&|event| matches!(event, Event::Injected { fault, step: 10 } if fault == "nan@10-12"));
    let skipped = at(&|event| {
        matches!(event, Event::Skipped(skipped)
            if skipped.step == 10 && skipped.what == "loss" && skipped.place == "micro-batch 1 of 2")
    });
    assert!(announced < skipped);
    assert_eq!(told.events.iter().filter(|event| matches!(event, Event::Injected { .. })).count(), 1);
}

#[test]
fn training_continues_after_a_skipped_step() {
    let dir = TempDir::new().unwrap();
    let mut struck = args(dir.path(), preset(0.0));
    struck.inject = Inject::parse_list("nan@3,nan@20").unwrap();
    let told = live(struck, &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    assert_eq!(told.curve().len(), 22);
    assert!(told.evals().last().unwrap().1 < told.curve()[0].1);
}

#[test]
fn too_many_skips_in_a_row_end_the_worker_without_a_save() {
    let dir = TempDir::new().unwrap();
    let mut struck = args(dir.path(), with(preset(0.0), &[("checkpoint.every", json!("2 steps"))]));
    struck.inject = Inject::parse_list("nan@5-100").unwrap();
    let told = live(struck, &[]);
    let failed = told.outcome.clone().unwrap_err();
    assert_eq!((failed.class.exit_code(), failed.step), (12, Some(9)));
    assert_eq!(told.events.last(), Some(&Event::Failed(failed)));
    assert!(told.saved().iter().all(|step| *step < 9));
}

#[test]
fn an_overflowing_gradient_is_named_and_dropped() {
    let dir = TempDir::new().unwrap();
    // A rate so high that weights explode within a few steps.
    let told = live(args(dir.path(), with(preset(0.0), &[("optimizer.lr", json!(1e30))])), &[]);
    assert!(told.has(|event| matches!(event, Event::Skipped(_))));
    let loaded = checkpoint::newest_valid(dir.path()).0;
    assert!(loaded.is_none(), "nothing was worth saving");
}

#[test]
fn slow_steps_change_nothing_but_time() {
    let (plain_dir, slow_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = live(args(plain_dir.path(), preset(0.3)), &[]);
    let mut slow = args(slow_dir.path(), preset(0.3));
    slow.inject = Inject::parse_list("slow@2-4").unwrap();
    let told = live(slow, &[]);
    assert_eq!(told.curve(), plain.curve());
    assert!(told.has(|event| matches!(event, Event::Injected { fault, step: 2 } if fault == "slow@2-4")));
}

#[test]
fn without_the_panic_hook_a_failed_allocation_goes_unnoticed() {
    // The control of `process::a_panic_of_a_device_thread_ends_the_worker_as_out_of_memory`: training in this
    // process has no panic hook, and nothing else reports that the device is lost.
    let dir = TempDir::new().unwrap();
    let mut struck = args(dir.path(), preset(0.0));
    struck.inject = Inject::parse_list("oom@5").unwrap();
    let told = live(struck, &[]);
    assert_eq!((told.outcome.as_ref(), told.curve().len()), (Ok(&DoneReason::Finished), 24));
}
