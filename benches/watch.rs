//! The cost of being watched: step time under keeper, probe and cockpit, compared with the same step of the
//! worker alone. Pairs are interleaved, so that other load on the machine affects both; the worker itself
//! takes both times.
//!
//! `cargo bench --bench watch -- [PAIRS]` (20 pairs, about three minutes; needs tmux)

mod help;

use downshift::config::run::{Run, Source};
use downshift::shipped;
use downshift::store::run_dir::RunDir;
use downshift::train::registry::Registry;
use help::{Outcome, PROGRAM, Tmux, median, newest, rows_of_worker, wait_for};
use std::path::Path;
use std::process::{Command, Stdio};

/// Steps per measurement, and uncounted warm-up steps at its start.
const STEPS: usize = 240;
const WARM_UP: usize = 40;
const KNOBS: [(&str, &str); 3] =
    [("training.steps", "240"), ("evaluation.every", "never"), ("checkpoint.every", "never")];

fn main() -> Outcome<()> {
    let pairs = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(20);
    let mut ratios = Vec::new();
    println!("pair   alone ms/step   watched ms/step   ratio");
    for pair in 1..=pairs {
        // Alternate which one goes first.
        let (alone, watched) = if pair % 2 == 0 {
            let alone = alone()?;
            (alone, watched()?)
        } else {
            let watched = watched()?;
            (alone()?, watched)
        };
        println!("{pair:>4}   {alone:>13.3}   {watched:>15.3}   {:.4}", watched / alone);
        ratios.push(watched / alone);
    }
    println!("median ratio of {pairs} pairs: {:.4} (aim: 1.02 at most)", median(ratios));
    Ok(())
}

fn alone() -> Outcome<f64> {
    let place = tempfile::tempdir()?;
    let (_, text) = shipped::run_file(Path::new("digits")).ok_or("no digits")?;
    let overrides: Vec<(String, String)> = KNOBS
        .iter()
        .chain(&[("training.epochs", "null")])
        .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
        .collect();
    let source = Source { file: "digits", text, base: place.path(), overrides: &overrides };
    let dir = RunDir::create(place.path(), &Run::read(&source, &Registry::with_builtin())?)?;
    let mut worker = Command::new(PROGRAM)
        .args(["worker", "--rung", "0", "--attempt", "1", "--device", "cpu", "--run-dir"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let listening = worker.stdin.take();
    worker.wait()?;
    drop(listening);
    step_ms(&dir)
}

fn watched() -> Outcome<f64> {
    let place = tempfile::tempdir()?;
    let runs = place.path().join("runs");
    let knobs: Vec<String> = KNOBS.iter().map(|(path, value)| format!("--set {path}={value}")).collect();
    let knobs = knobs.join(" ");
    let words =
        format!("{PROGRAM} run digits --device cpu --set training.epochs=null {knobs} --runs-dir {}", runs.display());
    let tmux = Tmux::start(&words)?;
    let dir = wait_for("a run", || newest(&runs))?;
    wait_for("its last checkpoint", || rows_of_worker(&dir).ok().filter(|rows| rows.len() >= STEPS))?;
    wait_for("the screen to show the end", || tmux.screen().contains("finished").then_some(()))?;
    step_ms(&dir)
}

/// Returns the wall-clock time per step after warm-up.
fn step_ms(dir: &RunDir) -> Outcome<f64> {
    let rows = rows_of_worker(dir)?;
    let (first, last) = (rows.get(WARM_UP).ok_or("too few steps")?, rows.last().ok_or("no steps")?);
    Ok((last.time_ms - first.time_ms) as f64 / (last.step - first.step) as f64)
}
