//! downshift's side: the files of a case, and one run over them in this process.

use super::cases::Case;
use super::in_process::worker_args;
use super::took::{COMPARED, Outcome, Took};
use super::vocabulary;
use downshift::config::knobs::Preset;
use downshift::config::run::{Run, Source};
use downshift::protocol::device::DeviceChoice;
use downshift::protocol::worker::Event;
use downshift::recipe::order::epoch_order;
use downshift::shipped;
use downshift::store::checkpoint;
use downshift::train::job::{EventSink, StepPulse};
use downshift::train::registry::Registry;
use downshift::train::task::{BatchRequest, Split, Task};
use downshift::train::tasks::{lm::LanguageModel, vision::Vision};
use downshift::train::{memory, native, worker::run_in_process};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc::channel};
use std::time::Instant;

/// A rate at which no weight changes.
const STILL: f64 = 1e-30;

/// Writes what both sides start from: the run, its initial weights and its first batches.
pub fn prepare(case: &Case, folder: &Path) -> Outcome<()> {
    let (file, text) = shipped::run_file(Path::new(case.file)).ok_or("the run file is not shipped")?;
    let mut overrides: Vec<(String, String)> = [
        ("training.epochs", "null"),
        ("training.steps", "100000"),
        ("optimizer.schedule", "{ kind: constant, warmup: 0, final: 0 }"),
        ("optimizer.max_norm", "1.0"),
        ("evaluation.every", "1000000 steps"),
        ("checkpoint.every", "never"),
        ("ladder", "[]"),
    ]
    .iter()
    .chain(case.set)
    .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
    .collect();
    if let Some(words) = case.vocabulary {
        let tokenizer = folder.join("tokenizer.json");
        std::fs::write(&tokenizer, vocabulary::of_words(words).to_string())?;
        overrides.push(("data.tokenizer".to_owned(), tokenizer.display().to_string()));
    }
    let source = Source { file, text, base: folder, overrides: &overrides };
    let run = Run::read(&source, &Registry::with_builtin()).map_err(|refusal| refusal.to_string())?;
    let preset = run.rungs.first().ok_or("the run file has no rung")?.preset.clone();
    std::fs::write(folder.join("preset.json"), serde_json::to_vec(&(&run.task, &preset))?)?;
    let mut settings = json!({ "optimizer": preset.optimizer, "trained": case.trained });
    if let Some(shape) = case.shape {
        settings["shape"] = shape();
    }
    std::fs::write(folder.join("case.json"), settings.to_string())?;
    write_batches(&run.task, &preset, folder)?;
    // The checkpoint after a step that changes nothing holds the initial weights.
    let mut still = preset;
    (still.optimizer.lr, still.training.steps) = (STILL, Some(1));
    train(&run.task, still, &folder.join("still"))?;
    let saved = checkpoint::list(&folder.join("still"));
    let saved = saved.last().ok_or("there is no checkpoint of the initial weights")?;
    std::fs::copy(saved.path.join(checkpoint::MODEL), folder.join("weights.safetensors"))?;
    Ok(())
}

/// Writes the first batches of a run.
fn write_batches(task: &str, preset: &Preset, folder: &Path) -> Outcome<()> {
    let size = preset.training.micro_batch as usize;
    let mut batches = Vec::new();
    if task == Vision::NAME {
        let data = load::<Vision>(preset)?;
        for indices in orders::<Vision>(&data, preset, size) {
            let batch = batch::<Vision>(&data, preset, &indices);
            batches.push((bytes(&batch.pixels, f32::to_le_bytes), bytes(&batch.labels, i32::to_le_bytes)));
        }
        // The shipped digits are one channel of 8 × 8 pixels.
        return save(folder, &batches, (Dtype::F32, vec![size, 1, 8, 8]), vec![size]);
    }
    let data = load::<LanguageModel>(preset)?;
    let mut length = 0;
    for indices in orders::<LanguageModel>(&data, preset, size) {
        let batch = batch::<LanguageModel>(&data, preset, &indices);
        length = batch.inputs.len() / size;
        batches.push((bytes(&batch.inputs, i32::to_le_bytes), bytes(&batch.targets, i32::to_le_bytes)));
    }
    save(folder, &batches, (Dtype::I32, vec![size, length]), vec![size, length])
}

fn load<T: Task>(preset: &Preset) -> Outcome<T::Data> {
    let data: T::DataConfig = serde_json::from_value(serde_json::to_value(&preset.data)?)?;
    let model: T::ModelConfig = serde_json::from_value(serde_json::to_value(&preset.model)?)?;
    Ok(T::load(&data, &model, preset.training.seed)?)
}

/// Returns the samples of the first batches.
fn orders<T: Task>(data: &T::Data, preset: &Preset, size: usize) -> Vec<Vec<u32>> {
    let order = epoch_order(preset.training.seed, 0, T::len(data, Split::Training));
    order.chunks_exact(size).take(COMPARED).map(<[u32]>::to_vec).collect()
}

fn batch<T: Task>(data: &T::Data, preset: &Preset, indices: &[u32]) -> T::Batch {
    T::batch(data, BatchRequest { split: Split::Training, indices, epoch: 0, seed: preset.training.seed })
}

fn bytes<N: Copy>(values: &[N], write: fn(N) -> [u8; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| write(*value)).collect()
}

fn save(
    folder: &Path,
    batches: &[(Vec<u8>, Vec<u8>)],
    (dtype, inputs): (Dtype, Vec<usize>),
    targets: Vec<usize>,
) -> Outcome<()> {
    let all = |shape: Vec<usize>| [vec![batches.len()], shape].concat();
    let joined = [0, 1].map(|side| {
        let of = |(inputs, targets): &(Vec<u8>, Vec<u8>)| if side == 0 { inputs.clone() } else { targets.clone() };
        batches.iter().flat_map(of).collect::<Vec<u8>>()
    });
    let views = [
        ("inputs", TensorView::new(dtype, all(inputs), &joined[0])?),
        ("targets", TensorView::new(Dtype::I32, all(targets), &joined[1])?),
    ];
    std::fs::write(folder.join("batches.safetensors"), safetensors::serialize(views, None)?)?;
    Ok(())
}

/// Trains on the compared steps and then `steps` more, and prints what it took.
pub fn run(folder: &Path, steps: usize) -> Outcome<()> {
    // As the worker does.
    native::join_pool();
    let before = memory::resident_bytes().unwrap_or(0);
    let (task, mut preset): (String, Preset) = serde_json::from_slice(&std::fs::read(folder.join("preset.json"))?)?;
    preset.training.steps = Some((COMPARED + steps) as u64);
    let place = tempfile::tempdir()?;
    let Steps { ends: seen, peak } = train(&task, preset, place.path())?;
    let peak_bytes = peak.saturating_sub(before);
    let losses = seen.iter().take(COMPARED).map(|(_, loss)| *loss).collect();
    let mut times: Vec<f64> =
        seen.windows(2).skip(COMPARED - 1).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let middle = *times.get(times.len() / 2).ok_or("no step was measured")?;
    println!("{}", serde_json::to_string(&Took { losses, step_s: middle, peak_bytes })?);
    Ok(())
}

#[derive(Default, Clone)]
struct Steps {
    /// The end and the loss of each step.
    ends: Vec<(Instant, f64)>,
    /// The peak of resident memory at the last of them: the evaluation and the checkpoint after it are not compared.
    peak: u64,
}

#[derive(Default)]
struct Watch(Mutex<Steps>);

impl EventSink for Watch {
    fn send(&self, event: Event) {
        if let Event::Step(step) = event {
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.ends.push((Instant::now(), step.loss.unwrap_or(f64::NAN)));
            seen.peak = memory::peak_bytes().unwrap_or(0);
        }
    }
}

fn train(task: &str, preset: Preset, folder: &Path) -> Outcome<Steps> {
    std::fs::create_dir_all(folder.join("checkpoints"))?;
    let seen = Arc::new(Watch::default());
    let (_orders, received) = channel();
    let args = worker_args(folder, task, preset, DeviceChoice::Cpu);
    let sink: Arc<dyn EventSink> = Arc::<Watch>::clone(&seen);
    run_in_process(&args, &Registry::with_builtin(), &sink, received, Arc::new(StepPulse::default()))
        .map_err(|failed| failed.message)?;
    let seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(seen.clone())
}
