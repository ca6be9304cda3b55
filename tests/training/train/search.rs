//! A search that is stopped and resumed at any step of any phase equals the uninterrupted one: losses, rates, weights,
//! architecture, the moments of both optimizers, and so the genotype.

use super::harness::{Told, args, live, tensors, with};
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::store::checkpoint::{self, Contents, STATE};
use downshift::train::job::WorkerArgs;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const STOP: Order = Order::Stop { checkpoint: true };
/// Steps of an epoch, and of the run: two epochs of weights, then architecture and weights in turn.
const EPOCH: u64 = 3;
const STEPS: u64 = 5 * EPOCH;

/// Writes 60 pictures of two classes in the format of MNIST: bright on the left, or bright on the right.
fn pictures(folder: &Path) {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for index in 0..60_u32 {
        let class = u8::from(index % 2 == 1);
        labels.push(class);
        for at in 0..64_u32 {
            let bright = (at % 8 >= 4) == (class == 1);
            let noise = (index * 37 + at * 11) % 90;
            pixels.push(u8::try_from(noise + if bright { 120 } else { 0 }).unwrap());
        }
    }
    let header = |kind: u8, sizes: &[u32]| {
        let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, kind].into_iter().chain(sizes).collect::<Vec<u8>>()
    };
    fs::write(folder.join("train-images-idx3-ubyte"), [header(3, &[60, 8, 8]), pixels].concat()).unwrap();
    fs::write(folder.join("train-labels-idx1-ubyte"), [header(1, &[60]), labels].concat()).unwrap();
}

/// 24 pictures for the weights and 24 for the architecture, in steps of 8.
fn preset(data: &Path, order: &str) -> Value {
    json!({
        "data": { "source": data, "validation": 0.2, "train_portion": 0.5, "augment": { "shift": 1 } },
        "model": { "channels": 2, "layers": 2, "nodes": 1, "search": {
            "warmup_epochs": 1, "weight_epochs": 1, "arch_epochs": 1, "order": order, "skip_epochs": 4 } },
        "training": { "epochs": 5, "micro_batch": 4, "accumulation": 2, "seed": 7,
                      "loader": { "threads": 2, "prefetch": 3 } },
        "optimizer": { "lr": 0.01, "weight_decay": 0.1, "max_norm": 0.5,
                       "architecture": { "lr": 0.05, "weight_decay": 0.01, "betas": [0.5, 0.99] } },
        "evaluation": { "every": "1 epoch" },
        "checkpoint": { "every": "never" },
    })
}

fn run_on(dir: &Path, preset: &Value, orders: &[(u64, Order)]) -> Told {
    live(WorkerArgs { task: "search".into(), ..args(dir, preset.clone()) }, orders)
}

/// Loss, gradient norm and rate of each step, and the weights and moments at the end.
type Whole = (Vec<(f64, f64, f64)>, (Vec<u8>, Vec<u8>));

/// Runs to the end, resumed after each of these steps; `forget` edits the checkpoint each time.
fn run(preset: &Value, stops: &[u64], forget: &dyn Fn(&Path)) -> Whole {
    let dir = TempDir::new().unwrap();
    let mut all = Vec::new();
    for stop in stops.iter().copied().map(Some).chain([None]) {
        let orders: Vec<_> = stop.map(|stop| (stop, STOP)).into_iter().collect();
        let told = run_on(dir.path(), preset, &orders);
        let ended = if stop.is_some() { DoneReason::Stopped } else { DoneReason::Finished };
        assert_eq!(told.outcome, Ok(ended), "{:?}", told.events.last());
        all.extend(told.events.iter().filter_map(|event| match event {
            Event::Step(step) => Some((step.loss.unwrap(), step.grad_norm.unwrap(), step.lr.unwrap())),
            _ => None,
        }));
        if stop.is_some() {
            forget(dir.path());
        }
    }
    (all, tensors(dir.path(), STEPS))
}

#[test]
fn a_search_resumes_exactly_at_any_step_of_any_phase() {
    let data = TempDir::new().unwrap();
    pictures(data.path());
    for order in ["first", "second"] {
        let preset = preset(data.path(), order);
        let whole = run(&preset, &[], &|_| {});
        let rates: Vec<bool> = whole.0.iter().map(|(.., lr)| (*lr - 0.05).abs() < 1e-12).collect();
        let searched = |step: u64| (2 * EPOCH..3 * EPOCH).contains(&step) || (4 * EPOCH..5 * EPOCH).contains(&step);
        assert_eq!(rates, (0..STEPS).map(searched).collect::<Vec<_>>(), "phases follow the epochs");
        let every: Vec<u64> = (1..STEPS).collect();
        let stops: &[u64] = if order == "first" { &every } else { &[7, 8, 13] };
        assert!(run(&preset, stops, &|_| {}) == whole, "{order}");
        let recomputed = with(preset.clone(), &[("training.gradient_checkpointing", json!(true))]);
        let resumed = run(&recomputed, &[5, 7], &|_| {});
        assert!(resumed == run(&recomputed, &[], &|_| {}), "{order}, recomputed");
        // Parts of unequal size: an architecture epoch takes a part of its images, or takes them more than once.
        for portion in [0.25, 0.75] {
            let uneven =
                with(preset.clone(), &[("data.train_portion", json!(portion)), ("training.epochs", Value::Null)]);
            let uneven = with(uneven, &[("training.steps", json!(STEPS))]);
            assert!(run(&uneven, &[3, 8, 11], &|_| {}) == run(&uneven, &[], &|_| {}), "{order}, {portion}");
        }
    }
}

/// The rungs of a ladder that keep the experiment: each is entered within an architecture phase.
#[test]
fn a_shift_within_a_phase_continues_the_search() {
    let data = TempDir::new().unwrap();
    pictures(data.path());
    let plain = preset(data.path(), "first");
    let (whole, _) = run(&plain, &[], &|_| {});
    for knobs in [
        &[("training.micro_batch", json!(2)), ("training.accumulation", json!(4))][..],
        &[("training.gradient_checkpointing", json!(true))],
        &[("model.fused_separable", json!(false))],
        &[("training.fused_kernels", json!(false))],
        &[("optimizer.offload", json!(true))],
    ] {
        let dir = TempDir::new().unwrap();
        let first = run_on(dir.path(), &plain, &[(2 * EPOCH + 1, STOP)]);
        let shifted = WorkerArgs { task: "search".into(), ..args(dir.path(), with(plain.clone(), knobs)) };
        let second = live(WorkerArgs { rung: 1, attempt: 2, ..shifted }, &[]);
        assert_eq!(second.outcome, Ok(DoneReason::Finished), "{knobs:?}");
        let joined = [first.curve(), second.curve()].concat();
        assert_eq!(joined.len(), whole.len(), "{knobs:?}");
        for ((step, loss, _), (expected, ..)) in joined.iter().zip(&whole) {
            assert!((loss - expected).abs() < 1e-4, "{knobs:?}, step {step}: {loss}, {expected}");
        }
        let state = checkpoint::load(&dir.path().join(checkpoint::relative_path(STEPS))).unwrap();
        let state: Value = serde_json::from_slice(&state.files[STATE]).unwrap();
        assert_eq!([&state["optimizer_time"], &state["architecture_time"]], [&json!(9), &json!(6)], "{knobs:?}");
    }
}

#[test]
fn a_forgotten_count_of_architecture_updates_is_noticed() {
    let data = TempDir::new().unwrap();
    pictures(data.path());
    let preset = preset(data.path(), "first");
    let forget = |dir: &Path| {
        let loaded = checkpoint::newest_valid(dir).0.unwrap();
        let mut files = loaded.files.clone();
        let mut state: Value = serde_json::from_slice(&files[STATE]).unwrap();
        assert_eq!(state["architecture_time"], 2, "{state}");
        state["architecture_time"] = json!(1);
        files.insert(STATE.to_owned(), state.to_string().into_bytes());
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        let (step, samples) = (loaded.manifest.step, loaded.manifest.samples);
        checkpoint::write(dir, &Contents { step, samples, build: "test", files: &files }).unwrap();
    };
    let stops = [2 * EPOCH + 2];
    assert!(run(&preset, &stops, &forget) != run(&preset, &stops, &|_| {}));
}

#[test]
fn weights_and_architecture_change_in_their_own_phases_alone() {
    let data = TempDir::new().unwrap();
    pictures(data.path());
    let preset = preset(data.path(), "first");
    let dir = TempDir::new().unwrap();
    let mut before: Option<Vec<(String, Vec<u8>)>> = None;
    for epoch in 1..=5 {
        run_on(dir.path(), &preset, &[(epoch * EPOCH, STOP)]);
        let file = tensors(dir.path(), epoch * EPOCH).0;
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        let mut now: Vec<(String, Vec<u8>)> =
            file.iter().map(|(path, view)| (path.to_owned(), view.data().to_vec())).collect();
        now.sort();
        if let Some(before) = before.replace(now.clone()) {
            let searches = epoch == 3 || epoch == 5;
            for (old, new) in before.iter().zip(&now) {
                let of_architecture = new.0.starts_with("architecture.");
                assert_eq!(old.1 != new.1, of_architecture == searches, "{} in epoch {epoch}", new.0);
            }
        }
    }
}

#[test]
fn a_frozen_phase_and_an_architecture_of_another_task_are_refused() {
    let data = TempDir::new().unwrap();
    pictures(data.path());
    let refused = |knobs: &[(&str, Value)]| {
        let dir = TempDir::new().unwrap();
        run_on(dir.path(), &with(preset(data.path(), "first"), knobs), &[]).outcome.unwrap_err().message
    };
    let frozen = |pattern: &str| json!({ "still": { "match": pattern, "frozen": true } });
    assert!(refused(&[("optimizer.groups", frozen("architecture"))]).contains("freeze the architecture"));
    assert!(refused(&[("optimizer.groups", frozen("network"))]).contains("freeze all weights"));
    let dir = TempDir::new().unwrap();
    let tiny = with(super::harness::preset(0.0), &[("optimizer.architecture", json!({ "lr": 0.1 }))]);
    let message = live(args(dir.path(), tiny), &[]).outcome.unwrap_err().message;
    assert!(message.contains("task tiny has no architecture"), "{message}");
}
