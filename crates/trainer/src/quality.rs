//! Measures the quality of a checkpoint: metrics that cost more than a loss, on the CPU, in a process beside the training.

use super::backends::{Cpu, TrainAll};
use super::evaluate;
use super::failure;
use super::resume;
use super::sections::parse_sections;
use super::task::{DataError, Tally, Train, load_data};
use burn::backend::flex::FlexDevice;
use burn::module::AutodiffModule;
use downshift_core::config::knobs::Preset;
use downshift_core::config::quality::Quality;
use downshift_core::protocol::metrics::Metrics;
use downshift_core::protocol::worker::Failed;
use downshift_core::store::checkpoint::{self, CheckpointError};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The quality metrics that a task is asked for.
#[derive(Clone, Copy)]
pub struct QualityRequest<'a> {
    /// Their names, each one of [`Task::QUALITY`](super::task::Task::QUALITY).
    pub metrics: &'a [String],
    /// The second text of the run file.
    pub text: Option<&'a Path>,
    /// Samples per pass.
    pub micro_batch: u64,
    /// Makes a pass over the whole validation set.
    pub validation: &'a dyn Fn() -> io::Result<Tally>,
}

impl QualityRequest<'_> {
    /// Reports whether a metric is asked for.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.metrics.iter().any(|wanted| wanted == name)
    }
}

/// The reason why quality cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The data cannot be read, or the weights do not match the model.
    #[error("{}", .0.message)]
    Failed(Failed),
    /// A file that only this measurement reads cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No loader thread can be started.
    #[error(transparent)]
    Loader(#[from] io::Error),
}

/// Measures the checkpoint in a directory.
///
/// # Errors
/// Returns an error when the data or the checkpoint cannot be read.
pub fn measure_quality<T: TrainAll>(
    preset: &Preset,
    quality: &Quality,
    checkpoint: &Path,
) -> Result<Metrics, QualityError> {
    let (data, config) = parse_sections::<T>(preset).map_err(failure::invalid_config).map_err(QualityError::Failed)?;
    let data = load_data::<T>(&data, &config, preset.training.seed).map_err(failure::unreadable_data);
    let data = Arc::new(data.map_err(QualityError::Failed)?);
    let loaded = checkpoint::load(checkpoint)?;
    resume::check_classes(&loaded, T::classes(&data).as_ref()).map_err(QualityError::Failed)?;
    let fresh = <T as Train<Cpu>>::init(&config, &data, &FlexDevice);
    let model = resume::load_weights::<Cpu, _>(&loaded, fresh, &FlexDevice).map_err(QualityError::Failed)?;
    let request = QualityRequest {
        metrics: &quality.metrics,
        text: quality.text.as_deref(),
        micro_batch: preset.training.micro_batch,
        validation: &|| evaluate::tally_all::<T, Cpu>(&model, &data, &preset.training, &FlexDevice),
    };
    <T as Train<Cpu>>::quality(&model.valid(), &data, &request, &FlexDevice)
}
