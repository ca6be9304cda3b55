//! Export of weights to a folder that transformers loads: adapters merged, names of the model family.

use super::{Place, config, names};
use crate::train::lora::refit;
use crate::train::task::{NamedFile, Weights};
use crate::train::tasks::lm::shape::Shape;
use crate::untrusted::file::{Limit, read};
use burn::tensor::TensorData;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// The standard name of the tokenizer file.
pub const TOKENIZER: &str = "tokenizer.json";

/// Returns the files of the folder, including a config and a tokenizer that came with the model.
///
/// # Errors
/// Returns a message that names the tensors missing from the checkpoint.
pub fn files(shape: &Shape, place: Option<&Place>, mut weights: Weights) -> Result<Vec<NamedFile>, String> {
    refit::merge(&mut weights);
    let entries = names::entries(shape);
    let tensors: Result<BTreeMap<String, TensorData>, String> =
        entries.into_iter().map(|entry| Ok((entry.name.clone(), entry.theirs(&weights)?))).collect();
    let mut config = place
        .and_then(|place| place.read(config::FILE).ok())
        .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
        .unwrap_or_else(|| config::write(shape));
    for key in ["dtype", "torch_dtype"] {
        if config.get(key).is_some() {
            config[key] = json!("float32");
        }
    }
    let mut files =
        vec![(config::FILE.to_owned(), pretty(&config)?), ("model.safetensors".to_owned(), safetensors(&tensors?)?)];
    for name in [TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"] {
        let path = place.and_then(|place| place.path_of(name));
        if let Some(text) = path.and_then(|path| read(&path, Limit::Record).ok()) {
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

/// Serializes JSON with one line per value.
///
/// # Errors
/// Returns a message when JSON cannot represent a value.
pub fn pretty(value: &Value) -> Result<Vec<u8>, String> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| error.to_string())?;
    text.push(b'\n');
    Ok(text)
}

/// Serializes a safetensors file with the `format: pt` metadata (PyTorch conventions) that transformers requires.
///
/// # Errors
/// Returns a message when the format cannot represent the tensors.
pub fn safetensors(tensors: &BTreeMap<String, TensorData>) -> Result<Vec<u8>, String> {
    let views: Result<BTreeMap<&str, TensorView<'_>>, _> = tensors
        .iter()
        .map(|(name, data)| Ok((name.as_str(), TensorView::new(Dtype::F32, data.shape.to_vec(), data.as_bytes())?)))
        .collect();
    let views = views.map_err(|error: safetensors::SafeTensorError| error.to_string())?;
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(about)).map_err(|error| error.to_string())
}
