//! What the card computes, beside the CPU: losses, and the gradient of each tensor.

use crate::card::{PLAIN, TINY, place_with_card, place_with_unused_card};
use crate::helper::Place;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Decay rate of the first moments in the shipped run files.
const BETA: f64 = 0.9;

type Tensors = BTreeMap<String, Vec<f64>>;

/// Returns the first moments in a checkpoint of the newest run.
fn first_moments(place: &Place, step: u64) -> Tensors {
    let run = place.newest().unwrap();
    let path = run.path().join(format!("checkpoints/step-{step:09}/optimizer.safetensors"));
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let of_first = file.iter().filter_map(|(name, view)| Some((name.strip_suffix(".exp_avg")?.to_owned(), view)));
    let values = |data: &[u8]| {
        data.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect::<Vec<f64>>()
    };
    of_first.map(|(name, view)| (name, values(view.data()))).collect()
}

/// Returns the gradient between two steps, read off the moments: m' = βm + (1 − β)g.
fn gradients(before: &Tensors, after: &Tensors) -> Tensors {
    let of = |(name, after): (&String, &Vec<f64>)| {
        let zeros = vec![0.0; after.len()];
        let before = before.get(name).unwrap_or(&zeros);
        let gradient = before.iter().zip(after).map(|(old, new)| (new - BETA * old) / (1.0 - BETA));
        (name.clone(), gradient.collect())
    };
    after.iter().map(of).collect()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the tensor whose gradient differs most, and the difference as a share of its norm.
fn largest_difference(expected: &Tensors, found: &Tensors) -> (String, f64) {
    assert!(expected.len() > 10 && expected.keys().eq(found.keys()), "{:?}", expected.keys());
    let whole = norm(expected.values().flatten().copied());
    let share = |(name, expected): (&String, &Vec<f64>)| {
        let difference = norm(expected.iter().zip(&found[name]).map(|(one, other)| one - other));
        // A bias in front of a norm has no gradient but rounding.
        (name.clone(), difference / norm(expected.iter().copied()).max(whole * 1e-4))
    };
    expected.iter().map(share).max_by(|one, other| one.1.total_cmp(&other.1)).unwrap()
}

/// Takes step 5 from the checkpoint at step 4 on the CPU and on the card.
fn compare_step(place: &Place, task: &[&str]) -> (String, f64) {
    let steps = ["--set", "training.steps=5", "--set", "checkpoint.every=4 steps"];
    let words: Vec<&str> =
        ["run", task[0], "--headless", "--device", "cpu"].iter().chain(&task[1..]).chain(&steps).copied().collect();
    place.succeed(&words);
    let before = first_moments(place, 4);
    let on_cpu = gradients(&before, &first_moments(place, 5));
    place.succeed(&["resume", "--from", "4", "--headless", "--device", "cuda"]);
    let rows = place.rows();
    let losses = ["loss", "grad_norm"].map(|metric| {
        let value = |row: &Value| row[metric].as_f64().unwrap();
        (value(&rows[5]) - value(&rows[4])).abs() / value(&rows[4])
    });
    assert_eq!((rows.len(), &rows[4]["step"]), (6, &rows[5]["step"]));
    assert!(losses[0] <= 1e-5 && losses[1] <= 1e-4, "loss and norm differ by {losses:?}");
    largest_difference(&on_cpu, &gradients(&before, &first_moments(place, 5)))
}

#[test]
fn gradients_of_digits_are_those_of_the_cpu() {
    let (tensor, difference) = compare_step(&place_with_card(), &[&["digits"], &PLAIN[..]].concat());
    assert!(difference <= 1e-5, "{tensor} differs by {difference:e}");
}

#[test]
fn gradients_of_fused_kernels_are_those_of_the_cpu() {
    let (tensor, difference) = compare_step(&place_with_card(), &[&["digits"], &PLAIN[2..]].concat());
    assert!(difference <= 1e-5, "{tensor} differs by {difference:e}");
}

/// Returns the words that train a transformer on a short text.
fn tiny_text(place: &Place) -> Vec<String> {
    let text = place.dir.path().join("text.txt");
    fs::write(&text, &include_str!("../../README.md")[..3000]).unwrap();
    let data = format!("data.source={}", text.display());
    ["text"].iter().chain(&TINY).map(ToString::to_string).chain(["--set".to_owned(), data]).collect()
}

fn text_differs_by(place: &Place) -> (String, f64) {
    let words = tiny_text(place);
    compare_step(place, &words.iter().map(String::as_str).collect::<Vec<&str>>())
}

#[test]
fn gradients_of_a_transformer_are_those_of_the_cpu() {
    let (tensor, difference) = text_differs_by(&place_with_card());
    assert!(difference <= 1e-5, "{tensor} differs by {difference:e}");
}

/// The control of the comparisons above.
#[test]
fn a_kernel_that_computes_a_thousandth_too_much_is_found() {
    let mut place = place_with_card();
    let broken = place.dir.path().join("broken.h");
    fs::write(
        &broken,
        "#include <cmath>\nstatic inline float too_much(float x) { return 1.001f * expf(x); }\n#define exp too_much\n",
    )
    .unwrap();
    let flags = format!("-O2 -include {}", broken.display());
    place.variables.push(("SOFT_CARD_CXXFLAGS", PathBuf::from(flags)));
    let kernels = place.dir.path().join("kernels");
    place.variables.push(("SOFT_CARD_CACHE", kernels));
    let (tensor, difference) = text_differs_by(&place);
    assert!(difference > 1e-4, "{tensor} differs by {difference:e}");
}

/// A first step in bf16, beside one in f32 from the same weights. A value in bf16 has 8 bits.
#[test]
fn gradients_in_bf16_are_those_of_f32_within_their_rounding() {
    let mut place = place_with_unused_card();
    place.variables.push(("SOFT_CARD_CAPABILITY", PathBuf::from("8.0")));
    let text = tiny_text(&place);
    let first_gradients = |precision: &str| {
        let more = ["--headless", "--device", "cuda", "--set", "training.steps=1", "--set", precision];
        let words: Vec<&str> = ["run"].into_iter().chain(text.iter().map(String::as_str)).chain(more).collect();
        place.succeed(&words);
        gradients(&Tensors::new(), &first_moments(&place, 1))
    };
    let (tensor, difference) =
        largest_difference(&first_gradients("training.precision=f32"), &first_gradients("training.precision=bf16"));
    assert!(difference > 1e-6, "bf16 was not used");
    assert!(difference <= 0.05, "{tensor} differs by {difference:e}");
}
