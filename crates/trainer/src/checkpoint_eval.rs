//! Evaluates checkpoints on the validation set, one after another: weights only, and on the CPU, so that a GPU
//! busy with training is not disturbed.

use super::backends::{Cpu, TrainAll};
use super::evaluate;
use super::failure;
use super::resume;
use super::sections::parse_sections;
use super::task::{Train, load_data};
use burn::backend::flex::FlexDevice;
use downshift_core::config::knobs::Preset;
use downshift_core::protocol::worker::{Eval, Failed};
use downshift_core::store::checkpoint::{self, CheckpointError};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The reason why a checkpoint cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its weights do not match the model.
    #[error("{}", .0.message)]
    Weights(Failed),
    /// No loader thread can be started.
    #[error(transparent)]
    Loader(#[from] io::Error),
    /// The validation set is empty.
    #[error("there are no validation samples")]
    NoSamples,
}

/// Evaluates the weights in each of these checkpoint directories.
///
/// # Errors
/// Returns an error when the data cannot be read. A problem with one checkpoint is reported in its own result.
pub fn evaluate_checkpoints<T: TrainAll>(
    preset: &Preset,
    checkpoints: &[PathBuf],
) -> Result<Vec<Result<Eval, EvalError>>, Failed> {
    let (data, config) = parse_sections::<T>(preset).map_err(failure::invalid_config)?;
    let data = Arc::new(load_data::<T>(&data, &config, preset.training.seed).map_err(failure::unreadable_data)?);
    let evaluate_one = |path: &PathBuf| evaluate_checkpoint::<T>(preset, &config, &data, path);
    Ok(checkpoints.iter().map(evaluate_one).collect())
}

fn evaluate_checkpoint<T: TrainAll>(
    preset: &Preset,
    config: &T::ModelConfig,
    data: &Arc<T::Data>,
    path: &Path,
) -> Result<Eval, EvalError> {
    let loaded = checkpoint::load(path)?;
    resume::check_classes(&loaded, T::classes(data).as_ref()).map_err(EvalError::Weights)?;
    let fresh = <T as Train<Cpu>>::init(config, data, &FlexDevice);
    let model = resume::load_weights::<Cpu, _>(&loaded, fresh, &FlexDevice).map_err(EvalError::Weights)?;
    let means = evaluate::evaluate_all::<T, Cpu>(&model, data, &preset.training, &FlexDevice)?;
    let means = means.ok_or(EvalError::NoSamples)?;
    Ok(Eval {
        step: loaded.manifest.step,
        samples: loaded.manifest.samples,
        loss: Some(means.loss),
        metrics: means.metrics,
        reduced: None,
    })
}
