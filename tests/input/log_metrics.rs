//! Steps and metrics of real trainings: recordings of the scripts in `log_metrics/scripts`, against the truth that
//! each script wrote.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use downshift::log_metrics::{FileReader, OutputReader, Reading, Skip};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Values of a step by name, as text: NaN equals itself.
type Steps = BTreeMap<u64, BTreeMap<String, String>>;

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/log_metrics/recorded").join(name)
}

/// Reads what a script knew about its steps; `shown` rounds as the reader's source does.
fn truth(name: &str, shown: fn(f64) -> f64) -> Steps {
    let mut steps = Steps::new();
    for line in fs::read_to_string(recorded(name).join("truth.jsonl")).unwrap().lines() {
        let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        // Where no step is known, the epoch is all that places the values.
        let place = row.get("step").unwrap_or_else(|| &row["epoch"]);
        let step = steps.entry(place.as_u64().unwrap()).or_default();
        let is_value = |name: &str| name != "step" && (name != "epoch" || row.contains_key("step"));
        for (name, value) in row.iter().filter(|(name, _)| is_value(name)) {
            let value = value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap());
            step.insert(name.clone(), shown(value).to_string());
        }
    }
    steps
}

/// Collects the readings that have a step, and keeps the names that the truth knows.
fn by_step(readings: &[Reading], truth: &Steps) -> Steps {
    by_place(readings, truth, |reading| reading.step)
}

fn by_place(readings: &[Reading], truth: &Steps, place: fn(&Reading) -> Option<u64>) -> Steps {
    let names: BTreeSet<&String> = truth.values().flat_map(BTreeMap::keys).collect();
    let mut steps = Steps::new();
    for reading in readings {
        let is_evaluation = reading.values.iter().all(|(name, _)| name.starts_with("eval_"));
        let epoch = reading.epoch.filter(|_| !is_evaluation).map(|epoch| ("epoch".to_owned(), epoch));
        let total = reading.total_steps.map(|total| ("total_steps".to_owned(), total as f64));
        let values = reading.values.iter().cloned().chain(epoch).chain(total.filter(|_| !is_evaluation));
        for (name, value) in values.filter(|(name, _)| names.contains(name)) {
            if let Some(step) = place(reading) {
                steps.entry(step).or_default().insert(name, value.to_string());
            }
        }
    }
    steps
}

fn read_output(name: &str, stream: &str) -> Vec<Reading> {
    let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
    reader.push(&fs::read(recorded(name).join(stream)).unwrap(), &mut readings);
    reader.finish(&mut readings);
    readings
}

/// Follows a copy of a file that grows by `chunk` bytes between polls.
fn follow_file(name: &str, file: &str, chunk: usize) -> Vec<Reading> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    let bytes = fs::read(recorded(name).join(file)).unwrap();
    let mut copy = fs::File::create(&path).unwrap();
    let mut reader: Option<FileReader> = None;
    let mut readings = Vec::new();
    for part in bytes.chunks(chunk) {
        copy.write_all(part).unwrap();
        let reader = reader.get_or_insert_with(|| FileReader::open(&path).unwrap());
        reader.poll(&mut readings).unwrap();
    }
    let mut reader = reader.unwrap();
    reader.poll(&mut readings).unwrap();
    reader.poll(&mut readings).unwrap();
    readings
}

/// Checks that every value that was read is the one of its step; returns how many steps have values.
fn assert_no_value_is_wrong(name: &str, found: &Steps, truth: &Steps) -> usize {
    for (step, values) in found {
        for (metric, value) in values {
            let known = truth.get(step).and_then(|known| known.get(metric));
            assert_eq!(known, Some(value), "{name}: {metric} of step {step}");
        }
    }
    found.len()
}

#[test]
fn hugging_face_output_is_read_exactly() {
    for name in ["hf", "hf-nan", "hf-4.57", "hf-nan-4.57"] {
        let readings = read_output(name, "output");
        let truth = truth(name, |value| value);
        assert_eq!(by_step(&readings, &truth), truth, "{name}");
        assert!(truth.contains_key(&48), "{name}");
        let totals: BTreeSet<Option<u64>> =
            readings.iter().filter(|reading| reading.step.is_some()).map(|reading| reading.total_steps).collect();
        assert_eq!(totals, BTreeSet::from([Some(48)]), "{name}");
        assert_eq!(name.contains("nan"), truth[&15]["loss"] == "NaN", "{name}");
    }
}

#[test]
fn output_without_a_terminal_keeps_its_losses_and_declares_no_step() {
    let truth = truth("hf-pipes", |value| value);
    let readings = read_output("hf-pipes", "stdout");
    assert!(readings.iter().all(|reading| reading.step.is_none()));
    let losses = |name: &str| -> Vec<String> {
        readings.iter().filter_map(|reading| reading.value(name)).map(|value| value.to_string()).collect()
    };
    for name in ["loss", "eval_loss", "lr", "grad_norm"] {
        let wanted: Vec<String> = truth.values().filter_map(|values| values.get(name).cloned()).collect();
        assert_eq!(losses(name), wanted, "{name}");
    }
    assert_eq!(read_output("hf-pipes", "stderr"), []);
}

#[test]
fn bars_give_the_values_of_the_steps_that_they_drew() {
    // A bar is drawn at most ten times a second: the recordings show so many of the steps.
    for (name, stream, steps, of) in [
        ("tqdm-iterated", "output", 12, 48),
        ("tqdm-updated", "output", 32, 32),
        ("tqdm-described", "output", 8, 32),
        ("tqdm-nested", "output", 6, 32),
        ("tqdm-nested-steps", "output", 18, 18),
        ("tqdm-job", "output", 12, 12),
        ("lightning-tqdm", "output", 48, 48),
        ("lightning-rich", "output", 3, 48),
        ("ultralytics", "output", 6, 6),
        ("ultralytics-tqdm", "output", 12, 12),
        ("keras", "output", 9, 36),
        ("keras-pipes", "stdout", 11, 36),
    ] {
        let truth = truth(name, |value| value);
        let readings = read_output(name, stream);
        let found = by_step(&readings, &truth);
        assert_eq!(truth.len(), of, "{name}");
        assert_eq!(assert_no_value_is_wrong(name, &found, &truth), steps, "{name}");
    }
}

#[test]
fn lines_that_start_over_with_each_epoch_give_true_steps_or_none() {
    for (name, steps, of) in [
        ("lines-sized", 15, 15),
        ("lines-every", 150, 150),
        ("lines-headed", 15, 15),
        // An epoch of which steps 20 and 40 were printed has 40 to 59.
        ("lines-pairs", 2, 6),
        // The second pass shows that the first one was an epoch.
        ("lines-unnamed", 150, 200),
    ] {
        let truth = truth(name, |value| value);
        let readings = read_output(name, "output");
        let found = by_step(&readings, &truth);
        assert_eq!(truth.len(), of, "{name}");
        assert_eq!(assert_no_value_is_wrong(name, &found, &truth), steps, "{name}");
        assert_eq!(readings.iter().any(|reading| reading.count_started_over.is_some()), steps < of, "{name}");
    }
    // The evaluation belongs to the last step of its epoch.
    let readings = read_output("lines-sized", "output");
    let evaluated: BTreeSet<_> =
        readings.iter().filter(|reading| reading.value("eval_loss").is_some()).map(|reading| reading.step).collect();
    assert_eq!(evaluated, BTreeSet::from([Some(50), Some(100), Some(150)]));
}

fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

#[test]
fn files_are_read_exactly_however_they_grow() {
    for (name, file, shown) in [
        ("hf-tensorboard", "events.out.tfevents.hf", single as fn(f64) -> f64),
        ("hf-tensorboard-4.57", "events.out.tfevents.hf", single),
        ("lightning-files", "events.out.tfevents.lightning", single),
        ("lightning-files", "metrics.csv", |value| value),
        ("tensorboard", "events.out.tfevents.torch", single),
        ("wandb", "run.wandb", |value| value),
    ] {
        let truth = truth(name, shown);
        for chunk in [1 << 20, 4099, 97] {
            let found = by_step(&follow_file(name, file, chunk), &truth);
            assert_eq!(found, truth, "{name}/{file} in parts of {chunk}");
        }
    }
}

#[test]
fn trackio_gives_the_newest_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.db");
    fs::copy(recorded("trackio").join("tiny.db"), &path).unwrap();
    let (mut reader, mut readings) = (FileReader::open(&path).unwrap(), Vec::new());
    reader.poll(&mut readings).unwrap();
    reader.poll(&mut readings).unwrap();
    let truth = truth("trackio", |value| value);
    assert_eq!(by_step(&readings, &truth), truth);
    let count = readings.len();
    reader.poll(&mut readings).unwrap();
    assert_eq!(readings.len(), count);
}

#[test]
fn keras_csv_names_epochs_and_no_steps() {
    let readings = follow_file("keras", "log.csv", 7);
    // Each row is the end of an epoch: a reading of training and one of the evaluation.
    for (index, pair) in readings.chunks(2).enumerate() {
        let epoch = Some(index as f64);
        assert!(pair.iter().all(|reading| reading.step.is_none() && reading.epoch == epoch), "{pair:?}");
        assert!(["loss", "accuracy"].iter().all(|name| pair[0].value(name).is_some()), "{pair:?}");
        assert!(["eval_loss", "eval_accuracy"].iter().all(|name| pair[1].value(name).is_some()), "{pair:?}");
    }
    assert_eq!(readings.len(), 6);
}

#[test]
fn the_row_of_all_classes_is_an_evaluation() {
    let readings = read_output("ultralytics", "output");
    let evaluations: Vec<&Reading> = readings.iter().filter(|reading| reading.value("eval_map50").is_some()).collect();
    // The last pass measures the best weights once more.
    assert_eq!(evaluations.len(), 7, "{evaluations:?}");
    assert!(readings.iter().all(|reading| reading.value("eval_images").is_none()));
}

#[test]
fn forms_without_a_word_for_the_step_are_read_exactly() {
    for name in [
        "pytorch-tutorial",
        "pytorch-imagenet",
        "pytorch-dcgan",
        "pytorch-cifar",
        "pytorch-quickstart",
        "modded-nanogpt",
        "maxtext",
        "notebook-table",
        "pytorch-mnist",
        "open-clip",
        "torchvision",
        "timm",
        "epoch-batch",
        "mmengine",
        "mmengine-iterations",
        "detectron2",
        "stable-baselines3",
        "cleanrl",
        "keras-lines",
        "xgboost",
        "lightgbm",
        "catboost",
        "espnet",
        "marian",
        "opennmt",
        "darknet",
        "monai",
        "gluon",
        "spacy",
        "yolox",
    ] {
        let truth = truth(name, |value| value);
        assert_eq!(by_step(&read_output(name, "output"), &truth), truth, "{name}");
    }
}

#[test]
fn micro_batches_are_no_steps() {
    let truth = truth("litgpt", |value| value);
    let mut found = by_step(&read_output("litgpt", "output"), &truth);
    // The first micro-batch comes before any step.
    found.remove(&0);
    assert_eq!(found, truth);
}

#[test]
fn where_no_step_is_known_the_epoch_places_the_values() {
    for name in ["speechbrain", "fastai", "comma-rows", "geometric"] {
        let (readings, truth) = (read_output(name, "output"), truth(name, |value| value));
        assert!(readings.iter().all(|reading| reading.step.is_none()), "{name}");
        let found = by_place(&readings, &truth, |reading| reading.epoch.map(|epoch| epoch as u64));
        assert_eq!(found, truth, "{name}");
    }
}

#[test]
fn a_batch_that_was_skipped_for_lack_of_memory_is_told() {
    let skips: Vec<Skip> = read_output("tqdm-job", "output").iter().filter_map(|reading| reading.skip).collect();
    assert_eq!(skips, [Skip::OutOfMemory]);
}

#[test]
fn everyday_lines_count_no_steps() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/log_metrics/lookalikes.txt");
    let text = fs::read_to_string(path).unwrap();
    for printed in text.lines().chain([text.as_str()]) {
        let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
        reader.push(format!("{printed}\n").as_bytes(), &mut readings);
        reader.finish(&mut readings);
        let counted: Vec<&Reading> =
            readings.iter().filter(|reading| reading.step.is_some() || reading.total_steps.is_some()).collect();
        assert!(counted.is_empty(), "{printed}: {counted:?}");
        let is_loss = |reading: &Reading| reading.value("loss").is_some() || reading.value("eval_loss").is_some();
        assert!(!readings.iter().any(is_loss), "{printed}: {readings:?}");
    }
}
