//! GPT-2's shape with 124M parameters (bf16, 8 × 1024 tokens, a vocabulary of 50 257) in downshift, with and
//! without fused kernels and gradient checkpointing, and in PyTorch, eager and compiled, on the same device in
//! one invocation.
//!
//! `cargo bench --bench gpt2 -- [--device cuda] [--steps 20] [--python env/bin/python] [--tiny]`
//!
//! Without a GPU it says so and runs the tiny shape in f32 on the CPU: a smoke test, not a comparison.
//! Skips PyTorch if the given Python (default `python3`) does not have it.

#[path = "help/vocabulary.rs"]
mod vocabulary;
#[path = "help/worker.rs"]
mod worker;

use downshift::config::knobs::Precision;
use downshift::protocol::device::DeviceChoice;
use downshift::shipped;
use downshift::train::device;
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};
use worker::{Outcome, measure, read};

/// Sizes of the model and of a step.
struct Shape {
    layers: usize,
    heads: usize,
    width: usize,
    sequence: usize,
    batch: usize,
    vocabulary: usize,
    precision: &'static str,
}

const WHOLE: Shape =
    Shape { layers: 12, heads: 12, width: 768, sequence: 1024, batch: 8, vocabulary: 50257, precision: "bf16" };
const TINY: Shape =
    Shape { layers: 2, heads: 4, width: 64, sequence: 64, batch: 2, vocabulary: 12000, precision: "f32" };

/// A line of output of the script.
#[derive(Deserialize)]
struct Line {
    note: Option<String>,
    name: Option<String>,
    #[serde(default)]
    units_per_s: f64,
    #[serde(default)]
    peak_bytes: u64,
    #[serde(default)]
    parameters: u64,
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let asked = after("--device").unwrap_or_else(|| "cuda".to_owned());
    let choice: DeviceChoice = asked.parse()?;
    let (device, whole) = match device::choose_device(&choice, Precision::F32) {
        Ok(chosen) if chosen.compiles_kernels() => {
            println!("{}", chosen.name);
            (asked, !words.iter().any(|word| word == "--tiny"))
        }
        Ok(_) => ("cpu".to_owned(), false),
        Err(why) => {
            println!("there is no GPU here, so this is the tiny shape on the CPU, which compares nothing: {why}");
            ("cpu".to_owned(), false)
        }
    };
    let shape = if whole { WHOLE } else { TINY };
    let steps: u64 = after("--steps").map_or(Ok(20), |text| text.parse())?;
    println!("\n| GPT-2, {} × {} | parameters | tokens/s | peak memory |", shape.batch, shape.sequence);
    println!("|---|---:|---:|---:|");
    ours(&shape, &device, steps)?;
    theirs(&shape, &device, steps, &after("--python").unwrap_or_else(|| "python3".to_owned()))
}

fn row(name: &str, parameters: u64, units_per_s: f64, peak: u64) {
    let (millions, mib) = (parameters as f64 / 1e6, peak as f64 / f64::from(1 << 20));
    println!("| {name} | {millions:.1}M | {units_per_s:.0} | {mib:.0} MiB |");
}

fn ours(shape: &Shape, device: &str, steps: u64) -> Outcome<()> {
    let place = tempfile::tempdir()?;
    let tokenizer = place.path().join("tokenizer.json");
    std::fs::write(&tokenizer, vocabulary::of_words(shape.vocabulary).to_string())?;
    let (file, text) = shipped::run_file(Path::new("text")).ok_or("the run file is not shipped")?;
    for (fused, recompute) in [(true, false), (true, true), (false, false)] {
        // Kernel fusion does not exist on the CPU.
        if device == "cpu" && !fused {
            continue;
        }
        let overrides: Vec<(String, String)> = [
            ("data.tokenizer", tokenizer.display().to_string()),
            ("model.layers", shape.layers.to_string()),
            ("model.heads", shape.heads.to_string()),
            ("model.width", shape.width.to_string()),
            ("model.sequence", shape.sequence.to_string()),
            ("training.micro_batch", shape.batch.to_string()),
            ("training.precision", shape.precision.to_owned()),
            ("training.fused_kernels", fused.to_string()),
            ("training.gradient_checkpointing", recompute.to_string()),
            ("training.epochs", "1000".to_owned()),
        ]
        .map(|(path, value)| (path.to_owned(), value))
        .to_vec();
        let mut run = read(file, text, &overrides)?;
        run.rungs.truncate(1);
        let took = *measure(&run, device, steps)?.first().ok_or("the run file has no such rung")?;
        let kernels = if fused { "fused" } else { "plain" };
        let name = format!("downshift, {kernels}{}", if recompute { ", gradient checkpointing" } else { "" });
        row(&name, took.parameters, took.units_per_s, took.memory);
    }
    Ok(())
}

fn theirs(shape: &Shape, device: &str, steps: u64, python: &str) -> Outcome<()> {
    let has = Command::new(python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        println!("\n{python} has no PyTorch; name one that has: --python env/bin/python");
        return Ok(());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpt2_torch.py");
    let mut command = Command::new(python);
    command.arg(script).args(["--device", device.split(':').next().unwrap_or(device)]);
    for (flag, value) in [
        ("--layers", shape.layers),
        ("--heads", shape.heads),
        ("--width", shape.width),
        ("--sequence", shape.sequence),
        ("--batch", shape.batch),
        ("--vocabulary", shape.vocabulary),
    ] {
        command.args([flag, &value.to_string()]);
    }
    command.args(["--steps", &steps.to_string()]);
    let out = command.stderr(Stdio::inherit()).output()?;
    let mut notes = Vec::new();
    for text in String::from_utf8(out.stdout)?.lines() {
        let line: Line = serde_json::from_str(text)?;
        if let Some(name) = line.name {
            row(&name, line.parameters, line.units_per_s, line.peak_bytes);
        }
        notes.extend(line.note);
    }
    for note in notes {
        println!("\n{note}");
    }
    if out.status.success() { Ok(()) } else { Err("the script of PyTorch failed".into()) }
}
