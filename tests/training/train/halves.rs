//! `task: lm` in 16 bits compared with f32, from the same checkpoint: shifts of precision and of rank.
//!
//! The number format is global to the process, so the test binary starts itself again for attempts in f32:
//! `an_attempt_in_f32` is such an attempt if the environment says so, and an empty test otherwise.

use super::harness::{Told, args, exclusive, live, preset, registry, tensors, with};
use downshift::protocol::worker::{DoneReason, Event};
use downshift::store::checkpoint;
use downshift::train::job::WorkerArgs;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path, process::Command};
use tempfile::TempDir;

const RUN_DIR: &str = "DOWNSHIFT_TEST_RUN_DIR";
const PRESET: &str = "DOWNSHIFT_TEST_PRESET";

#[test]
fn an_attempt_in_f32() {
    let Ok(run_dir) = std::env::var(RUN_DIR) else { return };
    let preset = serde_json::from_str(&std::env::var(PRESET).unwrap()).unwrap();
    assert_eq!(live(lm(Path::new(&run_dir), preset), &[]).outcome, Ok(DoneReason::Finished));
}

fn in_f32(run_dir: &Path, preset: &Value) {
    let life = Command::new(std::env::current_exe().unwrap())
        .args(["halves::an_attempt_in_f32", "--exact"])
        .env(RUN_DIR, run_dir)
        .env(PRESET, preset.to_string())
        .output()
        .unwrap();
    assert!(life.status.success(), "{}", String::from_utf8_lossy(&life.stdout));
}

fn lm(run_dir: &Path, preset: Value) -> WorkerArgs {
    WorkerArgs { task: "lm".into(), ..args(run_dir, preset) }
}

fn text(model: Value, steps: u64) -> Value {
    let mut base = with(preset(0.0), &[("optimizer.max_norm", json!(1e6)), ("optimizer.weight_decay", json!(0.0))]);
    base["data"] = json!({ "source": "embedded:text", "tokenizer": "bytes", "validation": 0.01 });
    base["model"] = model;
    base["training"] = json!({ "steps": steps, "micro_batch": 4, "accumulation": 2, "seed": 7 });
    base["optimizer"]["schedule"] = json!({ "kind": "constant" });
    base["evaluation"] = json!({ "every": "never" });
    base
}

/// Returns the shipped Llama with adapters whose scale, 4/3, is not exact in binary.
fn llama(rank: usize) -> Value {
    let lora = json!({ "rank": rank, "alpha": rank as f64 * 4.0 / 3.0, "targets": ["all"] });
    json!({ "init_from": "embedded:tiny-llama", "sequence": 24, "lora": lora })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn numbers(file: &[u8], suffix: &str) -> BTreeMap<String, Vec<f64>> {
    let file = SafeTensors::deserialize(file).unwrap();
    let values = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    let wanted = file.iter().filter(|(name, _)| name.ends_with(suffix));
    wanted.map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
}

/// Returns the gradient of step 11: m ← 0.9 m + 0.1 g.
fn gradient(run_dir: &Path) -> BTreeMap<String, Vec<f64>> {
    let [before, after] = [10, 11].map(|step| numbers(&tensors(run_dir, step).1, ".exp_avg"));
    assert!(before.keys().eq(after.keys()) && before.len() > 20);
    let pairs = before.into_values().zip(after);
    let slope = |before: &[f64], after: &[f64]| before.iter().zip(after).map(|(m, n)| (n - 0.9 * m) / 0.1).collect();
    pairs.map(|(before, (name, after))| (name, slope(&before, &after))).collect()
}

fn size(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn notes(told: &Told) -> Vec<&str> {
    let notes = told.events.iter().filter_map(|event| match event {
        Event::Note { text, .. } => Some(text.as_str()),
        _ => None,
    });
    notes.collect()
}

#[test]
fn a_step_of_text_has_the_gradient_of_f32_up_to_rounding() {
    super::prepare();
    let gpt2 = json!({ "layers": 2, "heads": 2, "width": 16, "sequence": 24, "lora": { "rank": 2 } });
    for (what, model, trained) in [("llama", llama(4), "adapters"), ("llama", llama(4), "all"), ("gpt2", gpt2, "all")] {
        let to = |steps: u64| with(text(model.clone(), steps), &[("training.trained", json!(trained))]);
        let [whole, kept, recomputed] = [(); 3].map(|()| TempDir::new().unwrap());
        in_f32(whole.path(), &to(10));
        for dir in [&kept, &recomputed] {
            copy(whole.path(), dir.path());
        }
        in_f32(whole.path(), &to(11));
        let wanted = gradient(whole.path());
        let all = size(wanted.values().flatten().copied());
        for (dir, recompute) in [(kept, false), (recomputed, true)] {
            let recomputing = with(to(11), &[("training.gradient_checkpointing", json!(recompute))]);
            let told = live(lm(dir.path(), recomputing), &[]);
            assert_eq!((&told.outcome, told.curve().len()), (&Ok(DoneReason::Finished), 1), "{:?}", told.events);
            assert!(notes(&told).iter().all(|note| !note.contains("start at zero")), "{:?}", notes(&told));
            let found = gradient(dir.path());
            assert!(wanted.keys().eq(found.keys()));
            for ((name, wanted), found) in wanted.iter().zip(found.values()) {
                let apart = size(wanted.iter().zip(found).map(|(wanted, found)| wanted - found));
                // A gradient that is tiny compared with the others drowns in their rounding error.
                let apart = apart / (size(wanted.iter().copied()) + 0.02 * all);
                assert!(apart < super::APART, "{what}, {trained}, {recompute}: {name} is {apart} apart");
            }
        }
    }
}

#[test]
fn the_loss_before_a_lower_rank_is_that_of_the_original_adapters() {
    super::prepare();
    let dir = TempDir::new().unwrap();
    let wide = text(llama(8), 30);
    in_f32(dir.path(), &wide);
    let learnt = {
        let _exclusive = exclusive();
        let path = dir.path().join(checkpoint::relative_path(30));
        let preset = serde_json::from_value(wide).unwrap();
        registry().get("lm").unwrap().evaluate_checkpoints(&preset, &[path]).unwrap().remove(0).unwrap().loss.unwrap()
    };
    let told = live(lm(dir.path(), text(llama(1), 31)), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    let note = notes(&told).into_iter().find(|note| note.contains("rank 8 → 1")).unwrap().to_owned();
    assert!(note.contains(&format!("validation loss {learnt:.4} before")), "{learnt}: {note}");
    assert!(!note.contains(&format!("{learnt:.4} after")), "what is cut cannot be seen: {note}");
}
