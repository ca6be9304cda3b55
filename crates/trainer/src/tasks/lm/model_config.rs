//! The section `model:` of a text run: sizes of a fresh model, or a pretrained model, and adapters.

use super::hf::{self, ModelSource, config, export, names, peft};
use super::layer_builder::ModelSpec;
use super::shape::{Activation, Family, Shape};
use super::text::{BYTE_TOKENS, BYTES};
use crate::lora::Lora;
use crate::task::{DataError, ExportError, Format, MOST_LAYERS, MOST_WIDTH, NamedFile, Task, Weights};
use crate::tasks::files::data_error;
use crate::tasks::lm::LanguageModel;
use downshift_core::config::problem::Problem;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The width of a fresh model's hidden layer, as a multiple of the model's width.
const EXPANSION: usize = 4;
/// Layers that can have an adapter, by downshift's names.
const TARGETS: [&str; 8] = ["query", "key", "value", "output", "gate", "widen", "narrow", "head"];

/// The section `model:` of a text run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextModel {
    /// A pretrained model in Hugging Face format: a folder, a safetensors file, an index of shards,
    /// or `embedded:tiny-llama`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<String>,
    /// The shape from the pretrained model's config.json, so that a run does not depend on that file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Transformer blocks; 4 by default. A pretrained model has its own sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// Attention heads per block, which divide the width evenly; 4 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Embedding width: values per token inside the model; 128 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Whether the head shares the embedding matrix; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tied: Option<bool>,
    /// Context length in tokens.
    pub sequence: usize,
    /// Share of the activations that a training step drops.
    pub dropout: f64,
    /// Low-rank adapters, trained instead of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

impl Default for TextModel {
    fn default() -> Self {
        let (layers, heads, width, tied) = (None, None, None, None);
        Self { init_from: None, shape: None, layers, heads, width, tied, sequence: 128, dropout: 0.0, lora: None }
    }
}

impl TextModel {
    fn sizes(&self) -> [usize; 3] {
        [self.layers.unwrap_or(4), self.heads.unwrap_or(4), self.width.unwrap_or(128)]
    }

    /// Returns the shape of a fresh model.
    fn fresh_shape(&self, vocabulary: usize) -> Shape {
        let [layers, heads, width] = self.sizes();
        Shape {
            family: Family::Gpt2,
            layers,
            heads,
            kv_heads: heads,
            head_size: width / heads.max(1),
            width,
            hidden: EXPANSION.saturating_mul(width),
            vocabulary,
            positions: self.sequence,
            epsilon: 1e-5,
            theta: 0.0,
            activation: Activation::Gelu,
            attention_bias: false,
            hidden_bias: false,
            tied: self.tied.unwrap_or(true),
        }
    }
}

/// Returns the problems of values that parse but cannot work.
pub fn check_model(model: &TextModel) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut need = |holds: bool, path: &str, wrong: String, fix: &str| {
        if !holds {
            problems.push(Problem::at(path, wrong, fix));
        }
    };
    let [layers, heads, width] = model.sizes();
    for (knob, value, usual) in [
        ("layers", layers, "4 works"),
        ("heads", heads, "4 works"),
        ("width", width, "128 works"),
        ("sequence", model.sequence, "128 works"),
    ] {
        need(value > 0, &format!("model.{knob}"), "it must be at least 1".into(), usual);
        let most = if knob == "layers" { MOST_LAYERS } else { MOST_WIDTH };
        need(value <= most, &format!("model.{knob}"), format!("{value} exceeds the limit of {most}"), usual);
    }
    if let Some(Err(error)) = model.shape.as_ref().map(Shape::check) {
        need(false, "model.shape", error.to_string(), "omit it; it is read from the model's config.json");
    }
    let described = model.shape.is_none() || model.init_from.is_some();
    need(
        described,
        "model.shape",
        "it describes a pretrained model, and model.init_from names none".into(),
        "omit it; layers, heads and width size a fresh model",
    );
    if heads > 0 && heads.max(width) <= MOST_WIDTH && !width.is_multiple_of(heads) {
        let fix = suggest_heads(heads, width);
        need(false, "model.heads", format!("{heads} heads do not divide a width of {width} evenly"), &fix);
    }
    let dropout = model.dropout;
    let droppable = (0.0..1.0).contains(&dropout);
    need(droppable, "model.dropout", format!("{dropout} is not in 0 ≤ x < 1"), "0.0 disables dropout, 0.1 is usual");
    for (knob, given) in [
        ("layers", model.layers.is_some()),
        ("heads", model.heads.is_some()),
        ("width", model.width.is_some()),
        ("tied", model.tied.is_some()),
    ] {
        let own = !given || model.init_from.is_none();
        need(own, &format!("model.{knob}"), "a pretrained model has its own".into(), "omit it");
    }
    if let Some(lora) = &model.lora {
        for target in &lora.targets {
            let known = !layers_of_target(target).is_empty();
            let fix = format!("choose all, or some of {}", TARGETS.join(", "));
            need(known, "model.lora.targets", format!("unknown layer `{target}`"), &fix);
        }
        problems.extend(lora.check("model.lora"));
    }
    problems
}

/// Fills in the sizes and makes paths absolute.
pub fn complete_model(model: &mut TextModel, absolute: &dyn Fn(&str) -> String) {
    if let Some(path) = model.lora.as_mut().and_then(|lora| lora.init_from.as_mut()) {
        *path = absolute(path);
    }
    let Some(path) = &mut model.init_from else {
        let [layers, heads, width] = model.sizes();
        (model.layers, model.heads, model.width) = (Some(layers), Some(heads), Some(width));
        model.tied.get_or_insert(true);
        return;
    };
    if path != hf::SHIPPED {
        *path = absolute(path);
    }
    if model.shape.is_none() {
        // An unreadable config is reported when the model is loaded.
        model.shape = config::read_config(&ModelSource::parse(path), path).ok();
    }
}

/// Returns the tokenizer of a run that names none: the model's own. Bytes would be meaningless to a
/// pretrained model with another vocabulary, so its tokenizer is named even if the file is missing.
pub fn default_tokenizer(model: &TextModel) -> String {
    let knows_bytes = model.shape.as_ref().is_none_or(|shape| shape.vocabulary == BYTE_TOKENS);
    match model.init_from.as_deref().map(ModelSource::parse) {
        Some(ModelSource::Folder(folder, _)) if !knows_bytes || folder.join(export::TOKENIZER).is_file() => {
            folder.join(export::TOKENIZER).display().to_string()
        }
        _ => BYTES.to_owned(),
    }
}

/// Checks that pretrained weights fit, without reading their values.
///
/// # Errors
/// Returns an error that names the file and the mismatch.
pub fn check_pretrained(model: &TextModel) -> Result<(), DataError> {
    let Some(path) = &model.init_from else { return Ok(()) };
    let source = ModelSource::parse(path);
    match &model.shape {
        Some(shape) => hf::check_weights(&source, shape),
        None => hf::check_weights(&source, &config::read_config(&source, path)?),
    }
}

/// Returns the construction plan of the model.
///
/// # Errors
/// Returns an error that names the file and the mismatch.
pub fn build_spec(model: &TextModel, vocabulary: usize) -> Result<ModelSpec, DataError> {
    let shape = match (&model.init_from, &model.shape) {
        (None, _) => model.fresh_shape(vocabulary),
        (Some(_), Some(shape)) => shape.clone(),
        (Some(path), None) => config::read_config(&ModelSource::parse(path), path)?,
    };
    let named = Path::new(model.init_from.as_deref().unwrap_or("model"));
    shape.check().map_err(|error| data_error(named, error.to_string()))?;
    if model.sequence > shape.positions {
        let (sequence, most) = (model.sequence, shape.positions);
        let message = format!("the model has {most} positions; set model.sequence to at most {most}, not {sequence}");
        return Err(data_error(named, message));
    }
    if let Some(lora) = &model.lora {
        check_targets(lora, &shape)?;
    }
    let lora = model.lora.clone().map(|lora| Lora { targets: resolve_targets(&lora), ..lora });
    Ok(ModelSpec { shape, sequence: model.sequence, dropout: model.dropout, lora })
}

/// Returns the weights that a fresh run starts from.
///
/// # Errors
/// Returns an error that names the file and the mismatch.
pub fn load_pretrained(model: &TextModel, spec: &ModelSpec) -> Result<Option<Weights>, DataError> {
    let mut weights = match &model.init_from {
        Some(path) => hf::load_weights(&ModelSource::parse(path), &spec.shape)?,
        None => Weights::new(),
    };
    if let Some((lora, path)) = spec.lora.as_ref().and_then(|lora| Some((lora, lora.init_from.as_ref()?))) {
        let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
        weights.extend(peft::load_adapters(Path::new(path), &spec.shape, lora, &targets)?);
    }
    Ok((!weights.is_empty()).then_some(weights))
}

/// Converts a checkpoint's weights, with the tokenizer of its data, to the files of another program.
///
/// # Errors
/// Returns an error when the checkpoint lacks a tensor, the tokenizer cannot be read, or the model does not suit the format.
pub fn export_weights(
    tokenizer: Option<&str>,
    model: &TextModel,
    weights: Weights,
    format: Format,
) -> Result<Vec<NamedFile>, ExportError> {
    let vocabulary = weights.get("tokens.weight").map_or(0, |data| data.shape[0]);
    let spec = build_spec(model, vocabulary)?;
    let source = model.init_from.as_deref().map(ModelSource::parse);
    match (format, &spec.lora) {
        (Format::HuggingFace, _) => export::model_files(&spec.shape, source.as_ref(), tokenizer, weights),
        (Format::Peft, Some(lora)) => {
            let named = model.init_from.as_deref().unwrap_or_default();
            let base = hf::load_weights(&source.ok_or(ExportError::NoPretrainedBase)?, &spec.shape)?;
            peft::adapter_files(&spec.shape, lora, named, &base, &weights)
        }
        (Format::Peft, None) => Err(ExportError::NoAdapters),
        (Format::Genotype, _) => Err(ExportError::Unsupported { task: <LanguageModel as Task>::NAME, format }),
    }
}

/// Checks that every target is a layer of this model. If none were, there would be no adapters, and the
/// weights themselves would be trained.
fn check_targets(lora: &Lora, shape: &Shape) -> Result<(), DataError> {
    let in_blocks = names::adaptable_layers(shape).into_iter().filter_map(|(path, ..)| path.rsplit('.').next());
    let there: Vec<&str> = in_blocks.chain((!shape.tied).then_some("head")).collect();
    let strange = lora.targets.iter().find(|target| !layers_of_target(target).iter().any(|name| there.contains(name)));
    strange.map_or(Ok(()), |target| {
        let message = format!("the model has no layer `{target}`; choose all, or some of {}", there.join(", "));
        Err(data_error(Path::new("model.lora.targets"), message))
    })
}

/// Returns the layers that get adapters, by downshift's names, each once.
fn resolve_targets(lora: &Lora) -> Vec<String> {
    let wanted = |name: &&&str| lora.targets.iter().any(|target| layers_of_target(target).contains(*name));
    TARGETS.iter().filter(wanted).map(|name| (*name).to_owned()).collect()
}

/// Returns downshift's names for a target: one of its own names, one of Hugging Face's, or `all` for all but the head.
fn layers_of_target(target: &str) -> &'static [&'static str] {
    match target {
        "all" | "all-linear" => &["query", "key", "value", "output", "gate", "widen", "narrow"],
        "query" | "q_proj" => &["query"],
        "key" | "k_proj" => &["key"],
        "value" | "v_proj" => &["value"],
        "output" | "o_proj" => &["output"],
        "gate" | "gate_proj" => &["gate"],
        "widen" | "up_proj" | "c_fc" => &["widen"],
        "narrow" | "down_proj" => &["narrow"],
        "head" | "lm_head" => &["head"],
        "c_attn" => &["query", "key", "value"],
        "c_proj" => &["output", "narrow"],
        _ => &[],
    }
}

/// Returns the divisors of `width` closest to `heads`, as a sentence.
pub fn suggest_heads(heads: usize, width: usize) -> String {
    let fits = |count: &usize| width.is_multiple_of(*count);
    let fewer = (1..heads).rev().find(fits);
    let more = (heads + 1..=width).find(fits);
    match (fewer, more) {
        (Some(fewer), Some(more)) => format!("{fewer} or {more} heads work"),
        (Some(only), None) | (None, Some(only)) => format!("{only} works"),
        (None, None) => "choose a width that is a multiple of the heads".to_owned(),
    }
}
