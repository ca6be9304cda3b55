//! Losses and the gradient of each tensor, on the card and on the CPU.

use super::card::{PLAIN, TINY, place_with_card, place_with_unused_card};
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

/// Returns the gradient of the steps in between, read off the moments: m' = βm + (1 − β)g for each step. Of several steps
/// it is the mean, weighted as the moments weigh them.
fn gradients(before: &Tensors, after: &Tensors, steps: usize) -> Tensors {
    let kept = BETA.powi(i32::try_from(steps).unwrap());
    let of = |(name, after): (&String, &Vec<f64>)| {
        let zeros = vec![0.0; after.len()];
        let before = before.get(name).unwrap_or(&zeros);
        let gradient = before.iter().zip(after).map(|(old, new)| (new - kept * old) / (1.0 - kept));
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

/// Takes step 5 from the checkpoint at step 4 on the CPU, and on the card in this precision.
fn compare_step(place: &Place, task: &[&str], precision: &str) -> Differences {
    compare_steps(place, task, precision, 5)
}

/// Takes the steps from 5 to `last` from the checkpoint at step 4 on the CPU, and on the card in this precision. Returns
/// how far their losses and gradients differ.
pub fn compare_steps(place: &Place, task: &[&str], precision: &str, last: usize) -> Differences {
    // A save of the best weights at step 3 might still be in flight at step 4.
    let changes = [&format!("training.steps={last}"), "checkpoint.every=4 steps", "checkpoint.keep_best=false"];
    let changes = changes.iter().flat_map(|change| ["--set", change]);
    let words: Vec<&str> =
        ["run", task[0], "--headless", "--device", "cpu"].iter().chain(&task[1..]).copied().chain(changes).collect();
    place.succeed(&words);
    let before = first_moments(place, 4);
    let gradients = || gradients(&before, &first_moments(place, last as u64), last - 4);
    let on_cpu = gradients();
    let file = place.newest().unwrap().path().join("run.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("precision: f32", &format!("precision: {precision}"))).unwrap();
    place.succeed(&["resume", "--from", "4", "--headless", "--device", "cuda"]);
    let rows = place.rows();
    let (cpu, card) = (&rows[4..last], &rows[last..]);
    let steps = |rows: &[Value]| rows.iter().map(|row| row["step"].as_u64()).collect::<Vec<_>>();
    assert_eq!((steps(cpu), cpu.len()), (steps(card), last - 4));
    let loss = |row: &Value| row["loss"].as_f64().unwrap();
    let losses = cpu.iter().zip(card).map(|(cpu, card)| (loss(card) - loss(cpu)).abs() / loss(cpu));
    let (tensor, gradient) = largest_difference(&on_cpu, &gradients());
    Differences { loss: losses.fold(0.0, f64::max), tensor, gradient }
}

#[derive(Debug)]
pub struct Differences {
    pub loss: f64,
    pub gradient: f64,
    /// The tensor whose gradient differs most.
    #[expect(dead_code, reason = "it is in the message of a failed check")]
    tensor: String,
}

impl Differences {
    #[track_caller]
    fn check(&self, loss: f64, gradient: f64) {
        assert!(self.loss <= loss && self.gradient <= gradient, "{self:?}");
    }
}

#[test]
fn gradients_of_digits_are_those_of_the_cpu() {
    compare_step(&place_with_card(), &[&["digits"], &PLAIN[..]].concat(), "f32").check(1e-5, 1e-5);
}

#[test]
fn gradients_of_fused_kernels_are_those_of_the_cpu() {
    compare_step(&place_with_card(), &[&["digits"], &PLAIN[2..]].concat(), "f32").check(1e-5, 1e-5);
}

/// Writes a short text and returns the setting that names it.
pub fn write_text(place: &Place) -> String {
    let text = place.dir.path().join("text.txt");
    let lines = (0..150).map(|i| format!("line {} of {}, as read aloud\n", i * 7 % 13, i % 29));
    fs::write(&text, lines.collect::<Vec<String>>().concat()).unwrap();
    format!("data.source={}", text.display())
}

/// Trains a transformer on a short text.
fn compare_text(place: &Place, precision: &str, more: &[&str]) -> Differences {
    let data = write_text(place);
    let words = ["text"].iter().chain(&TINY).copied().chain(["--set", &data]).chain(more.iter().copied());
    compare_step(place, &words.collect::<Vec<&str>>(), precision)
}

/// Burn's slope of GELU on CUDA is that of the approximation by tanh, which differs by up to 9e-4 (RELIABILITY.md).
pub const GELU: f64 = 1e-3;

#[test]
fn gradients_of_a_transformer_are_those_of_the_cpu() {
    compare_text(&place_with_card(), "f32", &[]).check(1e-5, GELU);
}

/// Kernels of our own that any number format has.
const OWN: [&str; 7] = ["cross_entropy", "normalize", "normalize_grad", "gelu", "gelu_grad", "adamw", "add_squares"];
/// Those that attention has beside products.
const SOFTMAX: [&str; 2] = ["causal_softmax", "causal_softmax_grad"];
/// Those that attention consists of where there are matrix instructions.
const TILES: [&str; 3] = ["attend", "attend_query_grad", "attend_key_grad"];

/// Trains with fused kernels and with those of our own, which the card must have run.
fn compare_fused_text(place: &mut Place, precision: &str, attention: &[&str], more: &[&str]) -> Differences {
    let trace = place.dir.path().join("trace");
    place.variables.push(("SOFT_CARD_TRACE", trace.clone()));
    // The smallest head that tiles have: 16 numbers.
    let changes = [&["--set", "training.fused_kernels=true", "--set", "model.heads=1"], more].concat();
    let differences = compare_text(place, precision, &changes);
    let trace = fs::read_to_string(trace).unwrap();
    for name in OWN.iter().chain(attention) {
        assert!(is_launched(&trace, name), "{name} is not among the launched kernels");
    }
    differences
}

fn is_launched(trace: &str, name: &str) -> bool {
    // After a kernel's name comes its first number format, as in `normalize_f_bf16_n_4` and `adamw_g_f32_r_f32_n_4`.
    let is_of = |line: &str| ["f", "g"].iter().any(|of| line.contains(&format!("\"kernel\":\"{name}_{of}_")));
    trace.lines().any(|line| line.starts_with(r#"{"launch""#) && is_of(line))
}

#[test]
fn without_fused_kernels_none_of_our_own_runs() {
    let mut place = place_with_card();
    let trace = place.dir.path().join("trace");
    place.variables.push(("SOFT_CARD_TRACE", trace.clone()));
    compare_text(&place, "f32", &[]);
    let trace = fs::read_to_string(trace).unwrap();
    let mut all = OWN.iter().chain(&SOFTMAX).chain(&TILES);
    assert!(trace.contains(r#"{"launch""#) && all.all(|name| !is_launched(&trace, name)));
}

#[test]
fn gradients_of_fused_operations_are_those_of_the_cpu() {
    compare_fused_text(&mut place_with_card(), "f32", &SOFTMAX, &[]).check(1e-5, 1e-5);
}

#[test]
fn gradients_of_fused_operations_in_bf16_are_those_of_f32_within_their_rounding() {
    let mut place = place_with_unused_card();
    place.variables.push(("SOFT_CARD_CAPABILITY", PathBuf::from("8.0")));
    compare_fused_text(&mut place, "bf16", &TILES, &UNTUNED).check(1e-2, 5e-2);
}

/// Trains low-rank adapters, and then whole blocks with groups of parameters.
#[test]
fn gradients_of_fine_tuning_are_those_of_the_cpu() {
    for task in ["lora", "finetune"] {
        let place = place_with_card();
        let data = write_text(&place);
        let words = [&[task, "--set", &data, "--set", "model.sequence=16"], &TINY[8..]].concat();
        compare_step(&place, &words, "f32").check(1e-5, 1e-5);
    }
}

/// Writes 200 images of noise in the format of MNIST, and returns the setting that names them. Pixels without contrast would
/// tie in a maximum, and each device takes another of the equals.
fn write_noise(place: &Place) -> String {
    let folder = place.dir.path().join("noise");
    fs::create_dir(&folder).unwrap();
    let noise = |at: u32| at.wrapping_mul(2_654_435_761).rotate_left(11).wrapping_mul(2_246_822_519).to_le_bytes()[2];
    let write = |name: &str, sizes: &[u32], bytes: Vec<u8>| {
        let header = [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes.iter().flat_map(|size| size.to_be_bytes()));
        fs::write(folder.join(name), header.chain(bytes).collect::<Vec<u8>>()).unwrap();
    };
    write("train-images-idx3-ubyte", &[200, 8, 8], (0..200 * 64).map(noise).collect());
    write("train-labels-idx1-ubyte", &[200], (0..200).map(|image| noise(image + 99_999) % 4).collect());
    format!("data.source={}", folder.display())
}

/// The first epoch, of three steps, trains the weights; the fourth and fifth step train the architecture.
#[test]
fn gradients_of_both_phases_of_a_search_are_those_of_the_cpu() {
    // The rate is the one that gradients are read with.
    let sizes = "data.validation=0.1 training.micro_batch=30 training.epochs=null model.layers=3 model.channels=4 \
                 model.nodes=1 model.search.weight_epochs=1 optimizer.architecture.betas=[0.9,0.999] climb.plan=[] pinned=[]";
    for warmup in ["model.search.warmup_epochs=0", "model.search.warmup_epochs=9"] {
        let place = place_with_card();
        let data = write_noise(&place);
        let settings = sizes.split_whitespace().chain([warmup, &data]).flat_map(|set| ["--set", set]);
        let words: Vec<&str> = ["search"].into_iter().chain(settings).collect();
        compare_step(&place, &words, "f32").check(1e-5, 1e-4);
    }
}

/// The control of the comparisons above.
#[test]
fn a_kernel_that_computes_a_twentieth_too_much_is_found() {
    let mut place = place_with_card();
    let flags = "-O2 -D__builtin_sqrtf(x)=1.05f*__builtin_sqrtf(x)";
    let kernels = place.dir.path().join("kernels");
    place.variables.extend([("SOFT_CARD_CXXFLAGS", PathBuf::from(flags)), ("SOFT_CARD_CACHE", kernels)]);
    let differences = compare_text(&place, "f32", &[]);
    assert!(differences.gradient > GELU, "{differences:?}");
}

/// Takes the product kernels that a start without tuning takes: tuning compiles a hundred large ones on a card with matrix
/// instructions. `gpu_kernels` compares the products of each.
const UNTUNED: [&str; 2] = ["--set", "training.autotune=later"];

/// Trains in 16 bits at compute capability 8.0.
fn compare_in_half(precision: &str, more: &[&str]) -> Differences {
    let mut place = place_with_unused_card();
    place.variables.push(("SOFT_CARD_CAPABILITY", PathBuf::from("8.0")));
    compare_text(&place, precision, more)
}

/// A value in bf16 has 8 bits.
#[test]
fn gradients_in_bf16_are_those_of_f32_within_their_rounding() {
    let differences = compare_in_half("bf16", &UNTUNED);
    differences.check(1e-2, 5e-2);
    assert!(differences.loss > 1e-5, "bf16 was not used: {differences:?}");
}

/// A value in f16 has 11 bits. The loss is scaled, and the gradients are scaled back. Tuned products use the matrix
/// instructions.
#[test]
fn gradients_in_f16_are_those_of_f32_within_their_rounding() {
    let differences = compare_in_half("f16", &[]);
    differences.check(2e-3, 1e-2);
    assert!(differences.loss > 1e-6, "f16 was not used: {differences:?}");
}
