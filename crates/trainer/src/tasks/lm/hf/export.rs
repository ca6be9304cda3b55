//! Export of weights to a folder that transformers loads: adapters merged, names of the model family.

use super::{ModelSource, config, names};
use crate::lora::rank_change;
use crate::task::{ExportError, NamedFile, Weights};
use crate::tasks::lm::shape::Shape;
use crate::tasks::lm::text::BYTES;
use burn::tensor::TensorData;
use downshift_core::untrusted::file::{Limit, read};
use safetensors::{Dtype, SafeTensorError, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The standard name of the tokenizer file.
pub const TOKENIZER: &str = "tokenizer.json";

/// Returns the files of the folder, including a config that came with the model, and the tokenizer of its data or the one that
/// came with the model.
///
/// # Errors
/// Returns an error when the checkpoint lacks a tensor of the model, or the tokenizer of its data cannot be read.
pub fn model_files(
    shape: &Shape,
    source: Option<&ModelSource>,
    tokenizer: Option<&str>,
    mut weights: Weights,
) -> Result<Vec<NamedFile>, ExportError> {
    rank_change::merge_adapters(&mut weights);
    let entries = names::tensor_entries(shape);
    let tensors: Result<BTreeMap<String, TensorData>, ExportError> =
        entries.into_iter().map(|entry| Ok((entry.name.clone(), entry.join(&weights)?))).collect();
    let mut config = source
        .and_then(|source| source.read_file(config::FILE).ok())
        .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
        .unwrap_or_else(|| config::to_config(shape));
    for key in ["dtype", "torch_dtype"] {
        if config.get(key).is_some() {
            config[key] = json!("float32");
        }
    }
    let mut files = vec![
        (config::FILE.to_owned(), to_pretty_json(&config)?),
        ("model.safetensors".to_owned(), serialize_safetensors(&tensors?)?),
    ];
    let own_tokenizer = tokenizer.filter(|name| *name != BYTES).map(read_tokenizer).transpose()?;
    let has_own = own_tokenizer.is_some();
    files.extend(own_tokenizer);
    for name in [TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"] {
        if has_own && name == TOKENIZER {
            continue;
        }
        let path = source.and_then(|source| source.path_of(name));
        if let Some(text) = path.and_then(|path| read(&path, Limit::Record).ok()) {
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

fn read_tokenizer(path: &str) -> Result<NamedFile, ExportError> {
    match read(Path::new(path), Limit::Record) {
        Ok(text) => Ok((TOKENIZER.to_owned(), text)),
        Err(error) => Err(format!("data.tokenizer: {path}: {error}; put it back, since the export includes it").into()),
    }
}

/// Serializes JSON with one line per value.
///
/// # Errors
/// Returns an error when JSON cannot represent a value.
pub fn to_pretty_json(value: &Value) -> Result<Vec<u8>, ExportError> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Serializes a safetensors file with the `format: pt` metadata (PyTorch conventions) that transformers requires.
///
/// # Errors
/// Returns an error when the format cannot represent the tensors.
pub fn serialize_safetensors(tensors: &BTreeMap<String, TensorData>) -> Result<Vec<u8>, SafeTensorError> {
    let views: Result<BTreeMap<&str, TensorView<'_>>, SafeTensorError> = tensors
        .iter()
        .map(|(name, data)| Ok((name.as_str(), TensorView::new(Dtype::F32, data.shape.to_vec(), data.as_bytes())?)))
        .collect();
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views?, Some(about))
}
