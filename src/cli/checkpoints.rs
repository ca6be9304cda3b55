//! The checkpoints of a run: list them, verify every byte, take the weights out.

use super::{Failure, Outcome};
use crate::keeper::sentences::{bytes, grouped};
use crate::store::checkpoint::{self, Entry};
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use clap::Args;
use std::path::{Path, PathBuf};

/// Arguments of `checkpoints`.
#[derive(Debug, Args)]
pub struct CheckpointsArgs {
    /// [RUN] and what to do: list, verify (read every byte), export (the weights alone)
    #[arg(value_name = "[RUN] list|verify|export", num_args = 0..=2)]
    words: Vec<String>,
    /// export: where to write the safetensors file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// export: of this step; the newest that verifies, if left out
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

/// The file of a checkpoint that holds the weights.
const WEIGHTS: &str = "model.safetensors";

pub fn look(args: &CheckpointsArgs, runs: &Path) -> Outcome {
    let known = ["list", "verify", "export"];
    let (run, action) = match &args.words[..] {
        [] => (None, "list"),
        [word] if known.contains(&word.as_str()) => (None, word.as_str()),
        [run] => (Some(run.as_str()), "list"),
        [run, action, ..] => (Some(run.as_str()), action.as_str()),
    };
    let run = RunDir::find(runs, run)?;
    match action {
        "list" => Ok(list(&run)),
        "verify" => Ok(verify(&run)),
        "export" => export(&run, args),
        other => Err(Failure::new(
            2,
            format!("`{other}` is nothing to do with checkpoints; choose from: {}", known.join(", ")),
        )),
    }
}

fn list(run: &RunDir) -> u8 {
    let rows = Reader::open(run).and_then(|reader| reader.checkpoints()).unwrap_or_default();
    for entry in checkpoint::list(run.path()) {
        let row = rows.iter().find(|row| row.step == entry.step);
        let size = checkpoint::manifest(&entry.path)
            .map_or_else(|error| error.to_string(), |manifest| bytes(manifest.bytes()));
        let eval = row.and_then(|row| row.eval_loss).map_or_else(String::new, |loss| format!("  eval {loss:.4}"));
        let best = if row.is_some_and(|row| row.best) { "  best" } else { "" };
        println!("step {:>9}  {size:>9}{eval}{best}  {}", grouped(entry.step), entry.path.display());
    }
    0
}

fn verify(run: &RunDir) -> u8 {
    let entries = checkpoint::list(run.path());
    if entries.is_empty() {
        println!("{} has no checkpoint", run.name());
    }
    let mut bad = 0;
    for entry in &entries {
        match checkpoint::verify(&entry.path) {
            Ok(manifest) => println!("step {:>9}  whole, {}", grouped(entry.step), bytes(manifest.bytes())),
            Err(error) => {
                bad += 1;
                println!("step {:>9}  BROKEN: {error}", grouped(entry.step));
            }
        }
    }
    if bad == 0 { 0 } else { 14 }
}

fn export(run: &RunDir, args: &CheckpointsArgs) -> Outcome {
    let out = args
        .out
        .as_deref()
        .ok_or_else(|| Failure::new(2, "export needs to know where to: --out weights.safetensors"))?;
    let loaded = if let Some(step) = args.step {
        let entries = checkpoint::list(run.path());
        let entry = entries.iter().find(|entry| entry.step == step).ok_or_else(|| unknown(step, &entries))?;
        checkpoint::load(&entry.path).map_err(|error| Failure::new(14, error.to_string()))?
    } else {
        let (newest, rejected) = checkpoint::newest_valid(run.path());
        for (path, error) in &rejected {
            super::say(&format!("passed over {}: {error}", path.display()));
        }
        newest.ok_or_else(|| Failure::new(14, format!("{} has no checkpoint that verifies", run.name())))?
    };
    let weights = loaded.files.get(WEIGHTS);
    let weights = weights.ok_or_else(|| Failure::new(14, format!("{} holds no {WEIGHTS}", loaded.path.display())))?;
    std::fs::write(out, weights).map_err(|error| Failure::new(1, format!("{}: {error}", out.display())))?;
    println!(
        "wrote the weights of step {} to {}, {}",
        grouped(loaded.manifest.step),
        out.display(),
        bytes(weights.len() as u64)
    );
    Ok(0)
}

fn unknown(step: u64, entries: &[Entry]) -> Failure {
    let steps: Vec<String> = entries.iter().map(|entry| entry.step.to_string()).collect();
    let there = if steps.is_empty() { "there are none".to_owned() } else { format!("there are {}", steps.join(", ")) };
    Failure::new(14, format!("no checkpoint of step {step}; {there}"))
}
