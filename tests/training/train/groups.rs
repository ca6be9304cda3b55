//! Parameter groups: frozen parameters do not change, trained ones follow their own rules.

use super::harness::{args, live, preset, tensors, with};
use downshift::protocol::worker::Order;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tempfile::TempDir;

/// Returns weights and moments after `step` steps.
fn after(step: u64, knobs: &[(&str, Value)]) -> (BTreeMap<String, Vec<f32>>, BTreeMap<String, Vec<f32>>) {
    let dir = TempDir::new().unwrap();
    let told = live(args(dir.path(), with(preset(0.0), knobs)), &[(step, Order::Stop { checkpoint: true })]);
    assert!(told.outcome.is_ok(), "{:?}", told.outcome);
    let read = |bytes: Vec<u8>| {
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values =
            |data: &[u8]| data.as_chunks().0.iter().map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes)).collect();
        file.iter().map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
    };
    let (weights, moments) = tensors(dir.path(), step);
    (read(weights), read(moments))
}

fn moved(knobs: &[(&str, Value)]) -> Vec<String> {
    let (first, _) = after(1, &[("optimizer.lr", json!(1e-12)), ("optimizer.weight_decay", json!(0.0))]);
    let (then, moments) = after(9, knobs);
    let differ = |name: &&String| first[*name].iter().zip(&then[*name]).any(|(a, b)| (a - b).abs() > 1e-6);
    let moved: Vec<String> = then.keys().filter(differ).cloned().collect();
    let kept: Vec<String> = moments.keys().filter_map(|name| name.strip_suffix(".exp_avg")).map(String::from).collect();
    assert_eq!(moved, kept, "moments for what moves, and for nothing else");
    moved
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>().sqrt()
}

#[test]
fn only_trained_parameters_change() {
    let head = ["head.bias", "head.weight", "norm.beta", "norm.gamma"];
    assert_eq!(moved(&[("training.trained", json!("head"))]), head);
    let all = moved(&[("training.trained", json!("last 1 block + head"))]);
    assert_eq!(all, [&["blocks.0.bias", "blocks.0.weight"][..], &head].concat());
    let groups = json!({ "cold": { "match": "*.bias", "frozen": true }, "rest": { "match": "head" } });
    let all = moved(&[("optimizer.groups", groups)]);
    assert_eq!(all, ["blocks.0.weight", "head.weight", "norm.beta", "norm.gamma"]);
    let thawed = json!({ "thawed": { "match": "blocks.0.bias", "frozen": false } });
    let all = moved(&[("training.trained", json!("head")), ("optimizer.groups", thawed)]);
    assert_eq!(all, [&["blocks.0.bias"][..], &head].concat());
}

#[test]
fn groups_have_their_own_rate_decay_and_norm() {
    let rate = |factor: f64| json!({ "head": { "match": "head", "lr_factor": factor, "weight_decay": 0.0 } });
    let still = [("optimizer.schedule", json!({ "kind": "constant" })), ("optimizer.max_norm", json!(null))];
    let step = |groups: Value| {
        let knobs: Vec<(&str, Value)> = still.iter().cloned().chain([("optimizer.groups", groups)]).collect();
        after(1, &knobs).0
    };
    let (start, _) = after(1, &[("optimizer.lr", json!(1e-12)), ("optimizer.weight_decay", json!(0.0))]);
    let way = |then: &BTreeMap<String, Vec<f32>>, name: &str| {
        let way: Vec<f32> = start[name].iter().zip(&then[name]).map(|(a, b)| a - b).collect();
        norm(&way)
    };
    let (slow, fast) = (step(rate(1.0)), step(rate(3.0)));
    let ratio = way(&fast, "head.weight") / way(&slow, "head.weight");
    assert!((ratio - 3.0).abs() < 0.01, "{ratio}");
    assert!((way(&fast, "blocks.0.weight") / way(&slow, "blocks.0.weight") - 1.0).abs() < 1e-4);

    // The first moment is a tenth of the clipped gradient.
    let clipped = json!({ "head": { "match": "head", "max_norm": 0.01 } });
    let (_, free) = after(1, &[("optimizer.max_norm", json!(null))]);
    let (_, tight) = after(1, &[("optimizer.max_norm", json!(null)), ("optimizer.groups", clipped)]);
    let head = |moments: &BTreeMap<String, Vec<f32>>| {
        norm(&[&moments["head.weight.exp_avg"][..], &moments["head.bias.exp_avg"]].concat())
    };
    assert!(head(&free) > 0.002 && (head(&tight) - 0.001).abs() < 1e-6, "{} {}", head(&free), head(&tight));
    assert_eq!(free["blocks.0.weight.exp_avg"], tight["blocks.0.weight.exp_avg"]);
}

#[test]
fn invalid_trained_parameters_are_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    for (knob, value, part) in [
        (
            "optimizer.groups",
            json!({ "a": { "match": "hed" } }),
            "`hed` matches no parameter; the first ones are blocks.0.bias",
        ),
        ("optimizer.groups", json!({ "a": { "match": "*", "frozen": true } }), "nothing to train"),
        ("training.trained", json!("adapters"), "no adapters"),
        ("training.trained", json!("last 3 blocks"), "has 1 blocks"),
    ] {
        let failed = live(args(dir.path(), with(preset(0.0), &[(knob, value)])), &[]).outcome.unwrap_err();
        assert_eq!(failed.class.exit_code(), 13);
        assert!(failed.message.contains(part), "{}", failed.message);
    }
}
