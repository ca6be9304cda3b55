//! Blocks recomputed in the backward pass: the same gradient as when all activations are kept, including dropout
//! noise.

use super::harness::{args, live, preset, tensors, with};
use downshift::protocol::worker::{DoneReason, Order};
use downshift::train::job::WorkerArgs;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

fn job(run_dir: &Path, preset: Value) -> WorkerArgs {
    let task = if preset["data"]["source"] == "embedded:digits" { "vision" } else { "lm" };
    WorkerArgs { task: task.into(), ..args(run_dir, preset) }
}

fn small(model: Value) -> Value {
    let mut base = with(preset(0.0), &[("optimizer.max_norm", json!(1e6)), ("optimizer.weight_decay", json!(0.0))]);
    base["data"] = json!({ "source": "embedded:text", "tokenizer": "bytes", "validation": 0.01 });
    base["model"] = model;
    base["training"] = json!({ "steps": 1, "micro_batch": 3, "accumulation": 2, "seed": 7 });
    base["optimizer"]["schedule"] = json!({ "kind": "constant" });
    base["evaluation"] = json!({ "every": "never" });
    base
}

/// Returns loss, gradient norm and gradient (ten times the first moment) of one step.
fn first_step(preset: Value) -> (f64, f64, Vec<(String, Vec<f64>)>) {
    let dir = TempDir::new().unwrap();
    let told = live(job(dir.path(), preset), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    let (_, loss, norm) = told.curve()[0];
    let (_, moments) = tensors(dir.path(), 1);
    let moments = SafeTensors::deserialize(&moments).unwrap();
    let values = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    let mut gradient: Vec<(String, Vec<f64>)> = moments
        .iter()
        .filter(|(name, _)| name.ends_with(".exp_avg"))
        .map(|(name, view)| (name.to_owned(), values(view.data())))
        .collect();
    gradient.sort_by(|(one, _), (two, _)| one.cmp(two));
    (loss, norm, gradient)
}

fn size(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

#[test]
fn recomputed_blocks_have_the_same_gradient_with_and_without_dropout() {
    let fresh = |tied: bool, dropout: f64| json!({ "layers": 3, "heads": 2, "width": 16, "sequence": 12, "tied": tied, "dropout": dropout });
    let llama = |dropout: f64| json!({ "init_from": "embedded:tiny-llama", "sequence": 12, "dropout": dropout });
    let adapted = |mut model: Value| {
        model["lora"] = json!({ "rank": 2, "dropout": 0.3, "targets": ["all"] });
        model
    };
    for (what, model, trained, parameters) in [
        ("tied", fresh(true, 0.0), json!("all"), 34),
        ("tied, dropout", fresh(true, 0.3), json!("all"), 34),
        ("untied, dropout", fresh(false, 0.3), json!("all"), 35),
        ("the last block, dropout", fresh(false, 0.3), json!("last 1 block + head"), 13),
        ("llama", llama(0.0), json!("all"), 29),
        ("llama, dropout", llama(0.2), json!("all"), 29),
        ("adapters, dropout", adapted(llama(0.2)), json!("adapters"), 42),
        ("adapters and all, dropout in them alone", adapted(fresh(false, 0.0)), json!("all"), 35 + 36),
    ] {
        compare_with_recomputed(what, &with(small(model), &[("training.trained", trained)]), parameters);
    }
}

/// Checks that loss, gradient norm and gradient of one step are the same when blocks are recomputed.
fn compare_with_recomputed(what: &str, kept: &Value, parameters: usize) {
    let (loss, norm, gradient) = first_step(kept.clone());
    assert_eq!(gradient.len(), parameters, "{what}");
    let checkpointing = ("training.gradient_checkpointing", json!(true));
    let (other_loss, other_norm, other) = first_step(with(kept.clone(), &[checkpointing]));
    assert!((other_loss / loss - 1.0).abs() < 1e-6, "{what}: loss {loss}, {other_loss}");
    assert!((other_norm / norm - 1.0).abs() < 1e-5, "{what}: norm {norm}, {other_norm}");
    for ((name, mine), (also, theirs)) in gradient.iter().zip(&other) {
        assert_eq!(name, also);
        let apart = size(mine.iter().zip(theirs).map(|(mine, theirs)| mine - theirs));
        assert!(apart <= 1e-5 * size(mine.iter().copied()), "{what}: {name}, {apart}");
    }
}

#[test]
fn recomputed_blocks_of_a_classifier_have_the_same_gradient() {
    for (what, dropout, trained, parameters) in [
        ("all", 0.0, "all", 21),
        ("dropout", 0.3, "all", 21),
        ("the last block, dropout", 0.3, "last 1 block + head", 9),
        ("the head", 0.0, "head", 4),
    ] {
        let mut kept = small(json!({ "channels": 6, "layers": 3, "dropout": dropout }));
        kept["data"] = json!({ "source": "embedded:digits" });
        compare_with_recomputed(what, &with(kept, &[("training.trained", json!(trained))]), parameters);
    }
}

#[test]
fn dropout_applies_to_recomputed_blocks() {
    let step = |dropout: f64| {
        let model = json!({ "layers": 3, "heads": 2, "width": 16, "sequence": 12, "dropout": dropout });
        first_step(with(small(model), &[("training.gradient_checkpointing", json!(true))]))
    };
    let (plain, noisy) = (step(0.0), step(0.3));
    assert!((plain.0 - noisy.0).abs() > 1e-4, "{} and {}", plain.0, noisy.0);
    assert_eq!(step(0.3), noisy);
}

#[test]
fn a_recomputing_run_resumes_exactly_and_stays_near_one_that_does_not_recompute() {
    let model = json!({ "layers": 2, "heads": 2, "width": 16, "sequence": 12, "dropout": 0.2 });
    let steps = [("training.steps", json!(12)), ("training.gradient_checkpointing", json!(true))];
    let recompute = with(small(model), &steps);
    let (whole_dir, dir, kept_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(job(whole_dir.path(), recompute.clone()), &[]);
    let one = live(job(dir.path(), recompute.clone()), &[(5, Order::Stop { checkpoint: true })]);
    let two = live(job(dir.path(), recompute.clone()), &[]);
    let joined: Vec<_> = one.curve().into_iter().chain(two.curve()).collect();
    assert_eq!(joined, whole.curve());
    assert!(tensors(dir.path(), 12) == tensors(whole_dir.path(), 12), "weights and moments, byte by byte");
    let kept = live(job(kept_dir.path(), with(recompute, &[("training.gradient_checkpointing", json!(false))])), &[]);
    for (kept, recomputed) in kept.curve().iter().zip(whole.curve()) {
        assert!((kept.1 / recomputed.1 - 1.0).abs() < 1e-4, "{kept:?}, {recomputed:?}");
    }
}
