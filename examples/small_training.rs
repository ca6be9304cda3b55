//! A training of a small linear model that saves, resumes, and leaves out whatever it is told to.
//!
//! ```text
//! small_training --out DIR --batch 8 --forget order,scheduler --resume DIR/checkpoint-20
//! ```
//! It can forget, when it resumes: `order`, `random`, `scheduler`, `moments`, `weights`, `everything` (it starts over).
//! At any time: `seed` (each start trains otherwise), `batch` (it ignores `--batch`), `resume` (it fails to resume).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::Duration;

type Failing<T> = Result<T, Box<dyn std::error::Error>>;

const SIZE: usize = 6;

/// Everything that a step depends on.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
struct State {
    step: u64,
    weights: [f64; SIZE],
    moments: [f64; SIZE],
    /// Steps of the learning rate's decay.
    scheduled: u64,
    /// The next sample.
    sample: u64,
    random: u64,
}

struct Arguments(Vec<String>);

impl Arguments {
    fn value(&self, flag: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == flag)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn number(&self, flag: &str, otherwise: u64) -> u64 {
        self.value(flag).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    }

    fn forgets(&self, part: &str) -> bool {
        self.value("--forget").is_some_and(|parts| parts.split(',').any(|other| other == part))
    }
}

fn main() -> Failing<()> {
    let arguments = Arguments(std::env::args().skip(1).collect());
    let start = if arguments.forgets("seed") { u64::from(std::process::id()) * 1000 } else { 0 };
    let fresh =
        State { step: 0, weights: [0.0; SIZE], moments: [0.0; SIZE], scheduled: 0, sample: start, random: start };
    let state = match arguments.value("--resume") {
        Some(path) => resume(Path::new(path), fresh, &arguments)?,
        None => fresh,
    };
    train(state, &arguments)
}

/// Reads a checkpoint, less what is forgotten.
fn resume(path: &Path, fresh: State, arguments: &Arguments) -> Failing<State> {
    if arguments.forgets("resume") {
        println!("KeyError: 'optimizer'");
        exit(1);
    }
    if arguments.forgets("everything") {
        return Ok(fresh);
    }
    let mut state: State = serde_json::from_slice(&fs::read(path.join("state.json"))?)?;
    if arguments.forgets("order") {
        state.sample = fresh.sample;
    }
    if arguments.forgets("random") {
        state.random = 1 << 40;
    }
    if arguments.forgets("scheduler") {
        state.scheduled = 0;
    }
    if arguments.forgets("moments") {
        state.moments = [0.0; SIZE];
    }
    if arguments.forgets("weights") {
        state.weights = fresh.weights;
    }
    Ok(state)
}

fn train(mut state: State, arguments: &Arguments) -> Failing<()> {
    let out = arguments.value("--out").map_or_else(|| PathBuf::from("out"), PathBuf::from);
    let batch = if arguments.forgets("batch") { 8 } else { arguments.number("--batch", 8) };
    let (steps, every) = (arguments.number("--steps", u64::MAX), arguments.number("--every", 10));
    while state.step < steps {
        std::thread::sleep(Duration::from_millis(arguments.number("--step-ms", 10)));
        let (loss, rate) = take_step(&mut state, batch);
        println!("step {} loss {loss:.6} lr {rate:.6}", state.step);
        if state.step.is_multiple_of(every) {
            save(&out.join(format!("checkpoint-{}", state.step)), &state)?;
        }
    }
    Ok(())
}

fn take_step(state: &mut State, batch: u64) -> (f64, f64) {
    let (mut gradient, mut loss) = ([0.0; SIZE], 0.0);
    for _ in 0..batch {
        let id = state.sample;
        state.sample += 1;
        state.random += 1;
        let x: [f64; SIZE] = std::array::from_fn(|index| number(id * 31 + index as u64));
        // A random augmentation of the target.
        let noise = 0.02 * number(state.random ^ 0xABCD);
        let target: f64 = x.iter().enumerate().map(|(index, x)| x * (index as f64 + 1.0)).sum::<f64>() + noise;
        let error = x.iter().zip(&state.weights).map(|(x, weight)| x * weight).sum::<f64>() - target;
        loss += error * error / batch as f64;
        for (slot, x) in gradient.iter_mut().zip(x) {
            *slot += 2.0 * error * x / batch as f64;
        }
    }
    let rate = 0.02 * 0.99_f64.powf(state.scheduled as f64);
    for ((weight, moment), gradient) in state.weights.iter_mut().zip(&mut state.moments).zip(gradient) {
        *moment = 0.6 * *moment + gradient;
        *weight -= rate * *moment;
    }
    state.step += 1;
    state.scheduled += 1;
    (loss, rate)
}

/// Saves in one move, so that no kill leaves half of it.
fn save(folder: &Path, state: &State) -> Failing<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("state.new"), serde_json::to_vec(state)?)?;
    Ok(fs::rename(folder.join("state.new"), folder.join("state.json"))?)
}

/// Returns a number in -1 to 1 for a key.
fn number(key: u64) -> f64 {
    let mut hash = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((hash ^ (hash >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}
