//! The cost of a checkpoint: the pause in training, the slowdown while the save is written in the
//! background, and the share of a run spent on saves. For comparison: the same save with training waiting for
//! the disk, and the bandwidth of a plain copy of the same size, taken in this process between the two.
//!
//! `cargo bench --bench save -- [--gigabytes 1] [--saves 5] [--device cpu] [--dir .]`
//! (takes a few minutes and five times the state in memory; all saves stay in `--dir` until the end)

#[path = "help/in_process.rs"]
mod in_process;
#[path = "save/layers.rs"]
mod layers;
#[path = "save/measure.rs"]
mod measure;

use downshift::config::knobs::Preset;
use downshift::protocol::device::DeviceChoice;
use downshift::train::job::{EventSink, StepPulse, WorkerArgs};
use downshift::train::registry::Registry;
use downshift::train::worker::run_in_process;
use in_process::worker_args;
use layers::{Layers, WIDTH, layers_of};
use measure::{Bandwidth, Conductor, Figures, bandwidth};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc::channel};

/// A result of the benchmark; any error ends it.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Longest allowed pause, relative to a plain copy.
const MOST_PAUSE: f64 = 1.2;
/// Save interval in seconds for the reported share of the run.
const RHYTHM_S: f64 = 60.0;
/// Largest share of a run that saves may cost at that interval.
const MOST_SHARE: f64 = 0.01;
/// The state size that figures are extrapolated to, in bytes.
const LARGE: f64 = 20e9;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let gigabytes: f64 = after("--gigabytes").map_or(Ok(1.0), |text| text.parse())?;
    let saves: usize = after("--saves").map_or(Ok(5), |text| text.parse())?;
    let device: DeviceChoice = after("--device").map_or(Ok(DeviceChoice::Cpu), |text| text.parse())?;
    let dir = tempfile::tempdir_in(after("--dir").map_or_else(std::env::temp_dir, PathBuf::from))?;

    let layers = layers_of(gigabytes * 1e9);
    println!("{layers} layers of {WIDTH} × {WIDTH}, {saves} saves, on {device} …");
    let (give, orders) = channel();
    let conductor = Arc::new(Conductor::new(saves, give));
    let sink: Arc<dyn EventSink> = Arc::<Conductor>::clone(&conductor);
    let args = args(dir.path(), layers, device.clone())?;
    run_in_process(&args, &Registry::new().with::<Layers>(), &sink, orders, Arc::new(StepPulse::default()))
        .map_err(|failed| failed.message)?;
    let figures = conductor.figures()?;
    let copy = bandwidth(figures.bytes, &device)?;
    print(&figures, &copy);
    Ok(())
}

fn args(run_dir: &Path, layers: usize, device: DeviceChoice) -> Outcome<WorkerArgs> {
    let preset: Preset = serde_json::from_value(json!({
        "data": {},
        "model": { "layers": layers },
        "training": { "steps": 1_000_000, "micro_batch": 4, "seed": 7 },
        "optimizer": { "lr": 1e-5 },
        "evaluation": { "every": "never" },
        "checkpoint": { "every": "never" },
    }))?;
    Ok(worker_args(run_dir, "layers", preset, device))
}

fn print(figures: &Figures, copy: &Bandwidth) {
    let Figures { bytes, pause_s, slowed_s, behind_s, blocking_s, step_s, steps_behind } = *figures;
    let gb = bytes as f64 / 1e9;
    let copied_s = bytes as f64 / copy.bytes_per_s;
    let cost_s = pause_s + slowed_s;
    let (share, blocking_share) = (cost_s / (RHYTHM_S + cost_s), blocking_s / (RHYTHM_S + blocking_s));
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let held = |holds: bool| if holds { "holds" } else { "DOES NOT HOLD" };
    let large = LARGE / bytes as f64;
    println!("\nstate {gb:.2} GB, {:.1} steps under way per save of {step_s:.2} s each; {}", steps_behind, copy.how);
    println!("a copy of {gb:.2} GB takes {copied_s:.3} s ({:.1} GB/s)\n", copy.bytes_per_s / 1e9);
    println!("| a save | training waits for | slower steps | of a run, one each {RHYTHM_S:.0} s |");
    println!("|---|---:|---:|---:|");
    println!("| behind training ({behind_s:.2} s in all) | {pause_s:.3} s | {slowed_s:.2} s | {} |", percent(share));
    println!("| blocking | {blocking_s:.2} s | – | {} |", percent(blocking_share));
    let large_cost_s = cost_s * large;
    println!(
        "| at {:.0} GB, carried on from that: behind | {:.2} s | {:.1} s | {} |",
        LARGE / 1e9,
        pause_s * large,
        slowed_s * large,
        percent(large_cost_s / (RHYTHM_S + large_cost_s))
    );
    let large_s = blocking_s * large;
    println!(
        "| at {:.0} GB: blocking | {large_s:.1} s | – | {} |",
        LARGE / 1e9,
        percent(large_s / (RHYTHM_S + large_s))
    );
    let ratio = pause_s / copied_s;
    println!("\npause ÷ copy = {ratio:.2} (at most {MOST_PAUSE}): {}", held(ratio <= MOST_PAUSE));
    println!("share of the run {} (at most {}): {}", percent(share), percent(MOST_SHARE), held(share <= MOST_SHARE));
}
