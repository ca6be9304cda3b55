//! Writes a finished run of any length through the real store, so that anyone can repeat the cockpit
//! benchmarks: six metrics per step, skipped steps, one-step spikes, three attempts on two rungs,
//! evaluations, checkpoints, a journal. The same arguments produce the same run.
//!
//! `cargo run --release --example long_run -- --steps 1000000 --runs-dir runs`

mod make;

use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut steps, mut runs, mut name) = (1_000_000, PathBuf::from("runs"), "long".to_owned());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--steps" => steps = value()?.parse()?,
            "--runs-dir" => runs = value()?.into(),
            "--name" => name = value()?,
            _ => return Err(format!("{word} is unknown; known: --steps N, --runs-dir DIR, --name NAME").into()),
        }
    }
    let begun = Instant::now();
    let run = make::long_run(&runs, &name, steps)?;
    println!("{} holds {steps} steps, written in {:.1} s", run.path().display(), begun.elapsed().as_secs_f64());
    println!("open it: downshift attach {} --runs-dir {}", run.name(), runs.display());
    Ok(())
}
