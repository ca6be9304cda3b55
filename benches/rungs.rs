//! Speed and peak memory of every rung of every shipped ladder, next to the rung it is based on. Exits with
//! 1 if a rung claims to relieve memory but does not need less.
//!
//! `cargo bench --bench rungs -- [--config finetune] [--steps 2] [--device cpu]`
//!
//! `downshift plan --measure` trains on each rung in its own process. The shipped models are so small that the
//! program itself dominates memory, so all of them are scaled up, every rung by the same factors: activations
//! and state then take hundreds of megabytes on the CPU (some minutes in all), and gigabytes on a GPU.

#[path = "help/worker.rs"]
mod worker;

use downshift::config::knobs::Relief;
use downshift::config::run::Run;
use downshift::config::yaml;
use downshift::shipped;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use worker::{Outcome, measure, read};

/// Largest memory share, relative to its base rung, of a rung that relieves memory.
const RELIEVED: f64 = 0.97;

/// The scaling of a shipped run.
struct Case {
    name: &'static str,
    /// Overrides on the CPU and on a GPU.
    cpu: &'static [Override],
    gpu: &'static [Override],
    /// Whether the model has the shape of GPT-2 on a GPU.
    gpt2: bool,
    /// Factors for every rung: of the micro-batch, on the CPU and on a GPU, and of the adapters' rank.
    batch: [u64; 2],
    rank: u64,
}

type Override = (&'static str, &'static str);

/// GPT-2 with 124M parameters, as a fresh byte-level model.
const FRESH: Override = ("model.init_from", "null");
const GPT2: [Override; 5] =
    [FRESH, ("model.layers", "12"), ("model.heads", "12"), ("model.width", "768"), ("training.precision", "bf16")];

const CASES: [Case; 8] = [
    Case {
        name: "digits",
        cpu: &[("model.channels", "128")],
        gpu: &[("model.channels", "256"), ("model.layers", "12"), ("training.precision", "bf16")],
        gpt2: false,
        batch: [24, 32],
        rank: 1,
    },
    Case {
        name: "search",
        cpu: &[("model.channels", "16"), ("model.layers", "6")],
        gpu: &[("model.channels", "64"), ("model.layers", "8")],
        gpt2: false,
        batch: [8, 16],
        rank: 1,
    },
    Case {
        name: "cifar10",
        cpu: &[("data.source", "embedded:digits"), ("model.channels", "96")],
        gpu: &[("data.source", "embedded:digits"), ("model.channels", "256"), ("training.precision", "bf16")],
        gpt2: false,
        batch: [8, 8],
        rank: 1,
    },
    Case {
        name: "sizes",
        cpu: &[("model.channels", "128")],
        gpu: &[("variant", "large"), ("model.channels", "256")],
        gpt2: false,
        batch: [48, 16],
        rank: 1,
    },
    Case {
        name: "text",
        cpu: &[("model.width", "256"), ("model.sequence", "128")],
        gpu: &[("model.sequence", "1024")],
        gpt2: true,
        batch: [8, 1],
        rank: 1,
    },
    Case {
        name: "lora",
        cpu: &[FRESH, ("model.width", "256"), ("model.sequence", "128")],
        gpu: &[("model.sequence", "1024")],
        gpt2: true,
        batch: [8, 1],
        rank: 16,
    },
    Case {
        name: "finetune",
        cpu: &[FRESH, ("model.width", "192"), ("model.sequence", "128"), ("ladder.b-ultra-safe.model.sequence", "64")],
        gpu: &[
            ("model.sequence", "1024"),
            ("ladder.b-ultra-safe.model.sequence", "512"),
            ("training.trained", "adapters of the last 8 blocks + head"),
            ("ladder.b-ultra-safe.training.trained", "adapters of the last 4 blocks + head"),
        ],
        gpt2: true,
        batch: [64, 8],
        rank: 1,
    },
    Case {
        name: "stable",
        cpu: &[FRESH, ("model.width", "512"), ("model.heads", "8"), ("model.layers", "6"), ("model.sequence", "128")],
        gpu: &[("model.sequence", "256")],
        gpt2: true,
        batch: [8, 4],
        rank: 1,
    },
];

fn main() -> Outcome<ExitCode> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let (only, device) = (after("--config"), after("--device").unwrap_or_else(|| "cpu".to_owned()));
    let steps: u64 = after("--steps").map_or(Ok(2), |text| text.parse())?;
    if let Some(name) = only.as_ref().filter(|name| CASES.iter().all(|case| case.name != **name)) {
        return Err(format!("no shipped run is called {name}").into());
    }
    let what = if device == "cpu" { "memory" } else { "VRAM" };
    println!("| config | rung | parameters | based on | relieves | units/s | peak {what} | of its base | |");
    println!("|---|---|---:|---|---|---:|---:|---:|---|");
    let mut untrue = Vec::new();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|name| name == case.name)) {
        untrue.extend(rungs(case, &device, steps)?);
    }
    for rung in &untrue {
        println!("\n{rung} claims to relieve memory, but needs as much as its base rung");
    }
    Ok(if untrue.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one ladder; returns the rungs that do not relieve memory as claimed.
fn rungs(case: &Case, device: &str, steps: u64) -> Outcome<Vec<String>> {
    let (file, text) = shipped::run_file(Path::new(case.name)).ok_or("the run file is not shipped")?;
    let on_cpu = device == "cpu";
    let sets = if on_cpu { case.cpu } else { case.gpu };
    let shape: &[Override] = if case.gpt2 && !on_cpu { &GPT2 } else { &[] };
    let overrides: Vec<_> =
        shape.iter().chain(sets).map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    let mut run = read(file, text, &overrides)?;
    scale(&mut run, case.batch[usize::from(!on_cpu)], case.rank);
    let (bases, all, mut untrue) = (bases(text, &run)?, measure(&run, device, steps)?, Vec::new());
    for ((rung, took), base) in run.rungs.iter().zip(&all).zip(bases) {
        let ratio = base.map(|base| took.memory as f64 / all[base].memory as f64);
        let verdict = match ratio {
            Some(ratio) if rung.relieves.contains(&Relief::Memory) && ratio > RELIEVED => "DOES NOT RELIEVE",
            Some(_) if rung.relieves.contains(&Relief::Memory) => "relieves memory",
            _ => "",
        };
        println!(
            "| {} | {} | {:.1}M | {} | {} | {:.0} | {:.0} MiB | {} | {verdict} |",
            case.name,
            rung.name,
            took.parameters as f64 / 1e6,
            base.map_or("–", |base| &run.rungs[base].name),
            rung.relieves.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            took.units_per_s,
            took.memory as f64 / f64::from(1 << 20),
            ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0)),
        );
        if verdict.starts_with("DOES NOT") {
            untrue.push(format!("{} of {}", rung.name, case.name));
        }
    }
    Ok(untrue)
}

/// Applies the same factors to every rung, so that their differences are preserved.
fn scale(run: &mut Run, batch: u64, rank: u64) {
    for rung in &mut run.rungs {
        rung.preset.training.micro_batch *= batch;
        // Accumulation passes beyond the second cost time but no memory.
        rung.preset.training.accumulation = rung.preset.training.accumulation.min(2);
        if let Some(lora) = rung.preset.model.get_mut("lora").and_then(Value::as_object_mut) {
            for knob in ["rank", "alpha"] {
                if let Some(value) = lora.get(knob).and_then(Value::as_f64) {
                    let scaled = value * rank as f64;
                    lora.insert(knob.to_owned(), if knob == "rank" { json!(scaled as u64) } else { json!(scaled) });
                }
            }
        }
    }
}

/// Returns for each rung the one it is based on: the one named by `from`, or the one above.
fn bases(text: &str, run: &Run) -> Outcome<Vec<Option<usize>>> {
    let (tree, _) = yaml::parse(text).map_err(|error| error.message)?;
    let mut bases = vec![None];
    for index in 1..run.rungs.len() {
        let from = tree["ladder"][index - 1].get("from").and_then(Value::as_str);
        bases.push(Some(from.and_then(|name| run.rung_named(name)).unwrap_or(index - 1)));
    }
    Ok(bases)
}
