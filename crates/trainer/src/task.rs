//! The traits a model implements to be trained under downshift. Built-in and user-defined tasks implement the same two:
//!
//! ```text
//! Task        name, config sections, data set, host-side micro-batches     no tensors
//! Train<B>    model, loss, evaluation                                      for every backend B
//! ```

use super::quality::{QualityError, QualityRequest};
use super::samples::{Answers, Samples};
use burn::module::AutodiffModule;
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend, BackendTypes},
};
use downshift_core::config::knobs::Training;
use downshift_core::config::problem::Problem;
use downshift_core::protocol::metrics::Metrics;
use downshift_core::recipe::phases::Phases;
use downshift_core::store::checkpoint::classes::PictureClasses;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// A part of the data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Samples the weights are trained on.
    Training,
    /// Held-out samples.
    Validation,
}

/// An error in the data: the file, the place in it, the problem and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{file}{}: {message}", .offset.map_or_else(String::new, |offset| format!(" at byte {offset}")))]
pub struct DataError {
    /// The file or folder.
    pub file: String,
    /// The byte offset of the problem, if there is one.
    pub offset: Option<u64>,
    /// The problem and the remedy.
    pub message: String,
}

/// The micro-batch to prepare: everything its randomness may depend on.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest<'a> {
    /// The part of the data.
    pub split: Split,
    /// The samples.
    pub indices: &'a [u32],
    /// The epoch; augmentation is a pure function of (seed, epoch, sample).
    pub epoch: u64,
    /// The run's seed.
    pub seed: u64,
}

/// Sums over a micro-batch, or over the whole, of the validation set.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Sum of the losses.
    pub loss_sum: f64,
    /// Number of losses summed (samples, or tokens for text).
    pub count: u64,
    /// Sum of each of the task's [`Task::METRICS`] that is a mean, such as the number of correct predictions for
    /// the accuracy.
    pub sums: BTreeMap<&'static str, f64>,
    /// The answers of a classifier; empty unless the task records them.
    pub answers: Answers,
}

impl Tally {
    /// Returns the mean loss.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.count as f64
    }

    /// Adds the sums of another micro-batch.
    pub fn add(&mut self, other: &Self) {
        self.loss_sum += other.loss_sum;
        self.count += other.count;
        for (name, sum) in &other.sums {
            *self.sums.entry(name).or_default() += sum;
        }
        self.answers.merge(&other.answers);
    }
}

/// Weights on the host by parameter path, f32.
pub type Weights = BTreeMap<String, TensorData>;

/// A file's name and content.
pub type NamedFile = (String, Vec<u8>);

/// The format of weights exported for another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A folder for Hugging Face transformers, adapters merged into their weights.
    HuggingFace,
    /// The adapters and all other trained weights, for Hugging Face PEFT.
    Peft,
    /// The result of a search: genotype.json, for `model.genotype`, and a picture of it.
    Genotype,
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::HuggingFace => "hf",
            Self::Peft => "peft",
            Self::Genotype => "genotype",
        })
    }
}

/// The reason why weights cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The task does not write this format.
    #[error("task {task} does not support --format {format}; omit --format")]
    Unsupported {
        /// The task's name.
        task: &'static str,
        /// The requested format.
        format: Format,
    },
    /// The checkpoint lacks tensors of the model, by path.
    #[error("the checkpoint lacks {}", .0.join(", "))]
    MissingTensors(Vec<String>),
    /// There are no adapters to write.
    #[error("there are no adapters to export; --format hf writes the whole model")]
    NoAdapters,
    /// The adapters belong to a model that has no pretrained base to apply them to.
    #[error("the adapters have no pretrained base model; --format hf writes the whole model")]
    NoPretrainedBase,
    /// The weights under an adapter were trained too, which the format cannot express.
    #[error("{0} was trained as well as its adapter, which PEFT cannot express; --format hf writes the whole model")]
    TrainedUnderAdapter(String),
    /// The weights or a file of the model cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The section `model:` cannot be read.
    #[error("{0}")]
    Config(Problem),
    /// The tensors cannot be read or written as safetensors.
    #[error(transparent)]
    Tensors(#[from] safetensors::SafeTensorError),
    /// A value cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Any other reason.
    #[error("{0}")]
    Other(String),
}

/// The files of an export, or the reason why there are none.
pub type Exported = Result<Vec<NamedFile>, ExportError>;

impl From<&str> for ExportError {
    fn from(reason: &str) -> Self {
        Self::Other(reason.to_owned())
    }
}

impl From<String> for ExportError {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// The most parameters a model may have: no single machine trains more, so larger sizes are mistakes.
pub const MOST_PARAMETERS: u128 = 1_000_000_000_000;
/// The most layers a built-in model may have.
pub const MOST_LAYERS: usize = 4_096;
/// The upper bound of every other size of a built-in model: channels, tokens, positions.
pub const MOST_WIDTH: usize = 1 << 24;

/// Loads the data of a task, after checking that the model is not too large to build.
///
/// # Errors
/// Returns an error as [`Task::load`] does, or when the model would have too many parameters.
pub fn load_data<T: Task>(data: &T::DataConfig, model: &T::ModelConfig, seed: u64) -> Result<T::Data, DataError> {
    let loaded = T::load(data, model, seed)?;
    match T::parameters(model, &loaded) {
        Some(count) if count > MOST_PARAMETERS => {
            let message = format!(
                "the model would have {count} parameters; at most {MOST_PARAMETERS} are allowed, so reduce its sizes"
            );
            Err(DataError { file: "model".to_owned(), offset: None, message })
        }
        _ => Ok(loaded),
    }
}

/// A kind of training, without tensors.
pub trait Task: Send + Sync + Sized + 'static {
    /// The name after `task:` in a run file.
    const NAME: &'static str;
    /// The unit of the run's clock.
    const UNIT: &'static str = "samples";
    /// The metrics of an evaluation beside the loss, by name: charted, exported, and a choice for
    /// `checkpoint.best`. [`Task::metrics`] returns their values.
    const METRICS: &'static [&'static str] = &[];
    /// The metrics that `quality.metrics` of a run file may name, beside those of evaluations. [`Train::quality`]
    /// measures them.
    const QUALITY: &'static [&'static str] = &[];
    /// The section `data:`.
    type DataConfig: DeserializeOwned + Serialize + Send + 'static;
    /// The section `model:`.
    type ModelConfig: DeserializeOwned + Serialize + Send + Sync + 'static;
    /// A loaded data set, shared with the loader threads.
    type Data: Send + Sync + 'static;
    /// A micro-batch on the host.
    type Batch: Send + 'static;

    /// Returns the problems of values that parse but cannot work, with paths such as `model.heads` or
    /// `data.validation`.
    fn check(data: &Self::DataConfig, model: &Self::ModelConfig) -> Vec<Problem>;

    /// Patterns of the output layer's parameters: the meaning of `head` in `training.trained`.
    const HEAD: &'static [&'static str] = &["head", "norm"];
    /// Patterns used as the head when no parameter matches [`Task::HEAD`].
    const TIED_HEAD: &'static [&'static str] = &[];
    /// Whether `loss` implements `training.gradient_checkpointing` itself. Otherwise the backend does, by
    /// recomputing cheap operations.
    const RECOMPUTES: bool = false;

    /// Patterns of the parameters that a search updates in phases of their own, by `optimizer.architecture`; empty in
    /// a task that searches nothing. See [`Task::phase`].
    const ARCHITECTURE: &'static [&'static str] = &[];

    /// Returns the phases of a search: which parameters the steps of an epoch update. `loss` gives gradients to these
    /// alone, and `batch` may draw from another part of the data; both know the epoch from the request.
    fn phases(_data: &Self::Data) -> Option<Phases> {
        None
    }

    /// Returns the mistakes in `training:` that follow from the task's own section.
    fn check_training(_model: &Self::ModelConfig, _training: &Training) -> Vec<Problem> {
        Vec::new()
    }

    /// Fills in knobs that follow from files, and makes paths in both sections absolute with `absolute`.
    fn complete_config(data: &mut Self::DataConfig, _model: &mut Self::ModelConfig, absolute: &dyn Fn(&str) -> String) {
        Self::resolve_paths(data, absolute);
    }

    /// Makes paths in the `data:` section, which are relative to the run file, absolute with `absolute`.
    fn resolve_paths(data: &mut Self::DataConfig, absolute: &dyn Fn(&str) -> String);

    /// Reads the data set.
    ///
    /// # Errors
    /// Returns an error that names the file and the place in it.
    fn load(data: &Self::DataConfig, model: &Self::ModelConfig, seed: u64) -> Result<Self::Data, DataError>;

    /// Returns the model's parameter count, computed from its sizes alone, or `None` if the task does not
    /// count them. The model is built only if the count is at most [`MOST_PARAMETERS`], so this must neither
    /// overflow nor take time: count in u128, and bound each size in [`Task::check`].
    fn parameters(_model: &Self::ModelConfig, _data: &Self::Data) -> Option<u128> {
        None
    }

    /// Returns the number of samples in a part of the data.
    fn len(data: &Self::Data, split: Split) -> usize;

    /// Returns a hash of the data, by which a resumed run detects that the data changed, or `None` if the
    /// task has no hash. It does not depend on the model or the rung.
    fn fingerprint(_data: &Self::Data) -> Option<String> {
        None
    }

    /// Returns what a user may want to know about the data before a run, such as files that are not read.
    fn notes(_data: &Self::Data) -> Vec<String> {
        Vec::new()
    }

    /// Returns the classes of a picture classifier. A resumed run refuses others: its outputs stand for the old ones.
    fn classes(_data: &Self::Data) -> Option<PictureClasses> {
        None
    }

    /// Checks that the weights a fresh run starts from exist and fit, without reading their values.
    ///
    /// # Errors
    /// Returns an error that names the file and the mismatch.
    fn check_pretrained(_model: &Self::ModelConfig) -> Result<(), DataError> {
        Ok(())
    }

    /// Returns the weights a fresh run starts from instead of random ones.
    ///
    /// # Errors
    /// Returns an error that names the file and the mismatch.
    fn pretrained(_model: &Self::ModelConfig, _data: &Self::Data) -> Result<Option<Weights>, DataError> {
        Ok(None)
    }

    /// Converts weights to the files of another program: name and content of each.
    ///
    /// # Errors
    /// Returns the reason, also when the task does not support the format. Any text becomes one:
    /// `Err("the model has no head".into())`.
    fn export(_data: &Self::DataConfig, _model: &Self::ModelConfig, _weights: Weights, format: Format) -> Exported {
        Err(ExportError::Unsupported { task: Self::NAME, format })
    }

    /// Returns the number of classes to choose from, each with its own logit: the vocabulary size of a language
    /// model. The memory estimate recognizes logits by it.
    fn num_classes(_model: &Self::ModelConfig, _data: &Self::Data) -> Option<usize> {
        None
    }

    /// Returns the units per sample on the clock: 1, or the sample's length in tokens.
    fn units(_model: &Self::ModelConfig) -> u64 {
        1
    }

    /// Returns the metrics of an evaluation from its sums over the whole validation set: the mean of each, unless
    /// a task computes them otherwise.
    fn metrics(total: &Tally) -> Vec<(&'static str, f64)> {
        total.sums.iter().map(|(name, sum)| (*name, sum / total.count as f64)).collect()
    }

    /// Prepares a micro-batch on a loader thread. Must be pure.
    fn batch(data: &Self::Data, request: BatchRequest<'_>) -> Self::Batch;
}

/// The settings of a forward and backward pass over a micro-batch.
#[derive(Debug)]
pub struct Pass<'a, B: Backend> {
    /// The device of the tensors.
    pub device: &'a B::Device,
    /// The seed of this micro-batch's noise. The device's generator is seeded with it before the call; a task
    /// that computes parts of the pass twice reseeds for each part.
    pub seed: u64,
    /// The `gradient_checkpointing` knob, for tasks that recompute activations themselves; see
    /// [`Task::RECOMPUTES`].
    pub gradient_checkpointing: bool,
    /// The factor the loss is multiplied by before the backward pass. Tasks that run parts of that pass
    /// themselves apply it, so that what they compute in 16 bits is as large as it would be otherwise.
    pub loss_scale: f64,
}

impl<'a, B: Backend> Pass<'a, B> {
    /// Returns a pass without options and with seed 0.
    pub fn plain(device: &'a B::Device) -> Self {
        Self { device, seed: 0, gradient_checkpointing: false, loss_scale: 1.0 }
    }
}

/// The tensors of a [`Task`], for one backend.
pub trait Train<B: AutodiffBackend>: Task {
    /// The model.
    type Model: AutodiffModule<B>;

    /// Returns a fresh model. Weights are drawn from the backend's generator, which is seeded before the call.
    fn init(model: &Self::ModelConfig, data: &Self::Data, device: &B::Device) -> Self::Model;

    /// Returns the mean loss over a micro-batch, shape `[1]`.
    fn loss(model: &Self::Model, batch: Self::Batch, pass: &Pass<'_, B>) -> Tensor<B, 1>;

    /// Returns sums over a micro-batch, without gradients.
    fn evaluate(
        model: &<Self::Model as AutodiffModule<B>>::InnerModule,
        batch: Self::Batch,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally;

    /// Returns samples of what the model does, to be shown and kept with the run: called after a pass over the
    /// whole validation set, whose sums are `total`. Draws nothing from the backend's random generator, because a
    /// resumed run would not repeat it.
    fn samples(
        _model: &<Self::Model as AutodiffModule<B>>::InnerModule,
        _data: &Self::Data,
        _total: &Tally,
        _device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Samples {
        Samples::default()
    }

    /// Measures the quality metrics that are asked for, by names that begin with theirs. Called on a checkpoint, in a
    /// process beside the training.
    ///
    /// # Errors
    /// Returns an error when something cannot be read.
    fn quality(
        _model: &<Self::Model as AutodiffModule<B>>::InnerModule,
        _data: &Self::Data,
        _request: &QualityRequest<'_>,
        _device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Result<Metrics, QualityError> {
        Ok(Metrics::new())
    }
}
