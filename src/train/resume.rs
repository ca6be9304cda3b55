//! From a checkpoint back to a model: which one, whether it fits, and its values onto the device.

use super::lora::refit::{self, Refit, Replaced};
use super::optimizer::AdamW;
use super::optimizer::kept::Masters;
use super::params::{self, Fit, from_safetensors};
use super::pour::pour;
use super::worker::{WorkerArgs, failure};
use crate::protocol::worker::{Failed, Level, Saved};
use crate::store::checkpoint::{self, CheckpointError, Loaded, MODEL, OPTIMIZER, STATE, state::TrainState};
use burn::module::AutodiffModule;
use burn::tensor::{
    TensorData,
    backend::{AutodiffBackend, Backend},
};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// Something to tell once the worker has said hello.
pub type Note = (Level, String);

/// The checkpoint to go on from; none for a fresh start.
///
/// # Errors
/// When the one asked for is unusable, when one is required and none verifies, and when there are
/// some and all are damaged: a run never starts from scratch over the remains of another.
pub fn find(args: &WorkerArgs, notes: &mut Vec<Note>) -> Result<Option<Loaded>, Failed> {
    if let Some(step) = args.from {
        let path = args.run_dir.join(checkpoint::relative_path(step));
        let loaded = checkpoint::load(&path).and_then(|loaded| sound(&loaded).map(|()| loaded));
        return loaded.map(Some).map_err(|error| failure::checkpoint(error.to_string()));
    }
    let (loaded, rejected) = checkpoint::newest_that(&args.run_dir, sound);
    if loaded.is_none() && (args.require_checkpoint || !rejected.is_empty()) {
        let folder = args.run_dir.join(checkpoint::FOLDER);
        let reasons: Vec<String> = rejected.iter().map(|(_, error)| error.to_string()).collect();
        let why = if reasons.is_empty() { "there is none".to_owned() } else { reasons.join("; ") };
        let text = format!(
            "no checkpoint in {} can be used: {why}; put a good copy back, or start a new run",
            folder.display()
        );
        return Err(failure::checkpoint(text));
    }
    notes.extend(rejected.into_iter().map(|(_, error)| (Level::Warn, format!("checkpoint passed over: {error}"))));
    Ok(loaded)
}

/// Whether what a checkpoint holds can be gone on from.
fn sound(loaded: &Loaded) -> Result<(), CheckpointError> {
    finite(loaded)?;
    let state = loaded.files.get(STATE).and_then(|text| serde_json::from_slice::<TrainState>(text).ok());
    // What cannot be read is another matter, told when it is restored.
    let Some(TrainState { step, position, .. }) = state else { return Ok(()) };
    let manifest = &loaded.manifest;
    if (step, position.samples) == (manifest.step, manifest.samples) {
        return Ok(());
    }
    let reason = format!(
        "it is of step {step} at {} on the clock, in a checkpoint of step {} at {}",
        position.samples, manifest.step, manifest.samples
    );
    Err(CheckpointError::damaged(loaded.path.join(STATE), reason))
}

/// Whether every number in a checkpoint is one. Bytes may be just what was written and hold NaN all
/// the same: then the checkpoint is as bad as one that does not verify.
fn finite(loaded: &Loaded) -> Result<(), CheckpointError> {
    for name in [MODEL, OPTIMIZER] {
        let Some(bytes) = loaded.files.get(name) else { continue };
        // What cannot be read is another matter, told when it is restored.
        let Ok(tensors) = SafeTensors::deserialize(bytes) else { continue };
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        let sick = tensors.iter().find(|(_, view)| {
            view.dtype() == Dtype::F32 && !view.data().as_chunks().0.iter().all(|bytes| number(bytes).is_finite())
        });
        if let Some((tensor, _)) = sick {
            let reason = format!("{tensor} holds a value that is not finite");
            return Err(CheckpointError::damaged(loaded.path.join(name), reason));
        }
    }
    Ok(())
}

/// A model and an optimizer as a checkpoint holds them.
pub struct Restored<M, B: Backend> {
    /// The model.
    pub model: M,
    /// The optimizer.
    pub optimizer: AdamW<B>,
    /// Where training stood.
    pub state: TrainState,
    /// The checkpoint, as it was announced when it was saved.
    pub saved: Saved,
    /// What was done to adapters, where they did not fit as they were.
    pub refit: Option<Refit>,
}

/// Puts the values of a checkpoint into a fresh model and optimizer.
///
/// # Errors
/// When a file of it cannot be read, or holds other parameters than the model and the run does not
/// allow for that.
pub fn restore<A, M>(
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
        let missing = || failure::checkpoint(format!("{} holds no {name}", loaded.path.display()));
        loaded.files.get(name).ok_or_else(missing)
    };
    let unreadable = |name: &str, error: &dyn std::fmt::Display| {
        failure::checkpoint(format!("{}: cannot read {name}: {error}", loaded.path.display()))
    };
    let state: TrainState = serde_json::from_slice(bytes(STATE)?).map_err(|error| unreadable(STATE, &error))?;
    let weights = SafeTensors::deserialize(bytes(MODEL)?).map_err(|error| unreadable(MODEL, &error))?;
    let moments = SafeTensors::deserialize(bytes(OPTIMIZER)?).map_err(|error| unreadable(OPTIMIZER, &error))?;
    if weights.iter().any(|(_, view)| view.dtype() != Dtype::F32) {
        return Err(unreadable(MODEL, &"it holds other numbers than f32"));
    }
    if moments.iter().any(|(_, view)| !matches!(view.dtype(), Dtype::F32 | Dtype::U8)) {
        return Err(unreadable(OPTIMIZER, &"it holds other numbers than f32 and codes of 8 bits"));
    }
    let mut refit = refit::refit::<A, M>(&model, &weights).map_err(|error| unreadable(MODEL, &error))?;
    let replaced = refit.as_mut().map(|refit| mem::take(&mut refit.replaced)).unwrap_or_default();
    let mut weights = Weights { file: weights, replaced };
    let kept = fitting::<A, M>(&model, &weights, args.migrate, notes)?;
    let mut shapes = params::shapes::<A, M>(&model);
    // Moments of what is replaced start anew.
    shapes.retain(|path, _| kept.contains(path) && !weights.replaced.contains_key(path));
    let told = optimizer.restore(state.optimizer_time, &moments, &shapes, device);
    let told = told.map_err(|error| failure::device(&error.to_string()))?;
    notes.extend(told.into_iter().map(|text| (Level::Info, text)));
    let find = |path: &str| kept.contains(path).then(|| weights.take(path)).flatten();
    let model = pour::<A, M>(model, find, &mut optimizer.masters, device);
    let saved = Saved {
        path: checkpoint::relative_path(state.step),
        step: state.step,
        samples: state.position.samples,
        bytes: loaded.manifest.bytes(),
        pause_ms: 0.0,
        total_ms: 0.0,
        eval_loss: state.own_eval_loss(),
    };
    Ok(Restored { model, optimizer, state, saved, refit })
}

/// Puts the weights of a checkpoint into a fresh model, for measuring it.
///
/// # Errors
/// When the file cannot be read or holds other parameters than the model.
pub fn weights_into<A, M>(loaded: &Loaded, model: M, device: &A::Device) -> Result<M, Failed>
where
    A: AutodiffBackend,
    M: AutodiffModule<A>,
{
    finite(loaded).map_err(|error| failure::checkpoint(error.to_string()))?;
    let unreadable =
        |why: String| failure::checkpoint(format!("{}: cannot read {MODEL}: {why}", loaded.path.display()));
    let bytes = loaded.files.get(MODEL).ok_or_else(|| unreadable("it is missing".to_owned()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| unreadable(error.to_string()))?;
    let mut weights = Weights { file, replaced: Replaced::new() };
    fitting::<A, M>(&model, &weights, false, &mut Vec::new())?;
    Ok(pour::<A, M>(model, |path| weights.take(path), &mut Masters::new(), device))
}

/// The parameters of the model whose values the checkpoint has in the same shape.
fn fitting<A: AutodiffBackend, M: AutodiffModule<A>>(
    model: &M,
    weights: &Weights<'_>,
    migrate: bool,
    notes: &mut Vec<Note>,
) -> Result<BTreeSet<String>, Failed> {
    let shapes = params::shapes::<A, M>(model);
    let fit = Fit::between(&shapes, &weights.shapes());
    if !fit.is_whole() && !migrate {
        return Err(failure::checkpoint(format!(
            "the checkpoint does not fit the model: {fit}; go back to the rung that wrote it, or give this rung \
             `warm_start: true` to keep what fits"
        )));
    }
    let lost: BTreeSet<&String> = fit.missing.iter().chain(fit.reshaped.iter().map(|(path, ..)| path)).collect();
    if !fit.is_whole() {
        let kept = shapes.len() - lost.len();
        let text = format!("kept {kept} of {} parameters of the checkpoint, the others are fresh: {fit}", shapes.len());
        notes.push((Level::Warn, text));
    }
    Ok(shapes.keys().filter(|path| !lost.contains(path)).cloned().collect())
}

/// The weights of a checkpoint by path.
struct Weights<'a> {
    file: SafeTensors<'a>,
    /// Values in place of the file's; none for what is there no longer.
    replaced: Replaced,
}

impl Weights<'_> {
    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = params::shapes_in(&self.file);
        for (path, data) in &self.replaced {
            match data {
                Some(data) => shapes.insert(path.clone(), data.shape.to_vec()),
                None => shapes.remove(path),
            };
        }
        shapes
    }

    /// The values of a parameter, which are asked for once.
    fn take(&mut self, path: &str) -> Option<TensorData> {
        let of_file = || self.file.tensor(path).ok().map(|view| from_safetensors(&view));
        self.replaced.remove(path).unwrap_or_else(of_file)
    }
}
