//! What a model must offer to be trained under downshift. The built-in tasks and a person's own
//! implement the same two traits:
//!
//! ```text
//! Task        name, config sections, data set, host-side micro-batches     no tensors
//! Train<B>    model, loss, evaluation                                      for every backend B
//! ```

use crate::config::problem::Problem;
use burn::module::AutodiffModule;
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend, BackendTypes},
};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// Which samples are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Those that weights learn from.
    Training,
    /// Those held out.
    Validation,
}

/// Data that cannot be used: which file, where in it, what is wrong, what would work.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{file}{}: {message}", .offset.map_or_else(String::new, |offset| format!(" at byte {offset}")))]
pub struct DataError {
    /// The file or folder.
    pub file: String,
    /// The byte where it goes wrong, where there is one.
    pub offset: Option<u64>,
    /// What is wrong and what would work.
    pub message: String,
}

/// Which micro-batch to prepare: everything that randomness may depend on.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest<'a> {
    /// From which part of the data.
    pub split: Split,
    /// Which samples.
    pub indices: &'a [u32],
    /// In which epoch; augmentation is a pure function of (seed, epoch, sample).
    pub epoch: u64,
    /// The run's seed.
    pub seed: u64,
}

/// Sums over a micro-batch of the validation set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Sum of the losses.
    pub loss_sum: f64,
    /// How many were summed (samples, or tokens for text).
    pub count: u64,
    /// How many answers were right, for tasks that have right answers.
    pub correct: Option<u64>,
}

/// Weights on the host by parameter path, f32.
pub type Weights = BTreeMap<String, TensorData>;

/// A file's name and its content.
pub type NamedFile = (String, Vec<u8>);

/// In what form to write weights for another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A folder for Hugging Face transformers, adapters merged into their weights.
    HuggingFace,
    /// The adapters and whatever else was trained, for Hugging Face PEFT.
    Peft,
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::HuggingFace => "hf",
            Self::Peft => "peft",
        })
    }
}

/// The most parameters of a model: no machine trains more alone, and sizes beyond are mistakes.
pub const MOST_PARAMETERS: u128 = 1_000_000_000_000;
/// The most layers of a built-in model.
pub const MOST_LAYERS: usize = 4_096;
/// The most of anything else that a built-in model counts: channels, tokens, positions.
pub const MOST_WIDTH: usize = 1 << 24;

/// The data of a task, for a model that is not too large to be built.
///
/// # Errors
/// As [`Task::load`]; also when the model would have too many parameters.
pub fn load<T: Task>(data: &T::DataConfig, model: &T::ModelConfig, seed: u64) -> Result<T::Data, DataError> {
    let loaded = T::load(data, model, seed)?;
    match T::parameters(model, &loaded) {
        Some(count) if count > MOST_PARAMETERS => {
            let message = format!(
                "the model would have {count} parameters, and at most {MOST_PARAMETERS} can be built; make its sizes smaller"
            );
            Err(DataError { file: "model".to_owned(), offset: None, message })
        }
        _ => Ok(loaded),
    }
}

/// A kind of training, without its tensors.
pub trait Task: Send + Sync + Sized + 'static {
    /// The word after `task:` in a run file.
    const NAME: &'static str;
    /// What the run's clock counts.
    const UNIT: &'static str = "samples";
    /// Whether `exp(loss)` means something.
    const PERPLEXITY: bool = false;
    /// The section `data:`.
    type DataConfig: DeserializeOwned + Serialize + Send + 'static;
    /// The section `model:`.
    type ModelConfig: DeserializeOwned + Serialize + Send + Sync + 'static;
    /// A loaded data set, shared with the loader threads.
    type Data: Send + Sync + 'static;
    /// A micro-batch on the host.
    type Batch: Send + 'static;

    /// Values that parse but cannot work, as `model.heads`, `data.validation` and so on.
    fn check(data: &Self::DataConfig, model: &Self::ModelConfig) -> Vec<Problem>;

    /// Patterns of the parameters that read the answer off: `head` in `training.trained`.
    const HEAD: &'static [&'static str] = &["head", "norm"];
    /// What serves as a head where nothing is called so.
    const TIED_HEAD: &'static [&'static str] = &[];
    /// Whether `loss` itself sees to `training.gradient_checkpointing`. Otherwise the backend does: it
    /// recomputes cheap operations.
    const RECOMPUTES: bool = false;

    /// Fills in what follows from files, and makes paths in both sections absolute by `absolute`.
    fn complete(data: &mut Self::DataConfig, _model: &mut Self::ModelConfig, absolute: &dyn Fn(&str) -> String) {
        Self::resolve_paths(data, absolute);
    }

    /// Paths in the `data:` section that are relative to the run file, made absolute by `absolute`.
    fn resolve_paths(data: &mut Self::DataConfig, absolute: &dyn Fn(&str) -> String);

    /// Reads the data set.
    ///
    /// # Errors
    /// Names the file and the place in it.
    fn load(data: &Self::DataConfig, model: &Self::ModelConfig, seed: u64) -> Result<Self::Data, DataError>;

    /// Numbers in the weights of the model, from its sizes alone; none where the task does not count
    /// them. The model is built only if there are at most [`MOST_PARAMETERS`] of them, so this must
    /// neither overflow nor take time: count in u128, and bound each size in [`Task::check`].
    fn parameters(_model: &Self::ModelConfig, _data: &Self::Data) -> Option<u128> {
        None
    }

    /// Samples in a part of the data.
    fn len(data: &Self::Data, split: Split) -> usize;

    /// A hash of the data, by which a run that goes on tells that they were replaced. Model and rung
    /// have no part in it; none where the task does without.
    fn fingerprint(_data: &Self::Data) -> Option<String> {
        None
    }

    /// Sees that the weights that a fresh run starts from are there and fit, without reading them.
    ///
    /// # Errors
    /// Names the file and what does not fit.
    fn examine(_model: &Self::ModelConfig) -> Result<(), DataError> {
        Ok(())
    }

    /// Weights that a fresh run starts from in place of drawn ones.
    ///
    /// # Errors
    /// Names the file and what does not fit.
    fn pretrained(_model: &Self::ModelConfig, _data: &Self::Data) -> Result<Option<Weights>, DataError> {
        Ok(None)
    }

    /// Weights in the files of another program: name and content of each.
    ///
    /// # Errors
    /// A sentence; also when the task knows no such format.
    fn export(_model: &Self::ModelConfig, _weights: Weights, format: Format) -> Result<Vec<NamedFile>, String> {
        Err(format!("the task {} cannot be written as {format}; leave --format out", Self::NAME))
    }

    /// How many answers are possible, each with a score of its own: the vocabulary, the classes. The
    /// plan of memory tells scores apart by it.
    fn answers(_model: &Self::ModelConfig, _data: &Self::Data) -> Option<usize> {
        None
    }

    /// What one sample is worth on the clock: 1, or its length in tokens.
    fn units(_model: &Self::ModelConfig) -> u64 {
        1
    }

    /// Prepares a micro-batch on a loader thread. Pure.
    fn batch(data: &Self::Data, request: BatchRequest<'_>) -> Self::Batch;
}

/// What a forward and backward pass over a micro-batch goes by.
#[derive(Debug)]
pub struct Pass<'a, B: Backend> {
    /// Where tensors lie.
    pub device: &'a B::Device,
    /// The seed of this micro-batch's noise. The device's generator is seeded by it before the call;
    /// a task that computes parts of the pass twice seeds anew for each part.
    pub seed: u64,
    /// The knob: for tasks that recompute by themselves, see [`Task::RECOMPUTES`].
    pub gradient_checkpointing: bool,
    /// What the loss is multiplied by before the backward pass, for tasks that run parts of that pass
    /// themselves: what they compute in few bits should be as large as it would be otherwise.
    pub loss_scale: f64,
}

impl<'a, B: Backend> Pass<'a, B> {
    /// A pass without options, of seed 0.
    pub fn plain(device: &'a B::Device) -> Self {
        Self { device, seed: 0, gradient_checkpointing: false, loss_scale: 1.0 }
    }
}

/// The tensors of a [`Task`], for one backend.
pub trait Train<B: AutodiffBackend>: Task {
    /// The model.
    type Model: AutodiffModule<B>;

    /// A fresh model. Weights are drawn from the backend's generator, seeded before the call.
    fn init(model: &Self::ModelConfig, data: &Self::Data, device: &B::Device) -> Self::Model;

    /// Mean loss over a micro-batch, shape `[1]`.
    fn loss(model: &Self::Model, batch: Self::Batch, pass: &Pass<'_, B>) -> Tensor<B, 1>;

    /// Sums over a micro-batch, without gradients.
    fn evaluate(
        model: &<Self::Model as AutodiffModule<B>>::InnerModule,
        batch: Self::Batch,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally;
}
