//! The learning rate on a plateau: the rates follow the rule, and a run that is killed anywhere goes on with the same.

use super::harness::{Told, args, live, preset, tensors, with};
use super::identity::rewrite;
use downshift::protocol::worker::{DoneReason, Event, Order, ReducedRate};
use downshift::store::checkpoint::STATE;
use serde_json::{Value, json};
use tempfile::TempDir;

const STEPS: u64 = 24;
const STOP: Order = Order::Stop { checkpoint: true };
const DIE: Order = Order::Stop { checkpoint: false };

/// Nothing improves by 90 %, so each evaluation but the first lowers the rate: after steps 12 and 18. After 24, no step follows.
fn strict() -> Value {
    with(preset(0.3), &[("optimizer.plateau", json!({ "factor": 0.5, "patience": 0, "threshold": 0.9 }))])
}

fn rates(told: &Told) -> Vec<(u64, f64)> {
    let rate = |event: &Event| match event {
        Event::Step(step) => Some((step.step, step.lr.unwrap())),
        _ => None,
    };
    told.events.iter().filter_map(rate).collect()
}

fn reductions(told: &Told) -> Vec<ReducedRate> {
    let reduced = |event: &Event| if let Event::Eval(eval) = event { eval.reduced.clone() } else { None };
    told.events.iter().filter_map(reduced).collect()
}

/// Losses and norms, rates and reductions of a curve.
type Seen = (Vec<(u64, f64, f64)>, Vec<(u64, f64)>, Vec<ReducedRate>);

/// Returns everything that a user sees of a curve.
fn seen(told: &Told) -> Seen {
    (told.curve(), rates(told), reductions(told))
}

fn joined(one: &Told, two: &Told) -> Seen {
    let (mut all, rest) = (seen(one), seen(two));
    all.0.extend(rest.0);
    all.1.extend(rest.1);
    all.2.extend(rest.2);
    all
}

#[test]
fn each_reduction_halves_the_scheduled_rate_from_the_next_step_on() {
    let (plain_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = live(args(plain_dir.path(), preset(0.3)), &[]);
    let told = live(args(dir.path(), strict()), &[]);
    for ((step, scheduled), (_, rate)) in rates(&plain).into_iter().zip(rates(&told)) {
        let factor = if step <= 12 { 1.0 } else { 0.5f64.powi(((step - 7) / 6) as i32) };
        assert_eq!(rate.to_bits(), (scheduled * factor).to_bits(), "step {step}");
    }
    let reductions = reductions(&told);
    let at: Vec<(u64, u64)> = reductions.iter().map(|reduced| (reduced.step, reduced.evaluations)).collect();
    assert_eq!(at, [(12, 1), (18, 1)]);
    let (_, rate) = rates(&told)[11];
    assert!(reductions[0].metric == "loss" && reductions[0].from.to_bits() == rate.to_bits(), "{reductions:?}");
    assert!(reductions.iter().all(|reduced| (reduced.to - reduced.from / 2.0).abs() < 1e-12), "{reductions:?}");
    assert!(plain.curve() != told.curve(), "the weights follow the rate");
}

#[test]
fn a_run_stopped_around_a_reduction_and_resumed_is_bit_identical() {
    let whole_dir = TempDir::new().unwrap();
    let whole = live(args(whole_dir.path(), strict()), &[]);
    for stop in [5, 6, 11, 12, 13, 18, 23] {
        let dir = TempDir::new().unwrap();
        let one = live(args(dir.path(), strict()), &[(stop, STOP)]);
        assert_eq!(one.saved(), [stop]);
        let two = live(args(dir.path(), strict()), &[]);
        assert_eq!(two.outcome, Ok(DoneReason::Finished));
        assert_eq!(joined(&one, &two), seen(&whole), "stopped at {stop}");
        assert_eq!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS), "stopped at {stop}");
    }
}

#[test]
fn a_reduction_that_no_checkpoint_holds_is_made_again_and_only_once() {
    let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(args(whole_dir.path(), strict()), &[]);
    let saved = live(args(dir.path(), strict()), &[(11, STOP)]);
    // The worker dies right after the evaluation that lowers the rate, twice.
    for _ in 0..2 {
        let lost = live(args(dir.path(), strict()), &[(12, DIE)]);
        assert_eq!(reductions(&lost), reductions(&whole)[..1]);
    }
    let redone = live(args(dir.path(), strict()), &[]);
    assert_eq!(joined(&saved, &redone), seen(&whole));
    assert_eq!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS));
}

#[test]
fn a_checkpoint_without_the_state_of_the_rule_loads_and_trains_otherwise() {
    let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(args(whole_dir.path(), strict()), &[]);
    live(args(dir.path(), strict()), &[(13, STOP)]);
    // As an older version would have written it: this also shows that the tests above can fail.
    rewrite(dir.path(), |files| {
        let mut state: Value = serde_json::from_slice(&files[STATE]).unwrap();
        assert!(state.as_object_mut().unwrap().remove("plateau").is_some());
        files.insert(STATE.to_owned(), serde_json::to_vec(&state).unwrap());
    });
    let resumed = live(args(dir.path(), strict()), &[]);
    assert_eq!(resumed.outcome, Ok(DoneReason::Finished));
    let (_, forgotten) = rates(&resumed)[0];
    let (step, lowered) = rates(&whole)[13];
    assert_eq!((step, forgotten.to_bits()), (14, (lowered * 2.0).to_bits()), "the rate as scheduled");
    assert_ne!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS));
}

#[test]
fn the_factor_applies_on_top_of_the_rate_of_another_rung() {
    let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(args(whole_dir.path(), strict()), &[]);
    live(args(dir.path(), strict()), &[(13, STOP)]);
    let mut slower = args(dir.path(), with(strict(), &[("optimizer.lr", json!(0.0025))]));
    (slower.rung, slower.attempt) = (1, 2);
    let told = live(slower, &[(16, STOP)]);
    for ((step, rate), (_, faster)) in rates(&told).into_iter().zip(rates(&whole)[13..].iter().copied()) {
        assert!((rate / faster - 0.25).abs() < 1e-12, "step {step}: {rate}, {faster}");
    }
    // A rung without the rule trains as scheduled, and the state is kept for the next one.
    let mut without = args(dir.path(), preset(0.3));
    (without.rung, without.attempt) = (2, 3);
    let told = live(without, &[(17, STOP)]);
    assert_eq!(rates(&told)[0].1.to_bits(), (rates(&whole)[16].1 * 2.0).to_bits());
    let back = live(args(dir.path(), strict()), &[]);
    assert_eq!(rates(&back)[0], rates(&whole)[17]);
}
