//! Adapters in the format of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! PEFT stores the transposes: A `[rank, from]`, B `[to, rank]`. GPT-2 has query, key and value in one
//! matrix, where downshift has three. Their adapters are combined into one of three times the rank, side by side:
//!
//! ```text
//! A = Aq over Ak over Av        B = Bq  ·   ·
//!                                    ·  Bk  ·
//!                                    ·   ·  Bv
//! ```
//! A module without an adapter that was trained nevertheless, such as the head, is saved whole, in PEFT's
//! `modules_to_save`.

use super::export::{serialize_safetensors, to_pretty_json};
use super::names::{self, Entry};
use super::transpose;
use super::weights::TensorFiles;
use crate::lora::svd::{Columns, truncate_rank};
use crate::lora::{self, Lora};
use crate::task::{DataError, ExportError, NamedFile, Weights};
use crate::tasks::files::{self, data_error};
use crate::tasks::lm::shape::{Family, Shape};
use burn::tensor::TensorData;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
const ROOT: &str = "base_model.model.";
const HEAD: &str = "lm_head";
/// Downshift's path of the embedding matrix.
const TOKENS: &str = "tokens.weight";

/// A module of the model that can have an adapter: its name, and the downshift layers that share it.
struct Module {
    name: String,
    /// The end of the name, which is the same in every block.
    kind: &'static str,
    paths: Vec<String>,
}

fn adaptable_modules(shape: &Shape) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for block in 0..shape.layers {
        for (ours, theirs, ..) in names::adaptable_layers(shape) {
            let name = format!("{}.{theirs}", names::block_name(shape.family, block));
            let ours = format!("blocks.{block}.{ours}");
            match modules.last_mut().filter(|module| module.name == name) {
                Some(module) => module.paths.push(ours),
                None => modules.push(Module { name, kind: theirs, paths: vec![ours] }),
            }
        }
    }
    if !shape.tied {
        modules.push(Module { name: HEAD.to_owned(), kind: HEAD, paths: vec!["head".to_owned()] });
    }
    modules
}

/// Returns the adapter files for what was trained on top of `base`, the weights of the pretrained model named `named`.
///
/// # Errors
/// Returns an error when the weights contain no adapters, or differ from the base in a way the format cannot express.
pub fn adapter_files(
    shape: &Shape,
    lora: &Lora,
    named: &str,
    base: &Weights,
    weights: &Weights,
) -> Result<Vec<NamedFile>, ExportError> {
    let mut tensors = BTreeMap::new();
    let (mut targets, mut ranks, mut alphas) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let (mut whole, mut saved) = fully_trained(shape, base, weights)?;
    for module in adaptable_modules(shape) {
        let part = |layer: &String, part: &str| weights.get(&format!("{layer}.{part}"));
        let there = module.paths.iter().filter(|layer| part(layer, lora::A).is_some()).count();
        if there == 0 {
            continue;
        }
        if saved.remove(&module.name) {
            return Err(ExportError::TrainedUnderAdapter(module.name));
        }
        let (a, b) = join_adapters(&module, shape, &|layer, name| part(layer, name).cloned());
        if a.shape[0] != lora.rank {
            alphas.insert(module.kind, lora.scale() * a.shape[0] as f64);
            ranks.insert(module.kind, a.shape[0]);
        }
        targets.insert(module.kind);
        tensors.insert(format!("{ROOT}{}.lora_A.weight", module.name), a);
        tensors.insert(format!("{ROOT}{}.lora_B.weight", module.name), b);
    }
    if tensors.is_empty() {
        return Err(ExportError::NoAdapters);
    }
    tensors.append(&mut whole);
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": named,
        "r": lora.rank, "lora_alpha": lora.alpha(), "lora_dropout": lora.dropout, "bias": "none",
        "fan_in_fan_out": shape.family == Family::Gpt2, "target_modules": targets,
        "rank_pattern": ranks, "alpha_pattern": alphas, "inference_mode": true, "init_lora_weights": true,
        "modules_to_save": (!saved.is_empty()).then_some(saved),
    });
    Ok(vec![(CONFIG.to_owned(), to_pretty_json(&config)?), (MODEL.to_owned(), serialize_safetensors(&tensors)?)])
}

/// Returns the modules whose own weights differ from the base, and their tensors by name in the file. PEFT
/// keeps a copy of each, so a tied head is stored in addition to the embedding.
fn fully_trained(
    shape: &Shape,
    base: &Weights,
    weights: &Weights,
) -> Result<(BTreeMap<String, TensorData>, BTreeSet<String>), ExportError> {
    let module = |entry: &Entry| entry.name.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
    let differs = |path: &String| weights.get(path).is_some_and(|values| base.get(path) != Some(values));
    let entries = names::tensor_entries(shape);
    let mut saved: BTreeSet<String> =
        entries.iter().filter(|entry| entry.paths.iter().any(differs)).map(module).collect();
    let mut tensors = BTreeMap::new();
    for entry in entries.iter().filter(|entry| saved.contains(&module(entry))) {
        tensors.insert(format!("{ROOT}{}", entry.name), entry.join(weights)?);
    }
    if let Some(tokens) = weights.get(TOKENS).filter(|_| shape.tied && differs(&TOKENS.to_owned())) {
        tensors.insert(format!("{ROOT}{}", names::HEAD), tokens.clone());
        saved.insert(HEAD.to_owned());
    }
    Ok((tensors, saved))
}

/// Combines the adapters of a module's layers, where present, into A `[rank, from]` and B `[to, rank]`.
fn join_adapters(
    module: &Module,
    shape: &Shape,
    part: &dyn Fn(&String, &str) -> Option<TensorData>,
) -> (TensorData, TensorData) {
    let adapted = module.paths.iter().map(|layer| part(layer, lora::A).zip(part(layer, lora::B)));
    let adapted: Vec<Option<(TensorData, TensorData)>> = adapted.collect();
    let one = adapted.iter().flatten().next().map_or(0, |(_, b)| b.shape[1]);
    let rank: usize = adapted.iter().flatten().map(|(a, _)| a.shape[1]).sum();
    let (mut a, mut b, mut first) = (Vec::new(), Vec::new(), 0);
    for adapter in &adapted {
        // Layers that share a matrix are all as wide as the model.
        let rows = adapter.as_ref().map_or(if module.paths.len() > 1 { shape.width } else { one }, |(_, b)| b.shape[1]);
        let mine = adapter.as_ref().map_or(0, |(a, _)| a.shape[1]);
        let columns: Vec<f32> = adapter.as_ref().map_or(Vec::new(), |(_, b)| transpose(b).iter().collect());
        for row in 0..rows {
            b.extend((0..rank).map(|column| match column.checked_sub(first) {
                Some(column) if column < mine => columns[row * mine + column],
                _ => 0.0,
            }));
        }
        if let Some((low, _)) = adapter {
            a.extend(transpose(low).iter::<f32>());
        }
        first += mine;
    }
    let (from, to) = (a.len() / rank.max(1), b.len() / rank.max(1));
    (TensorData::new(a, [rank, from]), TensorData::new(b, [to, rank]))
}

#[derive(Deserialize)]
struct Config {
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
}

impl Config {
    fn scale(&self, module: &str, rank: usize) -> f64 {
        let named = self.alpha_pattern.iter().find(|(key, _)| module == *key || module.ends_with(&format!(".{key}")));
        let alpha = named.map_or(self.lora_alpha, |(_, alpha)| *alpha);
        alpha / if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 }
    }
}

/// Loads saved adapters by downshift's paths, in the rank and scale that `lora` requests.
///
/// # Errors
/// Returns an error that names the file and the mismatch.
pub fn load_adapters(folder: &Path, shape: &Shape, lora: &Lora, targets: &[&str]) -> Result<Weights, DataError> {
    let path = folder.join(CONFIG);
    let config: Config = serde_json::from_slice(&files::read_file(&path)?)
        .map_err(|error| data_error(&path, format!("is not a LoRA adapter config ({error})")))?;
    if config.use_dora {
        return Err(data_error(&path, "use_dora is true; downshift loads plain LoRA adapters only"));
    }
    let mut tensors = TensorFiles::open(folder, Some(&folder.join(MODEL)))?;
    let shapes = tensors.shapes();
    let (mut weights, mut used) = (Weights::new(), BTreeSet::new());
    for module in adaptable_modules(shape) {
        let [a, b] = ["lora_A", "lora_B"].map(|part| format!("{ROOT}{}.{part}.weight", module.name));
        if !shapes.contains_key(&a) || !shapes.contains_key(&b) {
            continue;
        }
        let scale = config.scale(&module.name, shapes[&a].first().copied().unwrap_or(config.r));
        let (a_values, b_values) = (tensors.read_tensor(&a)?, tensors.read_tensor(&b)?);
        let layers = split_adapter(&module, &a_values, &b_values, scale, lora);
        for (layer, values) in layers.map_err(|error| data_error(tensors.path(), error.to_string()))? {
            let name = layer.rsplit('.').next().unwrap_or_default();
            if targets.contains(&name) {
                weights.extend(values);
            } else if values.iter().any(|(path, data)| path.ends_with(lora::B) && data.iter::<f32>().any(|v| v != 0.0))
            {
                let why =
                    format!("it adapts {layer}, which model.lora.targets omits; add {name} to model.lora.targets");
                return Err(data_error(tensors.path(), why));
            }
        }
        used.extend([a, b]);
    }
    let (whole, names) = load_fully_trained(&mut tensors, shape)?;
    weights.extend(whole);
    used.extend(names);
    let strange: Vec<&str> = shapes.keys().filter(|name| !used.contains(*name)).map(String::as_str).collect();
    if strange.is_empty() && !used.is_empty() {
        return Ok(weights);
    }
    let why = if used.is_empty() {
        "none of its tensors fit this model".into()
    } else {
        format!("unexpected tensors: {}", strange.join(", "))
    };
    Err(data_error(tensors.path(), format!("this adapter belongs to another model: {why}")))
}

/// Returns the values of fully trained modules by downshift's paths, and their names in the file.
fn load_fully_trained(tensors: &mut TensorFiles, shape: &Shape) -> Result<(Weights, Vec<String>), DataError> {
    let (shapes, mut weights, mut used) = (tensors.shapes(), Weights::new(), Vec::new());
    for entry in names::tensor_entries(shape) {
        let name = format!("{ROOT}{}", entry.name);
        if shapes.get(&name) == Some(&entry.dims) {
            weights.extend(entry.split(tensors.read_tensor(&name)?));
            used.push(name);
        }
    }
    if let Some(tokens) = weights.get(TOKENS).filter(|_| shape.tied) {
        let head = format!("{ROOT}{}", names::HEAD);
        if !shapes.contains_key(&head) || tensors.read_tensor(&head)? != *tokens {
            let why =
                "it contains a trained embedding without the same head, but this model shares one matrix for both";
            return Err(data_error(tensors.path(), why));
        }
        used.push(head);
    }
    Ok((weights, used))
}

/// A downshift layer with the values of its adapter, by path.
type Adapted = (String, Vec<(String, TensorData)>);

/// An adapter whose matrices cannot be used.
#[derive(Debug, thiserror::Error)]
enum AdapterError {
    #[error("the adapter of {0} does not consist of two matrices")]
    NotMatrices(String),
    #[error("the adapter of {module} has shapes {a:?} and {b:?}, which do not match")]
    Mismatched { module: String, a: [usize; 2], b: [usize; 2] },
    #[error("the adapter of {module} has rank {rank}; set model.lora.rank to {rank} or less")]
    RankTooLow { module: String, rank: usize },
}

/// Splits a module's adapter into those of the layers that share it, in the rank and scale that `lora` requests.
fn split_adapter(
    module: &Module,
    a: &TensorData,
    b: &TensorData,
    scale: f64,
    lora: &Lora,
) -> Result<Vec<Adapted>, AdapterError> {
    let name = || module.name.clone();
    let (&[rank, from], &[to, other]) = (a.shape.as_slice(), b.shape.as_slice()) else {
        return Err(AdapterError::NotMatrices(name()));
    };
    let count = module.paths.len();
    if rank != other || !to.is_multiple_of(count) {
        return Err(AdapterError::Mismatched { module: name(), a: [rank, from], b: [to, other] });
    }
    if rank < lora.rank {
        return Err(AdapterError::RankTooLow { module: name(), rank });
    }
    let ratio = (scale / lora.scale()) as f32;
    let (a_values, b_values): (Vec<f32>, Vec<f32>) = (a.iter().collect(), b.iter().collect());
    let rows = to / count;
    let adapters = module.paths.iter().zip(b_values.chunks(rows * rank)).map(|(layer, b)| {
        let (low, high) = if rank == lora.rank {
            (transpose(a), transpose(&TensorData::new(b.to_vec(), [rows, rank])))
        } else {
            // PEFT stores the transposes of our A and B: the columns of our A are the rows of PEFT's.
            let (low, high, _) = truncate_rank(
                &Columns::from_rows_transposed(&a_values, rank, from),
                &Columns::from_rows(b, rows, rank),
                lora.rank,
            );
            let (low, high) = (low.to_rows(), high.to_rows_transposed());
            (TensorData::new(low, [from, lora.rank]), TensorData::new(high, [lora.rank, rows]))
        };
        let high = TensorData::new(high.iter::<f32>().map(|value| value * ratio).collect::<Vec<_>>(), high.shape);
        (layer.clone(), vec![(format!("{layer}.{}", lora::A), low), (format!("{layer}.{}", lora::B), high)])
    });
    Ok(adapters.collect())
}
