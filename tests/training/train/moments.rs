//! Optimizer state in 8 bits and in host memory: a quarter of the memory at nearly the same loss, and every
//! resume from a checkpoint is exact.

use super::harness::{args, live, preset, tensors, with};
use downshift::protocol::worker::{DoneReason, Event, Level, Order};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

const STEPS: u64 = 24;
const STOP: Order = Order::Stop { checkpoint: true };

/// Returns knobs for a model with two matrices large enough for 8 bits: 12 288 and 4 096 elements.
fn knobs(moments: &str, offload: bool) -> Value {
    let knobs = [
        ("model.hidden", json!(2048)),
        ("optimizer.lr", json!(0.003)),
        ("optimizer.moments", json!(moments)),
        ("optimizer.offload", json!(offload)),
    ];
    with(preset(0.3), &knobs)
}

fn whole(moments: &str, offload: bool) -> (TempDir, Vec<(u64, f64, f64)>) {
    let dir = TempDir::new().unwrap();
    let told = live(args(dir.path(), knobs(moments, offload)), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    (dir, told.curve())
}

fn notes(events: &[Event]) -> Vec<String> {
    let note = |event: &Event| match event {
        Event::Note { level: Level::Info, text } if text.contains("moments of") => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(note).collect()
}

#[test]
fn a_resumed_run_is_exact_with_8_bit_and_offloaded_moments() {
    for (moments, offload) in [("8bit", false), ("f32", true), ("8bit", true)] {
        let (whole_dir, curve) = whole(moments, offload);
        for stop in [1, 9, 23] {
            let dir = TempDir::new().unwrap();
            let one = live(args(dir.path(), knobs(moments, offload)), &[(stop, STOP)]);
            let two = live(args(dir.path(), knobs(moments, offload)), &[]);
            assert_eq!(notes(&two.events), [""; 0], "nothing was missing");
            let joined: Vec<_> = one.curve().into_iter().chain(two.curve()).collect();
            assert_eq!(joined, curve, "{moments}, offload {offload}, stopped at {stop}");
            assert!(tensors(dir.path(), STEPS) == tensors(whole_dir.path(), STEPS));
        }
    }
}

#[test]
fn state_in_host_memory_changes_nothing() {
    for moments in ["f32", "8bit"] {
        let [(here_dir, here), (there_dir, there)] = [false, true].map(|offload| whole(moments, offload));
        assert_eq!(here, there, "{moments}");
        assert!(tensors(here_dir.path(), STEPS) == tensors(there_dir.path(), STEPS), "{moments}");
    }
}

#[test]
fn a_shift_to_and_from_host_memory_is_exact() {
    let (whole_dir, curve) = whole("8bit", false);
    let dir = TempDir::new().unwrap();
    live(args(dir.path(), knobs("8bit", false)), &[(5, STOP)]);
    live(args(dir.path(), knobs("8bit", true)), &[(14, STOP)]);
    let rest = live(args(dir.path(), knobs("8bit", false)), &[]);
    assert_eq!(rest.curve()[..], curve[14..]);
    assert!(tensors(dir.path(), STEPS) == tensors(whole_dir.path(), STEPS));
}

fn types(run: &Path, step: u64) -> Vec<String> {
    let (_, moments) = tensors(run, step);
    let file = SafeTensors::deserialize(&moments).unwrap();
    let mut types: Vec<String> =
        file.iter().map(|(name, view)| format!("{name} {:?} {:?}", view.dtype(), view.shape())).collect();
    types.sort();
    types
}

#[test]
fn only_matrices_are_quantized_and_checkpoints_hold_the_codes() {
    let (dir, _) = whole("8bit", false);
    let types = types(dir.path(), STEPS);
    assert_eq!(types.len(), 2 * (2 * 2 + 4));
    for wanted in [
        "blocks.0.weight.exp_avg.codes U8 [48, 256]",
        "blocks.0.weight.exp_avg.scales F32 [48, 1]",
        "blocks.0.weight.exp_avg_sq.codes U8 [48, 256]",
        "blocks.0.weight.exp_avg_sq.scales F32 [48, 1]",
        "head.weight.exp_avg_sq.codes U8 [16, 256]",
        "blocks.0.bias.exp_avg F32 [2048]",
        "norm.gamma.exp_avg_sq F32 [2048]",
    ] {
        assert!(types.iter().any(|found| found == wanted), "{wanted}: {types:?}");
    }
}

#[test]
fn a_checkpoint_of_either_kind_resumes_under_the_other() {
    let dir = TempDir::new().unwrap();
    let (_, curve) = whole("f32", false);
    live(args(dir.path(), knobs("f32", false)), &[(10, STOP)]);
    let coded = live(args(dir.path(), knobs("8bit", true)), &[(17, STOP)]);
    assert_eq!(notes(&coded.events), ["the moments of 2 parameters are now stored in 8 bits"]);
    let back = live(args(dir.path(), knobs("f32", false)), &[]);
    assert_eq!(notes(&back.events), ["the moments of 2 parameters are now stored in f32"]);
    assert_eq!(back.outcome, Ok(DoneReason::Finished));
    assert!(types(dir.path(), 17).iter().any(|found| found.contains("U8")));
    let (_, moments) = tensors(dir.path(), STEPS);
    let file = SafeTensors::deserialize(&moments).unwrap();
    assert!(file.iter().all(|(_, view)| view.dtype() == Dtype::F32));
    for (shifted, straight) in coded.curve().iter().chain(&back.curve()).zip(&curve[10..]) {
        assert!((shifted.1 - straight.1).abs() < 0.05, "{shifted:?}, {straight:?}");
    }
}

#[test]
fn moments_missing_from_a_checkpoint_are_named() {
    let dir = TempDir::new().unwrap();
    let head = with(preset(0.0), &[("training.trained", json!("head"))]);
    live(args(dir.path(), head), &[(6, STOP)]);
    let all = live(args(dir.path(), preset(0.0)), &[(12, STOP)]);
    let wanted = "the checkpoint lacks the moments of 2 out of 6 trained parameters, which start at zero: \
                  blocks.0.bias, blocks.0.weight";
    assert_eq!(notes(&all.events), [wanted]);
    assert_eq!(notes(&live(args(dir.path(), preset(0.0)), &[]).events), [""; 0]);
}

/// Returns the last validation loss of a run on the shipped text.
fn text_loss(moments: &str, steps: u64) -> f64 {
    let dir = TempDir::new().unwrap();
    let knobs = json!({
        "data": { "source": "embedded:text" },
        "model": { "layers": 2, "heads": 2, "width": 64, "sequence": 32 },
        "training": { "steps": steps, "micro_batch": 8, "seed": 7 },
        "optimizer": { "lr": 3e-3, "weight_decay": 0.01, "max_norm": 1.0, "moments": moments,
                       "schedule": { "kind": "cosine", "warmup": 0.05, "final": 0.1 } },
        "evaluation": { "every": "never" },
        "checkpoint": { "every": "never" },
    });
    let mut args = args(dir.path(), knobs);
    args.task = "lm".into();
    let told = live(args, &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    let coded = types(dir.path(), steps).iter().filter(|found| found.contains("U8")).count();
    assert_eq!(coded > 0, moments == "8bit");
    told.evals().last().unwrap().1
}

#[test]
fn text_is_learned_as_well_with_8_bit_moments() {
    let [whole, coded] = ["f32", "8bit"].map(|moments| text_loss(moments, 150));
    assert!(whole < 3.0, "it does not learn: {whole}");
    assert!((coded / whole - 1.0).abs() < 0.01, "{coded} in 8 bits, {whole} in f32");
}
