//! downshift beside PyTorch on the CPU: the same weights, batches, optimizer and number of threads.
//!
//! `cargo bench --bench torch -- --python env/bin/python [--case text] [--runs 10] [--steps 20] [--compiled] [--profile]`
//!
//! Each run of each side is a process of its own, and the sides take turns. A case fails if one of the first losses
//! differs by more than [`MOST_APART`]. A ratio above 1 means that downshift is faster, or needs less memory.

#[path = "torch/cases.rs"]
mod cases;
#[path = "help/in_process.rs"]
mod in_process;
#[path = "torch/ours.rs"]
mod ours;
#[path = "torch/took.rs"]
mod took;
#[path = "help/vocabulary.rs"]
mod vocabulary;

use cases::{CASES, Case};
use std::path::Path;
use std::process::Command;
use took::{COMPARED, MOST_APART, Outcome, Took, median, read_figures};

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let steps: usize = after("--steps").map_or(Ok(20), |text| text.parse())?;
    if let Some(folder) = after("--ours") {
        return ours::run(Path::new(&folder), steps);
    }
    let runs: usize = after("--runs").map_or(Ok(10), |text| text.parse())?;
    let python = after("--python").unwrap_or_else(|| "python3".to_owned());
    let only = after("--case");
    let threads = std::thread::available_parallelism()?.to_string();
    println!("{runs} runs of {steps} steps on {threads} threads\n");
    println!("| case | downshift ms | PyTorch ms | ratio (worst, best) | memory | of PyTorch's |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut ratios = Vec::new();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|only| only == case.name)) {
        let folder = tempfile::tempdir()?;
        ours::prepare(case, folder.path())?;
        for way in if has("--compiled") { &["eager", "compiled"][..] } else { &["eager"] } {
            let pairs = measure(folder.path(), &python, way, [runs, steps], &threads)?;
            let ratio = report(case, way, &pairs)?;
            if *way == "eager" {
                ratios.push(ratio);
            }
            if has("--profile") && ratio < 1.0 {
                theirs(folder.path(), &python, &["--way", way, "--profile"], steps, &threads)?;
            }
        }
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    println!("\ngeometric mean of the ratios to PyTorch eager: {mean:.2}");
    Ok(())
}

/// Runs both sides in turns.
fn measure(
    folder: &Path,
    python: &str,
    way: &str,
    [runs, steps]: [usize; 2],
    threads: &str,
) -> Outcome<Vec<[Took; 2]>> {
    let pair = |run: usize| {
        let ours = || {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--ours").arg(folder).args(["--steps", &steps.to_string()]);
            read_figures(command.env("RAYON_NUM_THREADS", threads))
        };
        let theirs = || theirs(folder, python, &["--way", way], steps, threads);
        // The sides take turns in being first, so that neither side always runs on the warmer machine.
        if run.is_multiple_of(2) {
            let ours = ours()?;
            Ok([ours, theirs()?])
        } else {
            let theirs = theirs()?;
            Ok([ours()?, theirs])
        }
    };
    (0..runs.max(1)).map(pair).collect()
}

fn theirs(folder: &Path, python: &str, more: &[&str], steps: usize, threads: &str) -> Outcome<Took> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/torch_step.py");
    let mut command = Command::new(python);
    command.arg(script).arg(folder).args(["--steps", &steps.to_string(), "--threads", threads]).args(more);
    read_figures(&mut command)
}

/// Prints a row of the table and returns the median ratio of the step times.
fn report(case: &Case, way: &str, pairs: &[[Took; 2]]) -> Outcome<f64> {
    let of = |side: usize, value: fn(&Took) -> f64| median(pairs.iter().map(|pair| value(&pair[side])).collect());
    for [ours, theirs] in pairs {
        for (step, (ours, theirs)) in ours.losses.iter().zip(&theirs.losses).enumerate() {
            if (ours - theirs).abs() > MOST_APART * theirs.max(1.0) {
                return Err(format!("{}: loss {ours} at step {}, PyTorch {theirs}", case.name, step + 1).into());
            }
        }
        if ours.losses.len().min(theirs.losses.len()) < COMPARED {
            return Err(format!("{}: fewer than {COMPARED} losses", case.name).into());
        }
    }
    let ratios: Vec<f64> = pairs.iter().map(|[ours, theirs]| theirs.step_s / ours.step_s).collect();
    let [worst, best] = [f64::min, f64::max].map(|of| ratios.iter().copied().reduce(of).unwrap_or(f64::NAN));
    let (step, memory) = (|took: &Took| took.step_s * 1e3, |took: &Took| took.peak_bytes as f64 / f64::from(1 << 20));
    let ratio = median(ratios.clone());
    println!(
        "| {}, {way} | {:.1} | {:.1} | **{ratio:.2}** ({worst:.2}, {best:.2}) | {:.0} MiB | {:.2} |",
        case.name,
        of(0, step),
        of(1, step),
        of(0, memory),
        of(0, memory) / of(1, memory),
    );
    Ok(ratio)
}
