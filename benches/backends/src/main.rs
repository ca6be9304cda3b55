//! A training step on each of Burn's CPU backends, beside downshift's own operations.
//!
//! `cargo run --release --manifest-path benches/backends/Cargo.toml -- [--case text] [--runs 10] [--steps 20]`
//!
//! The models, their initial weights and their batches are those of `benches/torch.rs`; so is the row "downshift". The
//! others compute the same loss with one operation of Burn after the other, and Burn's AdamW. Each run is a process of its
//! own, and the backends take turns. The first losses must agree. `--features torch` adds libtorch: with
//! `LIBTORCH_USE_PYTORCH=1`, and the Python of torch 2.9 first in PATH; `torch/lib` belongs into LD_LIBRARY_PATH.

#[path = "../../torch/cases.rs"]
mod cases;
#[path = "../../help/in_process.rs"]
mod in_process;
#[path = "../../torch/ours.rs"]
mod ours;
mod stock;
#[path = "../../torch/took.rs"]
mod took;
#[path = "../../help/vocabulary.rs"]
mod vocabulary;

use cases::{CASES, Case};
use std::path::Path;
use std::process::Command;
use took::{MOST_APART, Outcome, Took, median, read_figures};

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let steps: usize = after("--steps").map_or(Ok(20), |text| text.parse())?.max(1);
    if let (Some(backend), Some(folder)) = (after("--backend"), after("--folder")) {
        return stock::run(&backend, Path::new(&folder), steps);
    }
    let runs: usize = after("--runs").map_or(Ok(10), |text| text.parse())?;
    let only = after("--case");
    println!("{runs} runs of {steps} steps on {} threads\n", std::thread::available_parallelism()?);
    println!("| case | backend | a step | of downshift's (least, most) | memory |");
    println!("|---|---|---:|---:|---:|");
    // Adapters would compare the same operations again.
    for case in CASES.iter().filter(|case| only.as_ref().map_or(case.name != "lora", |only| only == case.name)) {
        let folder = tempfile::tempdir()?;
        ours::prepare(case, folder.path())?;
        compare(case, folder.path(), runs, steps)?;
    }
    Ok(())
}

/// Runs all backends in turns and prints a row for each.
fn compare(case: &Case, folder: &Path, runs: usize, steps: usize) -> Outcome<()> {
    let mut all: Vec<Outcome<Vec<Took>>> = stock::BACKENDS.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..runs.max(1) {
        for (backend, took) in stock::BACKENDS.iter().zip(&mut all) {
            if let Ok(list) = took {
                match start(backend, folder, steps) {
                    Ok(one) => list.push(one),
                    // Some backends lack an operation that the model needs; it is named on stderr.
                    Err(error) => *took = Err(error),
                }
            }
        }
    }
    let Some(Ok(ours)) = all.first() else { return Err("downshift's own steps failed".into()) };
    for (backend, took) in stock::BACKENDS.iter().zip(&all) {
        match took {
            Ok(took) => report(case, backend, took, ours)?,
            Err(_) => println!("| {} | {backend} | does not train it | – | – |", case.name),
        }
    }
    Ok(())
}

/// Prints the row of a backend.
fn report(case: &Case, backend: &str, took: &[Took], ours: &[Took]) -> Outcome<()> {
    for (one, own) in took.iter().zip(ours) {
        let (loss, expected) = (one.losses[0], own.losses[0]);
        if (loss - expected).abs() > MOST_APART * expected.max(1.0) {
            return Err(format!("{}, {backend}: the first loss is {loss}, not {expected}", case.name).into());
        }
    }
    let ratios: Vec<f64> = took.iter().zip(ours).map(|(one, own)| one.step_s / own.step_s).collect();
    let [least, most] = [f64::min, f64::max].map(|of| ratios.iter().copied().reduce(of).unwrap_or(f64::NAN));
    println!(
        "| {} | {backend} | {:.1} ms | **{:.1}** ({least:.1}, {most:.1}) | {:.0} MiB |",
        case.name,
        median(took.iter().map(|one| one.step_s * 1e3).collect()),
        median(ratios.clone()),
        median(took.iter().map(|one| one.peak_bytes as f64 / f64::from(1 << 20)).collect()),
    );
    Ok(())
}

/// Starts a process that takes some steps on a backend, and reads what they took.
fn start(backend: &str, folder: &Path, steps: usize) -> Outcome<Took> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--backend", backend, "--steps", &steps.to_string(), "--folder"]).arg(folder);
    read_figures(&mut command)
}
