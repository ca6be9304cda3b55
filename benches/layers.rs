//! The cost of measuring layers, as CPU time: one measurement of all parameters of a shipped model, repeated, beside a
//! step of its training. Their ratio at the default rhythm of evaluations is the share of a run. (The difference between
//! runs with and without is far below the noise of a step.)
//!
//! `cargo bench --bench layers -- [--steps 40] [--times 100]` (about a minute)

#[path = "help/in_process.rs"]
mod in_process;

use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{Tensor, TensorData};
use downshift::burn;
use downshift::config::knobs::Preset;
use downshift::config::run::{Run, Source};
use downshift::protocol::device::DeviceChoice;
use downshift::protocol::worker::Event;
use downshift::shipped;
use downshift::store::checkpoint;
use downshift::train::job::{EventSink, StepPulse};
use downshift::train::layers::{UpdateObserver, layers};
use downshift::train::registry::Registry;
use downshift::train::worker::run_in_process;
use in_process::worker_args;
use rustix::time::{ClockId, clock_gettime};
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc::channel};

/// A result of the benchmark; any error ends it.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The largest share of a step that the measurement may take at the default rhythm.
const MOST_SHARE: f64 = 0.005;

/// A shipped run, and the steps between its evaluations.
const CASES: [(&str, f64); 2] = [("digits", 45.0), ("text", 400.0)];

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let steps: u64 = after("--steps").map_or(Ok(40), |text| text.parse())?;
    let times: usize = after("--times").map_or(Ok(100), |text| text.parse())?;
    for (name, rhythm) in CASES {
        let dir = tempfile::tempdir()?;
        let step_ms = train(name, steps, dir.path())?;
        let parameters = parameters_of(&dir.path().join(checkpoint::relative_path(steps)))?;
        let mut took = Vec::new();
        for _ in 0..times {
            let begun = cpu_ms();
            measure(&parameters)?;
            took.push(cpu_ms() - begun);
        }
        took.sort_by(f64::total_cmp);
        let (cost, share) = (took[times / 2], took[times / 2] / (rhythm * step_ms));
        println!(
            "{name}: {cost:.3} ms of CPU time for {} parameters ({:.3} … {:.3}), {step_ms:.2} ms a step: {:.4} % at one \
             in {rhythm} steps ({})",
            parameters.len(),
            took[times / 4],
            took[times * 3 / 4],
            share * 100.0,
            if share <= MOST_SHARE { "holds" } else { "DOES NOT HOLD" }
        );
    }
    Ok(())
}

/// A parameter: its path, shape and values.
type Parameter = (String, Vec<usize>, Vec<f32>);

/// Measures the layers as an evaluation does, with the weights in place of the gradient and of the weights before.
fn measure(parameters: &[Parameter]) -> Outcome<()> {
    let mut observer = UpdateObserver::<Flex>::default();
    for (path, shape, values) in parameters {
        match shape.len() {
            1 => observe::<1>(&mut observer, path, shape, values),
            2 => observe::<2>(&mut observer, path, shape, values),
            4 => observe::<4>(&mut observer, path, shape, values),
            rank => return Err(format!("{path} has rank {rank}").into()),
        }
    }
    let found = layers(&observer.read()?, &BTreeSet::new());
    if found.is_empty() { Err("no layers".into()) } else { Ok(()) }
}

fn observe<const D: usize>(observer: &mut UpdateObserver<Flex>, path: &str, shape: &[usize], values: &[f32]) {
    let tensor = Tensor::<Flex, D>::from_data(TensorData::new(values.to_vec(), shape.to_vec()), &FlexDevice);
    observer.observe_gradient(path, &tensor);
    observer.observe_change(tensor.clone(), tensor);
}

/// Returns the parameters of a checkpoint.
fn parameters_of(path: &Path) -> Outcome<Vec<Parameter>> {
    let loaded = checkpoint::load(path)?;
    let file = SafeTensors::deserialize(loaded.files.get(checkpoint::MODEL).ok_or("no weights")?)?;
    let values = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
    Ok(file.iter().map(|(path, view)| (path.to_owned(), view.shape().to_vec(), values(view.data()))).collect())
}

/// Trains a shipped run in this process; returns the CPU time of a step.
fn train(name: &str, steps: u64, run_dir: &Path) -> Outcome<f64> {
    let task = if name == "text" { "lm" } else { "vision" };
    let args = worker_args(run_dir, task, preset(name, steps)?, DeviceChoice::Cpu);
    let clock = Arc::new(StepClock::default());
    let sink: Arc<dyn EventSink> = Arc::<StepClock>::clone(&clock);
    let (_give, orders) = channel();
    run_in_process(&args, &Registry::with_builtin(), &sink, orders, Arc::new(StepPulse::default()))
        .map_err(|failed| failed.message)?;
    let at = clock.0.lock().unwrap_or_else(PoisonError::into_inner);
    let [first, .., last] = at[..] else { return Err("too few steps".into()) };
    Ok((last - first) / (at.len() - 1) as f64)
}

/// Returns the knobs of a shipped run, for a few steps and with hardly any validation samples.
fn preset(name: &str, steps: u64) -> Outcome<Preset> {
    let (file, text) = shipped::run_file(Path::new(name)).ok_or("no such run file")?;
    let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let overrides = [
        set("training.epochs", "null"),
        set("training.steps", &steps.to_string()),
        set("evaluation.every", "never"),
        set("checkpoint.every", "never"),
        set("data.validation", if name == "text" { "0.001" } else { "0.01" }),
    ];
    let source = Source { file, text, base: Path::new("."), overrides: &overrides };
    let run = Run::read(&source, &Registry::with_builtin()).map_err(|refusal| refusal.to_string())?;
    Ok(run.rungs[0].preset.clone())
}

/// The CPU time of this process at each step, in milliseconds.
#[derive(Default)]
struct StepClock(Mutex<Vec<f64>>);

impl EventSink for StepClock {
    fn send(&self, event: Event) {
        if matches!(event, Event::Step(_)) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(cpu_ms());
        }
    }
}

/// Returns the CPU time of this process, of all its threads, in milliseconds.
fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}
