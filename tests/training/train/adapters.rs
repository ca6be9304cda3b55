//! Adapters on a pretrained model: which weights are trained, and how much a rank change preserves.

use super::harness::{Told, args, exclusive, live, preset, registry, tensors, with};
use downshift::protocol::worker::{DoneReason, Event, Order, Phase};
use downshift::store::checkpoint;
use downshift::train::job::WorkerArgs;
use downshift::train::task::Format;
use downshift::train::tasks::lm::hf::{self, ModelSource};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

const SHIPPED: &str = "embedded:tiny-llama";

fn lora(rank: usize) -> Value {
    let mut base = with(preset(0.0), &[("optimizer.lr", json!(5e-3)), ("optimizer.max_norm", json!(1.0))]);
    base["data"] = json!({ "source": "embedded:text", "tokenizer": "bytes", "validation": 0.01 });
    base["model"] = json!({ "init_from": SHIPPED, "sequence": 24, "lora": { "rank": rank, "targets": ["all"] } });
    base["training"] = json!({ "steps": 60, "micro_batch": 8, "seed": 7 });
    base["optimizer"]["schedule"] = json!({ "kind": "constant" });
    base["optimizer"]["weight_decay"] = json!(0.0);
    base["evaluation"] = json!({ "every": "never" });
    base
}

fn lm(run_dir: &Path, preset: Value) -> WorkerArgs {
    WorkerArgs { task: "lm".into(), ..args(run_dir, preset) }
}

fn measured(run_dir: &Path, step: u64, preset: Value) -> f64 {
    let preset = serde_json::from_value(preset).unwrap();
    let path = run_dir.join(checkpoint::relative_path(step));
    let _exclusive = exclusive();
    let registry = registry();
    registry.get("lm").unwrap().evaluate_checkpoints(&preset, &[path]).unwrap().remove(0).unwrap().loss.unwrap()
}

fn note<'a>(told: &'a Told, part: &str) -> &'a str {
    let found = told.events.iter().find_map(|event| match event {
        Event::Note { text, .. } if text.contains(part) => Some(text.as_str()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no note about {part} in {:?}", told.events))
}

/// Returns the number before a word.
fn number_before(text: &str, word: &str) -> f64 {
    let before = text.split(word).next().unwrap().trim_end();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn only_adapters_are_trained_and_pretrained_weights_stay_bit_identical() {
    let dir = TempDir::new().unwrap();
    let told = live(lm(dir.path(), lora(4)), &[(40, Order::Stop { checkpoint: true })]);
    assert_eq!(told.outcome, Ok(DoneReason::Stopped));
    let place = ModelSource::parse(SHIPPED);
    let shape = hf::config::read_config(&place, SHIPPED).unwrap();
    let base = hf::load_weights(&place, &shape).unwrap();
    let (weights, moments) = tensors(dir.path(), 40);
    let weights = SafeTensors::deserialize(&weights).unwrap();
    for (path, data) in &base {
        assert!(weights.tensor(path).unwrap().data() == data.as_bytes(), "{path} has moved");
    }
    let adapters: Vec<String> =
        weights.names().into_iter().filter(|name| name.contains("lora_")).map(String::from).collect();
    assert_eq!((adapters.len(), weights.len()), (3 * 7 * 3, base.len() + 3 * 7 * 3));
    let zero = |name: &str| weights.tensor(name).unwrap().data().iter().all(|byte| *byte == 0);
    assert!(adapters.iter().all(|name| !zero(name)), "every B has left zero");
    let moments = SafeTensors::deserialize(&moments).unwrap();
    assert_eq!(moments.len(), 3 * 7 * 2 * 2, "two moments for A and B of each layer, none for what is frozen");
    let curve = told.curve();
    assert!(curve[39].1 < curve[0].1 - 0.3, "from {} to {}", curve[0].1, curve[39].1);
}

#[test]
fn a_lower_rank_keeps_the_learned_update_and_reports_the_loss() {
    let dir = TempDir::new().unwrap();
    live(lm(dir.path(), lora(16)), &[(60, Order::Stop { checkpoint: true })]);
    let learnt = measured(dir.path(), 60, lora(16));

    let narrow = with(lora(8), &[("training.steps", json!(70))]);
    let told = live(lm(dir.path(), narrow.clone()), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    let text = note(&told, "rank 16 → 8");
    let (before, after) = (number_before(text, "before"), number_before(text, "after"));
    assert!((before - learnt).abs() < 6e-5, "{before} is not {learnt}, which the old shape computes");
    assert!((after / before - 1.0).abs() < 0.02, "{text}");
    assert!(text.contains("start at zero"), "{text}");
    println!("{text}");
    // Each pass over the validation set is an evaluation, with its own deadline.
    let told_before =
        told.events.iter().take_while(|event| !matches!(event, Event::Note { text: note, .. } if note == text));
    let phases: Vec<&Event> =
        told_before.filter(|event| matches!(event, Event::Hello(_) | Event::Phase { .. })).collect();
    let evaluating = Event::Phase { phase: Phase::Evaluating };
    assert!(matches!(phases[0], Event::Hello(_)) && phases[1..] == [&evaluating, &evaluating], "{phases:?}");
    // The update is worth more than the 2 % tolerance, so dropping it would be noticed.
    let fresh = TempDir::new().unwrap();
    let other = with(lora(8), &[("optimizer.lr", json!(1e-12)), ("training.steps", json!(1))]);
    live(lm(fresh.path(), other.clone()), &[]);
    assert!(measured(fresh.path(), 1, other) > 1.05 * before);
    // Training continues from there: fresh moments cause no jump.
    assert!(measured(dir.path(), 70, narrow.clone()) < 1.03 * after);
    let (_, moments) = tensors(dir.path(), 70);
    let moments = SafeTensors::deserialize(&moments).unwrap();
    let since = moments.tensor("blocks.0.attention.query.lora_a.since").unwrap();
    assert_eq!(since.data(), 60f32.to_le_bytes());

    // Back to the larger rank: nothing is lost, so nothing is measured.
    let wide = with(lora(16), &[("training.steps", json!(71))]);
    let told = live(lm(dir.path(), wide), &[]);
    let text = note(&told, "rank 8 → 16");
    assert!(text.contains("100.00 %") && !text.contains("before"), "{text}");
    // Without adapters: merged, and the learnt update is preserved.
    let learnt = measured(dir.path(), 71, lora(16));
    let mut merged = with(lora(16), &[("training.steps", json!(72)), ("optimizer.lr", json!(1e-12))]);
    merged["model"].as_object_mut().unwrap().remove("lora");
    let told = live(lm(dir.path(), merged.clone()), &[]);
    assert!(note(&told, "merged").contains("21 adapters"));
    assert!((measured(dir.path(), 72, merged) - learnt).abs() < 1e-4);
}

/// Returns loss, gradient norm and gradient (ten times the first moment) of one step.
fn first_step(knobs: &[(&str, Value)]) -> (f64, f64, Vec<(String, Vec<f32>)>) {
    let dir = TempDir::new().unwrap();
    let mut one = with(lora(4), &[("training.steps", json!(1)), ("optimizer.max_norm", json!(1e6))]);
    // A later B is not zero, so A has a gradient too.
    one["training"]["trained"] = json!("all");
    let told = live(lm(dir.path(), with(one, knobs)), &[]);
    let (_, loss, norm) = told.curve()[0];
    let (_, moments) = tensors(dir.path(), 1);
    let moments = SafeTensors::deserialize(&moments).unwrap();
    let values = |name: &str| {
        let (chunks, _) = moments.tensor(name).unwrap().data().as_chunks().to_owned();
        chunks.iter().map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
    };
    let mut names: Vec<&str> = moments.names().into_iter().filter(|name| name.ends_with(".exp_avg")).collect();
    names.sort_unstable();
    (loss, norm, names.into_iter().map(|name| (name.to_owned(), values(name))).collect())
}

#[test]
fn rungs_of_class_a_have_the_same_gradient_up_to_rounding() {
    let (loss, norm, gradient) = first_step(&[]);
    assert!(gradient.len() > 60);
    for knobs in [
        vec![("training.micro_batch", json!(4)), ("training.accumulation", json!(2))],
        vec![("training.micro_batch", json!(1)), ("training.accumulation", json!(8))],
        vec![("training.gradient_checkpointing", json!(true))],
    ] {
        let (other_loss, other_norm, other) = first_step(&knobs);
        let apart = [(other_loss / loss - 1.0).abs(), (other_norm / norm - 1.0).abs()];
        assert!(apart[0] < 1e-5 && apart[1] < 1e-4, "{apart:?} with {knobs:?}");
        for ((name, mine), (also, theirs)) in gradient.iter().zip(&other) {
            assert_eq!(name, also);
            let size = mine.iter().map(|value| value.abs()).fold(1e-7, f32::max);
            let apart = mine.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart <= 1e-3 * size, "{name}: {apart} of {size} with {knobs:?}");
        }
    }
    // Class B changes the gradient, so the comparison can fail.
    let (_, smaller, _) = first_step(&[("training.micro_batch", json!(4))]);
    assert!((smaller / norm - 1.0).abs() > 1e-3);
}

#[test]
fn training_continues_from_a_peft_adapter_and_exports_it_again() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf");
    let path = |name: &str| fixtures.join(name).display().to_string();
    let mut one = with(lora(4), &[("optimizer.lr", json!(1e-12)), ("training.steps", json!(1))]);
    one["data"] = json!({ "source": "embedded:text", "validation": 0.01 });
    one["model"] = json!({ "init_from": path("llama"), "sequence": 12, "lora": { "rank": 4, "alpha": 12.0,
        "targets": ["q_proj", "v_proj", "down_proj"], "init_from": path("llama-lora") } });
    let dir = TempDir::new().unwrap();
    let told = live(lm(dir.path(), one.clone()), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished), "the tokenizer beside the model has its 96 tokens");
    assert!(note(&told, "are frozen").starts_with("trains "));
    let (weights, _) = tensors(dir.path(), 1);
    let preset = serde_json::from_value(one).unwrap();
    let files = registry().get("lm").unwrap().export(&preset, &weights, Format::Peft).unwrap();
    let written = files.iter().find(|(name, _)| name == "adapter_model.safetensors").unwrap();
    let written = SafeTensors::deserialize(&written.1).unwrap();
    let given = std::fs::read(fixtures.join("llama-lora/adapter_model.safetensors")).unwrap();
    let given = SafeTensors::deserialize(&given).unwrap();
    assert_eq!(written.len(), given.len());
    for (name, view) in given.iter() {
        let numbers = |bytes: &[u8]| {
            let chunks = bytes.as_chunks().0.iter();
            chunks.map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
        };
        let other = written.tensor(name).unwrap();
        assert_eq!(other.shape(), view.shape());
        let pairs = numbers(view.data()).into_iter().zip(numbers(other.data()));
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6), "{name}");
    }
}
