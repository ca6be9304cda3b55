//! Measures checkpoints on the validation set, one after another: weights only, and on the CPU, so that a GPU
//! busy with training is not disturbed.

use super::backends::{Cpu, TrainAll};
use super::evaluate;
use super::registry;
use super::resume;
use super::task::{Train, load};
use super::worker::failure;
use crate::config::knobs::Preset;
use crate::protocol::worker::{Eval, Failed};
use crate::store::checkpoint;
use burn::backend::flex::FlexDevice;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Measures the weights in each of these checkpoint directories.
///
/// # Errors
/// Returns an error when the data cannot be read. A problem with one checkpoint is reported in its own result.
pub fn measure<T: TrainAll>(preset: &Preset, checkpoints: &[PathBuf]) -> Result<Vec<Result<Eval, String>>, Failed> {
    let (data, config) = registry::sections::<T>(preset).map_err(|problem| failure::config(problem.to_string()))?;
    let data = Arc::new(load::<T>(&data, &config, preset.training.seed).map_err(|error| failure::data(&error))?);
    let one = |path: &Path| measure_one::<T>(preset, &config, &data, path);
    Ok(checkpoints.iter().map(|path| one(path)).collect())
}

fn measure_one<T: TrainAll>(
    preset: &Preset,
    config: &T::ModelConfig,
    data: &Arc<T::Data>,
    path: &Path,
) -> Result<Eval, String> {
    let loaded = checkpoint::load(path).map_err(|error| error.to_string())?;
    let fresh = <T as Train<Cpu>>::init(config, data, &FlexDevice);
    let model = resume::weights_into::<Cpu, _>(&loaded, fresh, &FlexDevice).map_err(|failed| failed.message)?;
    let means = evaluate::measure::<T, Cpu>(&model, data, &preset.training, &FlexDevice);
    let means = means.map_err(|error| error.to_string())?.ok_or("there are no validation samples")?;
    Ok(Eval {
        step: loaded.manifest.step,
        samples: loaded.manifest.samples,
        loss: means.loss,
        accuracy: means.accuracy,
        perplexity: means.perplexity,
    })
}
