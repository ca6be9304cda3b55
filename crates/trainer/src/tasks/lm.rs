//! `task: lm`: a decoder-only transformer for language modeling.
//!
//! ```text
//! data.source ─ read ─▶ text ─ tokenizer ─▶ tokens ─▶ training ......... | validation
//!                                                     └ windows of `sequence` tokens ┘
//! ```
//! The last share of the tokens is held out, in one piece. A sample is a window: `sequence` input tokens and,
//! shifted by one, `sequence` target tokens. Training windows do not overlap. They start at a different
//! offset in each epoch, so that their boundaries move: a pure function of (seed, epoch).

mod attention;
mod attention_op;
mod generate;
pub mod hf;
pub mod layer_builder;
pub mod loss;
pub mod model;
mod model_config;
mod quality;
pub mod shape;
pub mod text;
mod training_loss;

use crate::quality::{QualityError, QualityRequest};
use crate::samples::{Samples, TaskSample};
use crate::task::{BatchRequest, DataError, Exported, Format, Pass, Split, Tally, Task, Train, Weights};
use crate::tasks::files;
use burn::backend::{Autodiff, autodiff::checkpoint::strategy::CheckpointStrategy};
use burn::module::AutodiffModule;
use burn::tensor::{
    Int, Tensor, TensorData,
    backend::{Backend, BackendTypes},
};
use downshift_core::config::problem::Problem;
use downshift_core::config::quality::DISTINCT;
use downshift_core::protocol::metrics::{Metrics, PERPLEXITY};
use downshift_core::protocol::samples::Sample;
use downshift_core::recipe::seed::{Purpose, Stream};
use layer_builder::ModelSpec;
use loss::token_losses;
use model::{ForwardOptions, Transformer};
pub use model_config::TextModel;
use serde::{Deserialize, Serialize};
use std::path::Path;
use text::{BYTES, Codec, EMBEDDED, SHIPPED};

/// The task.
#[derive(Debug, Clone, Copy)]
pub struct LanguageModel;

/// The section `data:` of a text run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextData {
    /// `embedded:text`, a text file, a folder of .txt files, or a list of these.
    pub source: Sources,
    /// `bytes`, or the path of a Hugging Face `tokenizer.json`. Default: the pretrained model's tokenizer if
    /// it has one, else bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// The share of the tokens held out, from the end of the text.
    #[serde(default = "default_validation")]
    pub validation: f64,
    /// The text that the model continues at each evaluation. Default: the beginning of the held-out text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// One source, or several that are read in sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a path, or a list of paths")]
pub enum Sources {
    /// A single one.
    One(String),
    /// Several, in this order.
    Many(Vec<String>),
}

impl Sources {
    /// Returns all sources.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(source) => std::slice::from_ref(source),
            Self::Many(sources) => sources,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [String] {
        match self {
            Self::One(source) => std::slice::from_mut(source),
            Self::Many(sources) => sources,
        }
    }
}

/// A tokenized text.
#[derive(Debug)]
pub struct Corpus {
    training: Vec<u32>,
    validation: Vec<u32>,
    sequence: usize,
    spec: ModelSpec,
    codec: Codec,
    /// The tokens that the model continues at each evaluation.
    prompt: Vec<u32>,
}

/// A micro-batch of windows on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextBatch {
    /// The input tokens, `[window, position]`.
    pub inputs: Vec<i32>,
    /// The target tokens, `[window, position]`: the successor of each input token.
    pub targets: Vec<i32>,
    /// Number of windows.
    pub windows: usize,
}

impl TextBatch {
    /// Creates a micro-batch of windows of one length, each with one token more than it has inputs.
    fn of_windows(windows: &[&[u32]]) -> Self {
        let tokens = |part: fn(&[u32]) -> &[u32]| {
            windows.iter().flat_map(|window| part(window)).map(|token| token.cast_signed()).collect()
        };
        let (inputs, targets) = (tokens(|window| &window[..window.len() - 1]), tokens(|window| &window[1..]));
        Self { inputs, targets, windows: windows.len() }
    }

    /// Converts inputs and targets to tensors `[batch, sequence]`.
    fn into_tensors<B: Backend>(self, device: &B::Device) -> [Tensor<B, 2, Int>; 2] {
        let shape = [self.windows, self.inputs.len() / self.windows.max(1)];
        [self.inputs, self.targets].map(|tokens| Tensor::from_data(TensorData::new(tokens, shape), device))
    }
}

impl Task for LanguageModel {
    const NAME: &'static str = "lm";
    const UNIT: &'static str = "tokens";
    const METRICS: &'static [&'static str] = &[PERPLEXITY];
    const QUALITY: &'static [&'static str] = &[PERPLEXITY, DISTINCT];
    const RECOMPUTES: bool = true;
    const TIED_HEAD: &'static [&'static str] = &["tokens"];
    type DataConfig = TextData;
    type ModelConfig = TextModel;
    type Data = Corpus;
    type Batch = TextBatch;

    fn check(data: &TextData, model: &TextModel) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, path: &str, wrong: String, fix: &str| {
            if !holds {
                problems.push(Problem::at(path, wrong, fix));
            }
        };
        let sources = data.source.as_slice();
        need(
            !sources.is_empty(),
            "data.source",
            "the list is empty".into(),
            "use embedded:text, or the path of a text",
        );
        for source in sources {
            let known = !source.is_empty() && (!source.starts_with(EMBEDDED) || source == SHIPPED);
            need(
                known,
                "data.source",
                format!("unknown source `{source}`"),
                "use embedded:text, or the path of a text",
            );
        }
        let tokenizer = data.tokenizer.as_ref().is_none_or(|tokenizer| !tokenizer.is_empty());
        need(tokenizer, "data.tokenizer", "it is empty".into(), "use bytes, or the path of a tokenizer.json");
        let share = data.validation;
        let in_between = share > 0.0 && share < 1.0;
        need(in_between, "data.validation", format!("{share} is not between 0 and 1"), "0.1 holds out a tenth");
        problems.extend(model_config::check_model(model));
        problems
    }

    fn resolve_paths(data: &mut TextData, absolute: &dyn Fn(&str) -> String) {
        for source in data.source.as_mut_slice().iter_mut().filter(|source| !source.starts_with(EMBEDDED)) {
            *source = absolute(source);
        }
        if let Some(tokenizer) = data.tokenizer.as_mut().filter(|tokenizer| *tokenizer != BYTES) {
            *tokenizer = absolute(tokenizer);
        }
    }

    fn complete_config(data: &mut TextData, model: &mut TextModel, absolute: &dyn Fn(&str) -> String) {
        Self::resolve_paths(data, absolute);
        model_config::complete_model(model, absolute);
        data.tokenizer.get_or_insert_with(|| model_config::default_tokenizer(model));
    }

    fn check_pretrained(model: &TextModel) -> Result<(), DataError> {
        model_config::check_pretrained(model)
    }

    fn pretrained(model: &TextModel, data: &Corpus) -> Result<Option<Weights>, DataError> {
        model_config::load_pretrained(model, &data.spec)
    }

    fn export(data: &TextData, model: &TextModel, weights: Weights, format: Format) -> Exported {
        model_config::export_weights(data.tokenizer.as_deref(), model, weights, format)
    }

    fn load(data: &TextData, model: &TextModel, _seed: u64) -> Result<Corpus, DataError> {
        let tokenizer = data.tokenizer.clone().unwrap_or_else(|| model_config::default_tokenizer(model));
        let codec = Codec::open(&tokenizer)?;
        let mut training = text::tokenize_sources(data.source.as_slice(), &codec)?;
        let spec = model_config::build_spec(model, codec.vocabulary())?;
        let highest = training.iter().max().map_or(0, |token| *token as usize);
        if highest >= spec.shape.vocabulary {
            let message = format!(
                "the tokenizer {tokenizer} produces token {highest}, but the model has a vocabulary of {}; \
                 set data.tokenizer to the model's tokenizer.json",
                spec.shape.vocabulary
            );
            return Err(files::data_error(Path::new(&data.source.as_slice().join(", ")), message));
        }
        let total = training.len();
        let held_out = (total as f64 * data.validation).round() as usize;
        let validation = training.split_off(total - held_out.min(total));
        let prompt = sample_prompt(data, &codec, &validation, [model.sequence, spec.shape.vocabulary])?;
        let corpus = Corpus { training, validation, sequence: model.sequence, spec, codec, prompt };
        if corpus.window_count(Split::Training) == 0 || corpus.window_count(Split::Validation) == 0 {
            let longest = (corpus.training.len() / 2).min(corpus.validation.len().saturating_sub(1));
            let message = format!(
                "its {total} tokens leave {} for training and {held_out} for validation, too few for windows of {}; {}",
                corpus.training.len(),
                model.sequence,
                if longest == 0 {
                    "use a longer text".to_owned()
                } else {
                    format!("set model.sequence to {longest} or less, or use a longer text")
                }
            );
            return Err(files::data_error(Path::new(&data.source.as_slice().join(", ")), message));
        }
        Ok(corpus)
    }

    fn parameters(_model: &TextModel, data: &Corpus) -> Option<u128> {
        Some(data.spec.shape.parameter_count())
    }

    fn len(data: &Corpus, split: Split) -> usize {
        data.window_count(split)
    }

    fn fingerprint(data: &Corpus) -> Option<String> {
        let mut hash = blake3::Hasher::new();
        for part in [&data.training, &data.validation] {
            hash.update(&part.len().to_le_bytes());
            for tokens in part.chunks(1 << 14) {
                hash.update(&tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
        Some(hash.finalize().to_string())
    }

    fn num_classes(_model: &TextModel, data: &Corpus) -> Option<usize> {
        Some(data.spec.shape.vocabulary)
    }

    fn units(model: &TextModel) -> u64 {
        model.sequence as u64
    }

    fn metrics(total: &Tally) -> Vec<(&'static str, f64)> {
        vec![(PERPLEXITY, total.mean_loss().exp())]
    }

    fn batch(data: &Corpus, request: BatchRequest<'_>) -> TextBatch {
        let (tokens, first) = match request.split {
            Split::Training => (&data.training, data.first_start(request.seed, request.epoch)),
            Split::Validation => (&data.validation, 0),
        };
        let window = |index: &u32| {
            let start = first + *index as usize * data.sequence;
            &tokens[start..=start + data.sequence]
        };
        TextBatch::of_windows(&request.indices.iter().map(window).collect::<Vec<_>>())
    }
}

impl Corpus {
    /// Returns the number of windows in a part. Training leaves one window's length unused, so that every
    /// start below `sequence` fits and the number is the same in every epoch.
    fn window_count(&self, split: Split) -> usize {
        match split {
            Split::Training => (self.training.len() / self.sequence).saturating_sub(1),
            Split::Validation => self.validation.len().saturating_sub(1) / self.sequence,
        }
    }

    /// Returns the start of an epoch's first training window.
    fn first_start(&self, seed: u64, epoch: u64) -> usize {
        Stream::for_purpose(seed, Purpose::Task, [epoch, 0, 0]).below(self.sequence as u64) as usize
    }
}

// Only for Burn's Autodiff, not for every autodiff backend: the loss injects its own gradients, which needs
// Burn's graph.
impl<I: Backend, C: CheckpointStrategy> Train<Autodiff<I, C>> for LanguageModel {
    type Model = Transformer<Autodiff<I, C>>;

    fn init(_model: &TextModel, data: &Corpus, device: &I::Device) -> Transformer<Autodiff<I, C>> {
        Transformer::new(&data.spec, device)
    }

    fn loss(
        model: &Transformer<Autodiff<I, C>>,
        batch: TextBatch,
        pass: &Pass<'_, Autodiff<I, C>>,
    ) -> Tensor<Autodiff<I, C>, 1> {
        let [inputs, targets] = batch.into_tensors(pass.device);
        model.loss(inputs, targets, pass)
    }

    fn evaluate(
        model: &<Transformer<Autodiff<I, C>> as AutodiffModule<Autodiff<I, C>>>::InnerModule,
        batch: TextBatch,
        device: &<I as BackendTypes>::Device,
    ) -> Tally {
        sum_losses(model, batch, device)
    }

    fn quality(
        model: &<Transformer<Autodiff<I, C>> as AutodiffModule<Autodiff<I, C>>>::InnerModule,
        data: &Corpus,
        request: &QualityRequest<'_>,
        device: &<I as BackendTypes>::Device,
    ) -> Result<Metrics, QualityError> {
        let mut metrics = Metrics::new();
        if let Some(text) = request.text.filter(|_| request.wants(PERPLEXITY)) {
            let value = quality::perplexity(model, data, text, request.micro_batch, device)?;
            metrics.insert(PERPLEXITY.to_owned(), value);
        }
        if request.wants(DISTINCT) {
            let shares = quality::distinct(model, data, device).into_iter().flatten();
            metrics.extend((1..).zip(shares).map(|(words, share): (u32, f64)| (format!("{DISTINCT}_{words}"), share)));
        }
        Ok(metrics)
    }

    fn samples(
        model: &<Transformer<Autodiff<I, C>> as AutodiffModule<Autodiff<I, C>>>::InnerModule,
        data: &Corpus,
        _total: &Tally,
        device: &<I as BackendTypes>::Device,
    ) -> Samples {
        let length = data.sequence.min(generate::MAX_TOKENS);
        let written = generate::continue_tokens(model, &data.prompt, length, 0, device);
        if written.is_empty() {
            return Samples::default();
        }
        let (prompt, text) = (data.codec.decode(&data.prompt), data.codec.decode(&written));
        let sample = Sample { prompt: Some(prompt), text: Some(text), ..Sample::default() };
        Samples { list: vec![TaskSample { sample, picture: None }], confusion: None }
    }
}

/// Returns the summed loss of all tokens of a micro-batch.
fn sum_losses<B: Backend>(model: &Transformer<B>, batch: TextBatch, device: &B::Device) -> Tally {
    let [inputs, targets] = batch.into_tensors(device);
    let options = ForwardOptions::plain();
    let terms = model.logit_terms(model.hidden_states(inputs, &options), &options);
    let losses = token_losses(&terms, &targets.flatten(0, 1)).into_data();
    let count = losses.num_elements() as u64;
    Tally { loss_sum: losses.iter::<f32>().map(f64::from).sum(), count, ..Tally::default() }
}

/// Returns the tokens that the model continues: those of the run file's prompt, else the beginning of the held-out
/// text. They leave room for the model's own.
fn sample_prompt(
    data: &TextData,
    codec: &Codec,
    validation: &[u32],
    [context, vocabulary]: [usize; 2],
) -> Result<Vec<u32>, DataError> {
    let length = context.min(generate::MAX_TOKENS);
    let mut prompt = data.prompt.as_deref().map_or_else(|| Ok(Vec::new()), |prompt| codec.encode_prompt(prompt))?;
    prompt.retain(|token| (*token as usize) < vocabulary);
    if prompt.is_empty() {
        prompt = validation[..validation.len().min(length / 4)].to_vec();
    }
    // The end of a long prompt is what the model continues.
    Ok(prompt.split_off(prompt.len().saturating_sub(length / 2)))
}

fn default_validation() -> f64 {
    0.1
}

#[cfg(test)]
mod tests;
