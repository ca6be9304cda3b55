//! Resuming from a checkpoint: choosing one, checking that it fits, and loading its values onto the device.

use super::failure;
use super::job::WorkerArgs;
use super::load_values::load_values;
use super::lora::rank_change::{self, RankChange, Replaced};
use super::optimizer::AdamW;
use super::params;
use super::params::fit::Fit;
use super::params::safetensors_file::{shapes_in_file, tensor_data};
use super::stored_tensor::Masters;
use burn::module::AutodiffModule;
use burn::tensor::{
    TensorData,
    backend::{AutodiffBackend, Backend},
};
use downshift_core::format::counted;
use downshift_core::protocol::worker::{Failed, Level, Saved};
use downshift_core::store::checkpoint::classes::PictureClasses;
use downshift_core::store::checkpoint::{self, CheckpointError, Loaded, MODEL, OPTIMIZER, STATE, state::TrainState};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// A message to report after the worker's hello.
pub type Note = (Level, String);

/// Finds the checkpoint to resume from; `None` for a fresh start.
///
/// # Errors
/// Returns an error when the requested checkpoint is unusable, when one is required and none verifies, or
/// when all existing ones are damaged: a run never starts from scratch over the remains of another.
pub fn find_checkpoint(args: &WorkerArgs, notes: &mut Vec<Note>) -> Result<Option<Loaded>, Failed> {
    if let Some(step) = args.from {
        let path = args.run_dir.join(checkpoint::relative_path(step));
        let loaded = checkpoint::load(&path).and_then(|loaded| check_usable(&loaded).map(|()| loaded));
        return loaded.map(Some).map_err(failure::unusable_checkpoint);
    }
    let (loaded, rejected) = checkpoint::newest_that(&args.run_dir, check_usable);
    if loaded.is_none() && (args.require_checkpoint || !rejected.is_empty()) {
        let folder = args.run_dir.join(checkpoint::FOLDER);
        let reasons: Vec<String> = rejected.iter().map(|(_, error)| error.to_string()).collect();
        let why = if reasons.is_empty() { "it is empty".to_owned() } else { reasons.join("; ") };
        let text =
            format!("no usable checkpoint in {}: {why}; restore a good copy, or start a new run", folder.display());
        return Err(failure::unusable_checkpoint(text));
    }
    notes.extend(rejected.into_iter().map(|(_, error)| (Level::Warn, format!("skipped a checkpoint: {error}"))));
    Ok(loaded)
}

/// Checks that training can continue from a checkpoint's content.
fn check_usable(loaded: &Loaded) -> Result<(), CheckpointError> {
    check_finite(loaded)?;
    let state = TrainState::in_files(&loaded.files);
    // An unreadable file is a separate problem, reported by the restore.
    let Some(TrainState { step, position, .. }) = state else { return Ok(()) };
    let manifest = &loaded.manifest;
    if (step, position.samples) == (manifest.step, manifest.samples) {
        return Ok(());
    }
    let reason = format!(
        "it is from step {step} (clock {}), but the checkpoint is from step {} (clock {})",
        position.samples, manifest.step, manifest.samples
    );
    Err(CheckpointError::damaged(loaded.path.join(STATE), reason))
}

/// Checks that every value in a checkpoint is finite. The bytes may verify and still hold NaN; then the
/// checkpoint is as bad as one that does not verify.
fn check_finite(loaded: &Loaded) -> Result<(), CheckpointError> {
    find_not_finite(&loaded.files).map_or(Ok(()), |(name, tensor)| {
        let reason = format!("{tensor} contains NaN or infinity");
        Err(CheckpointError::damaged(loaded.path.join(name), reason))
    })
}

/// Returns the file and the name of a tensor with a value that is not finite.
pub fn find_not_finite(files: &BTreeMap<String, Vec<u8>>) -> Option<(&'static str, String)> {
    let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    [MODEL, OPTIMIZER].into_iter().find_map(|name| {
        // An unreadable file is a separate problem, reported by the restore.
        let tensors = SafeTensors::deserialize(files.get(name)?).ok()?;
        let sick = tensors.iter().find(|(_, view)| {
            view.dtype() == Dtype::F32 && !view.data().as_chunks().0.iter().all(|bytes| number(bytes).is_finite())
        });
        sick.map(|(tensor, _)| (name, tensor.to_owned()))
    })
}

/// Checks that the outputs of a classifier still stand for the classes they learned.
///
/// # Errors
/// Returns an error that names the classes that are gone or new.
pub fn check_classes(loaded: &Loaded, now: Option<&PictureClasses>) -> Result<(), Failed> {
    let before = TrainState::in_files(&loaded.files).and_then(|state| state.classes);
    let Some(difference) = before.zip(now).and_then(|(before, now)| before.difference(now)) else { return Ok(()) };
    Err(failure::unusable_checkpoint(format!(
        "the classes of the data changed since this checkpoint: {difference}; an output would stand for another class, \
         so rename the folders back, or start a new run"
    )))
}

/// A model and an optimizer, restored from a checkpoint.
pub struct Restored<M, B: Backend> {
    /// The model.
    pub model: M,
    /// The optimizer.
    pub optimizer: AdamW<B>,
    /// The training state at the checkpoint.
    pub state: TrainState,
    /// The checkpoint, as announced when it was saved.
    pub saved: Saved,
    /// Changes to adapters that did not fit as they were.
    pub rank_change: Option<RankChange>,
}

/// Loads the values of a checkpoint into a fresh model and optimizer.
///
/// # Errors
/// Returns an error when one of its files cannot be read, or when its parameters differ from the model's and
/// the run does not allow that.
pub fn restore_checkpoint<A, M>(
    loaded: &Loaded,
    model: M,
    mut optimizer: AdamW<A::InnerBackend>,
    args: &WorkerArgs,
    device: &A::Device,
    notes: &mut Vec<Note>,
) -> Result<Restored<M, A::InnerBackend>, Failed>
where
    A: AutodiffBackend,
    M: AutodiffModule<A>,
{
    let bytes = |name: &str| {
        let missing = || failure::unusable_checkpoint(format!("{} has no {name}", loaded.path.display()));
        loaded.files.get(name).ok_or_else(missing)
    };
    let unreadable = |name: &str, error: &dyn std::fmt::Display| {
        failure::unusable_checkpoint(format!("{}: cannot read {name}: {error}", loaded.path.display()))
    };
    let state: TrainState = serde_json::from_slice(bytes(STATE)?).map_err(|error| unreadable(STATE, &error))?;
    let weights = SafeTensors::deserialize(bytes(MODEL)?).map_err(|error| unreadable(MODEL, &error))?;
    let moments = SafeTensors::deserialize(bytes(OPTIMIZER)?).map_err(|error| unreadable(OPTIMIZER, &error))?;
    if weights.iter().any(|(_, view)| view.dtype() != Dtype::F32) {
        return Err(unreadable(MODEL, &"it contains values other than f32"));
    }
    if moments.iter().any(|(_, view)| !matches!(view.dtype(), Dtype::F32 | Dtype::U8)) {
        return Err(unreadable(OPTIMIZER, &"it contains values other than f32 and 8-bit codes"));
    }
    let change = rank_change::change_rank::<A, M>(&model, &weights);
    let mut rank_change = change.map_err(failure::device_error)?;
    let replaced = rank_change.as_mut().map(|change| mem::take(&mut change.replaced)).unwrap_or_default();
    let mut weights = CheckpointWeights { file: weights, replaced };
    let kept = matching_parameters::<A, M>(&model, &weights, args.migrate, notes)?;
    let mut shapes = params::parameter_shapes::<A, M>(&model);
    // Moments of replaced parameters start from zero.
    shapes.retain(|path, _| kept.contains(path) && !weights.replaced.contains_key(path));
    let times = [state.optimizer_time, state.architecture_time];
    let restored = optimizer.restore(times, &moments, &shapes, device);
    let restored = restored.map_err(failure::device_error)?;
    notes.extend(restored.into_iter().map(|text| (Level::Info, text)));
    let find = |path: &str| kept.contains(path).then(|| weights.take_values(path)).flatten();
    let model = load_values::<A, M>(model, find, &mut optimizer.masters, device);
    let saved = Saved {
        path: checkpoint::relative_path(state.step),
        step: state.step,
        samples: state.position.samples,
        bytes: loaded.manifest.bytes(),
        pause_ms: 0.0,
        total_ms: 0.0,
        eval_loss: state.own_eval_loss(),
        metrics: state.own_eval().map(|eval| eval.metrics.clone()).unwrap_or_default(),
    };
    Ok(Restored { model, optimizer, state, saved, rank_change })
}

/// Loads the weights of a checkpoint into a fresh model, to measure it.
///
/// # Errors
/// Returns an error when the file cannot be read, or its parameters differ from the model's.
pub fn load_weights<A, M>(loaded: &Loaded, model: M, device: &A::Device) -> Result<M, Failed>
where
    A: AutodiffBackend,
    M: AutodiffModule<A>,
{
    check_finite(loaded).map_err(failure::unusable_checkpoint)?;
    let unreadable =
        |why: String| failure::unusable_checkpoint(format!("{}: cannot read {MODEL}: {why}", loaded.path.display()));
    let bytes = loaded.files.get(MODEL).ok_or_else(|| unreadable("it is missing".to_owned()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| unreadable(error.to_string()))?;
    let mut weights = CheckpointWeights { file, replaced: Replaced::new() };
    matching_parameters::<A, M>(&model, &weights, false, &mut Vec::new())?;
    Ok(load_values::<A, M>(model, |path| weights.take_values(path), &mut Masters::new(), device))
}

/// Returns the model's parameters that the checkpoint has in the same shape.
fn matching_parameters<A: AutodiffBackend, M: AutodiffModule<A>>(
    model: &M,
    weights: &CheckpointWeights<'_>,
    migrate: bool,
    notes: &mut Vec<Note>,
) -> Result<BTreeSet<String>, Failed> {
    let shapes = params::parameter_shapes::<A, M>(model);
    let fit = Fit::between(&shapes, &weights.shapes());
    if !fit.is_whole() && !migrate {
        return Err(failure::unusable_checkpoint(format!(
            "the checkpoint does not match the model: {fit}; return to the rung that wrote it, or set `warm_start: true` on \
             this rung to keep the parameters that match"
        )));
    }
    let lost: BTreeSet<&String> = fit.missing.iter().chain(fit.reshaped.iter().map(|(path, ..)| path)).collect();
    if !fit.is_whole() {
        let kept = shapes.len() - lost.len();
        let text = format!(
            "kept {kept} of {} from the checkpoint and initialized the others: {fit}",
            counted(shapes.len() as u64, "parameter")
        );
        notes.push((Level::Warn, text));
    }
    Ok(shapes.keys().filter(|path| !lost.contains(path)).cloned().collect())
}

/// The weights of a checkpoint by path.
struct CheckpointWeights<'a> {
    file: SafeTensors<'a>,
    /// Values that replace the file's; `None` for parameters that no longer exist.
    replaced: Replaced,
}

impl CheckpointWeights<'_> {
    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = shapes_in_file(&self.file);
        for (path, data) in &self.replaced {
            match data {
                Some(data) => shapes.insert(path.clone(), data.shape.to_vec()),
                None => shapes.remove(path),
            };
        }
        shapes
    }

    /// Returns the values of a parameter. Call once per path, since replacements are moved out.
    fn take_values(&mut self, path: &str) -> Option<TensorData> {
        let of_file = || self.file.tensor(path).ok().map(|view| tensor_data(&view));
        self.replaced.remove(path).unwrap_or_else(of_file)
    }
}
