//! Samples and layers of evaluations: what they say, and that training does not notice them.

use super::harness::{Told, args, live, preset, tensors, with};
use downshift::protocol::samples::LayerStats;
use downshift::protocol::worker::{DoneReason, Event, Level, Order};
use downshift::store::samples::{StoredSet, WHOLE_TEXT, read, read_picture};
use downshift::train::job::WorkerArgs;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const STEPS: u64 = 24;

fn layers(told: &Told) -> Vec<LayerStats> {
    let stats = |event: &Event| if let Event::Layers(stats) = event { Some(stats.clone()) } else { None };
    told.events.iter().filter_map(stats).collect()
}

fn sampled(told: &Told) -> Vec<u64> {
    let step = |event: &Event| if let Event::Samples { step } = event { Some(*step) } else { None };
    told.events.iter().filter_map(step).collect()
}

fn norm(parts: impl Iterator<Item = f64>) -> f64 {
    parts.map(|part| part * part).sum::<f64>().sqrt()
}

#[test]
fn layers_are_measured_at_every_evaluation_and_training_does_not_notice() {
    let (plain_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = live(WorkerArgs { layers: false, ..args(plain_dir.path(), preset(0.3)) }, &[]);
    let told = live(args(dir.path(), preset(0.3)), &[]);
    assert_eq!((told.curve(), told.evals()), (plain.curve(), plain.evals()));
    assert_eq!(tensors(dir.path(), STEPS), tensors(plain_dir.path(), STEPS));
    assert!(layers(&plain).is_empty());
    let measured = layers(&told);
    let evaluated: Vec<u64> = told.evals().iter().map(|(step, _)| *step).collect();
    assert_eq!(measured.iter().map(|stats| stats.step).collect::<Vec<_>>(), evaluated);
    for stats in measured {
        let names: Vec<&str> = stats.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["blocks.0", "norm", "head"], "in the model's order");
        // Together they are the gradient of the step, before clipping.
        let whole = told.curve().iter().find(|(step, ..)| *step == stats.step).unwrap().2;
        let parts = norm(stats.layers.iter().map(|layer| layer.grad_norm.unwrap()));
        assert!((parts / whole - 1.0).abs() < 1e-3, "step {}: {parts} of {whole}", stats.step);
        for layer in &stats.layers {
            let ratio = layer.update_ratio.unwrap();
            assert!(layer.weight_norm > 0.1 && ratio > 0.0 && ratio < 0.2 && !layer.non_finite, "{layer:?}");
        }
        assert_eq!(stats.layers[2].dead, Some(0.0), "both answers are given");
    }
}

#[test]
fn a_resumed_run_measures_the_same_layers() {
    let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(args(whole_dir.path(), preset(0.3)), &[]);
    let one = live(args(dir.path(), preset(0.3)), &[(8, Order::Stop { checkpoint: true })]);
    let two = live(args(dir.path(), preset(0.3)), &[]);
    assert_eq!([layers(&one), layers(&two)].concat(), layers(&whole));
    assert_eq!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS));
}

fn digits() -> Value {
    let mut knobs = preset(0.0);
    knobs["data"] = json!({ "source": "embedded:digits" });
    knobs["model"] = json!({ "channels": 8, "layers": 2 });
    knobs["training"] = json!({ "steps": 30, "micro_batch": 32, "seed": 7 });
    knobs["evaluation"] = json!({ "every": "15 steps" });
    knobs
}

#[test]
fn a_classifier_shows_its_worst_answers_and_what_it_confuses() {
    let dir = TempDir::new().unwrap();
    let told = live(WorkerArgs { task: "vision".into(), ..args(dir.path(), digits()) }, &[]);
    assert_eq!((told.outcome.as_ref(), sampled(&told)), (Ok(&DoneReason::Finished), vec![15, 30]));
    let accuracies = told.events.iter().filter_map(|event| match event {
        Event::Eval(eval) => Some((eval.step, eval.metrics["accuracy"])),
        _ => None,
    });
    for (step, accuracy) in accuracies {
        let set = read(dir.path(), step, WHOLE_TEXT).unwrap();
        let confusion = set.confusion.as_ref().unwrap();
        let total: u64 = confusion.counts.iter().flatten().sum();
        let right: u64 = (0..10).map(|class| confusion.counts[class][class]).sum();
        assert_eq!((confusion.classes[3].as_str(), total), ("3", 359));
        assert!((right as f64 / total as f64 - accuracy).abs() < 1e-9, "step {step}: {right} of {total}");
        assert_eq!(set.samples.len(), 16);
        let losses: Vec<f32> = set.samples.iter().map(|sample| sample.sample.loss.unwrap()).collect();
        assert!(losses.is_sorted_by(|a, b| a >= b), "{losses:?}");
        for sample in &set.samples {
            let picture = image::load_from_memory(&read_picture(sample.picture.as_ref().unwrap()).unwrap()).unwrap();
            assert_eq!((picture.width(), picture.height()), (8, 8));
            assert!(picture.into_luma8().iter().any(|pixel| *pixel > 200), "stretched to white");
            let shown = &sample.sample;
            assert!(shown.label.is_some() && shown.answer.is_some() && shown.confidence.unwrap() >= 0.1, "{shown:?}");
        }
        assert!(set.samples[0].sample.label != set.samples[0].sample.answer, "the worst answer is wrong");
    }
}

fn text(every: &str) -> Value {
    let mut knobs = with(preset(0.3), &[("evaluation.every", json!(every))]);
    knobs["data"] = json!({ "source": "embedded:text", "tokenizer": "bytes", "validation": 0.001 });
    knobs["model"] = json!({ "layers": 1, "heads": 2, "width": 16, "sequence": 40, "dropout": 0.3 });
    knobs["training"] = json!({ "steps": 8, "micro_batch": 4, "seed": 7 });
    knobs
}

fn lm(run_dir: &Path, preset: Value) -> WorkerArgs {
    WorkerArgs { task: "lm".into(), ..args(run_dir, preset) }
}

fn written(set: &StoredSet) -> (&str, &str) {
    let sample = &set.samples[0].sample;
    (sample.prompt.as_deref().unwrap(), sample.text.as_deref().unwrap())
}

#[test]
fn a_language_model_continues_the_same_prompt_and_training_does_not_notice() {
    let [plain_dir, dir, cut_dir] = std::array::from_fn(|_| TempDir::new().unwrap());
    let plain = live(lm(plain_dir.path(), text("never")), &[]);
    let told = live(lm(dir.path(), text("2 steps")), &[]);
    assert_eq!((plain.outcome.as_ref(), told.outcome.as_ref()), (Ok(&DoneReason::Finished), Ok(&DoneReason::Finished)));
    assert_eq!(told.curve(), plain.curve());
    assert_eq!(tensors(dir.path(), 8), tensors(plain_dir.path(), 8));
    assert_eq!((sampled(&plain), sampled(&told)), (vec![8], vec![2, 4, 6, 8]));
    let sets: Vec<StoredSet> =
        sampled(&told).into_iter().map(|step| read(dir.path(), step, WHOLE_TEXT).unwrap()).collect();
    let (prompt, first) = written(&sets[0]);
    assert_eq!(prompt.len(), 10, "a quarter of the context: {prompt:?}");
    assert!(sets.iter().all(|set| written(set).0 == prompt && !written(set).1.is_empty()));
    assert_ne!(written(&sets[3]).1, first, "the model has changed");
    // Stopped and resumed in between.
    live(lm(cut_dir.path(), text("2 steps")), &[(3, Order::Stop { checkpoint: true })]);
    live(lm(cut_dir.path(), text("2 steps")), &[]);
    assert_eq!(tensors(cut_dir.path(), 8), tensors(dir.path(), 8));
    for set in &sets {
        assert_eq!(written(&read(cut_dir.path(), set.step.unwrap(), WHOLE_TEXT).unwrap()), written(set));
    }
}

#[test]
fn a_prompt_of_the_run_file_is_continued() {
    let dir = TempDir::new().unwrap();
    let mut knobs = text("never");
    knobs["data"]["prompt"] = json!("Sir Walter Elliot");
    live(lm(dir.path(), knobs), &[]);
    let set = read(dir.path(), 8, WHOLE_TEXT).unwrap();
    assert_eq!(written(&set).0, "Sir Walter Elliot");
}

#[test]
fn samples_that_cannot_be_written_end_nothing() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("samples"), "in the way").unwrap();
    let told = live(WorkerArgs { task: "vision".into(), ..args(dir.path(), digits()) }, &[]);
    assert_eq!((told.outcome.as_ref(), sampled(&told)), (Ok(&DoneReason::Finished), vec![]));
    assert_eq!(told.curve().len(), 30);
    assert!(told.has(|event| matches!(event, Event::Note { level: Level::Warn, text }
        if text.contains("samples of an evaluation cannot be written"))));
}
