//! The tensors of a model under Hugging Face's names, mapped to downshift's paths.
//!
//! Downshift's matrices are `[from, to]`. GPT-2 stores its matrices the same way (its `Conv1D`), with query,
//! key and value side by side in one; Llama stores the transpose.

use super::transpose;
use crate::task::{ExportError, Weights};
use crate::tasks::lm::shape::{Activation, Family, Shape};
use burn::tensor::TensorData;

/// The name of the head in both families.
pub const HEAD: &str = "lm_head.weight";

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The tensor's name.
    pub name: String,
    /// The tensor's shape in the file.
    pub dims: Vec<usize>,
    /// Downshift's paths; if there are several, they share its last dimension.
    pub paths: Vec<String>,
    /// Whether downshift's tensor is its transpose.
    pub transposed: bool,
}

impl Entry {
    /// Splits the tensor's values into downshift's tensors by path.
    pub fn split(&self, data: TensorData) -> Vec<(String, TensorData)> {
        let data = if self.transposed { transpose(&data) } else { data };
        if let [only] = self.paths.as_slice() {
            return vec![(only.clone(), data)];
        }
        let mut shape = data.shape.to_vec();
        let all = shape.pop().unwrap_or(1);
        let part = all / self.paths.len();
        shape.push(part);
        let values: Vec<f32> = data.iter().collect();
        let of = |index: usize| values.chunks(all).flat_map(move |row| row[index * part..][..part].iter().copied());
        let parts = self.paths.iter().enumerate();
        parts.map(|(i, path)| (path.clone(), TensorData::new(of(i).collect::<Vec<f32>>(), shape.clone()))).collect()
    }

    /// Builds the tensor's values from downshift's weights. Biases that downshift's model lacks become zeros.
    ///
    /// # Errors
    /// Returns the paths without values.
    pub fn join(&self, weights: &Weights) -> Result<TensorData, ExportError> {
        let parts: Vec<&TensorData> = self.paths.iter().filter_map(|path| weights.get(path)).collect();
        if parts.is_empty()
            && self.dims.len() == 1
            && self.paths.iter().all(|path| path.rsplit('.').next() == Some("bias"))
        {
            return Ok(TensorData::zeros::<f32, _>(self.dims.clone()));
        }
        if parts.len() != self.paths.len() {
            return Err(ExportError::MissingTensors(self.paths.clone()));
        }
        if let [only] = parts.as_slice() {
            return Ok(if self.transposed { transpose(only) } else { (*only).clone() });
        }
        let rows = if self.dims.len() == 2 { self.dims[0] } else { 1 };
        let parts: Vec<Vec<f32>> = parts.into_iter().map(|part| part.iter().collect()).collect();
        let values: Vec<f32> = (0..rows)
            .flat_map(|row| {
                parts.iter().flat_map(move |part| {
                    let width = part.len() / rows;
                    part[row * width..][..width].iter().copied()
                })
            })
            .collect();
        Ok(TensorData::new(values, self.dims.clone()))
    }
}

/// Returns the first part of every name except the head's.
#[must_use]
pub fn name_prefix(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "transformer.",
        Family::Llama => "model.",
    }
}

/// Reports whether a tensor is a buffer that older files contain in addition to the weights.
#[must_use]
pub fn is_buffer(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
}

/// Returns every tensor of a model of this shape.
#[must_use]
pub fn tensor_entries(shape: &Shape) -> Vec<Entry> {
    let mut entries = match shape.family {
        Family::Gpt2 => gpt2_entries(shape),
        Family::Llama => llama_entries(shape),
    };
    if !shape.tied {
        let (dims, transposed) = (vec![shape.vocabulary, shape.width], true);
        entries.push(Entry { name: HEAD.to_owned(), dims, paths: vec!["head.weight".to_owned()], transposed });
    }
    entries
}

/// Returns the layers of a block that can have adapters: downshift's name, their module, their index among
/// the layers that share the module, and the number of these layers.
#[must_use]
pub fn adaptable_layers(shape: &Shape) -> Vec<(&'static str, &'static str, usize, usize)> {
    match shape.family {
        Family::Gpt2 => vec![
            ("attention.query", "attn.c_attn", 0, 3),
            ("attention.key", "attn.c_attn", 1, 3),
            ("attention.value", "attn.c_attn", 2, 3),
            ("attention.output", "attn.c_proj", 0, 1),
            ("widen", "mlp.c_fc", 0, 1),
            ("narrow", "mlp.c_proj", 0, 1),
        ],
        Family::Llama => {
            let mut layers = vec![
                ("attention.query", "self_attn.q_proj", 0, 1),
                ("attention.key", "self_attn.k_proj", 0, 1),
                ("attention.value", "self_attn.v_proj", 0, 1),
                ("attention.output", "self_attn.o_proj", 0, 1),
                ("widen", "mlp.up_proj", 0, 1),
                ("narrow", "mlp.down_proj", 0, 1),
            ];
            if shape.activation == Activation::Silu {
                layers.push(("gate", "mlp.gate_proj", 0, 1));
            }
            layers
        }
    }
}

/// Returns the name of a block's module in the file.
#[must_use]
pub fn block_name(family: Family, block: usize) -> String {
    match family {
        Family::Gpt2 => format!("transformer.h.{block}"),
        Family::Llama => format!("model.layers.{block}"),
    }
}

fn entry(name: impl Into<String>, dims: &[usize], paths: &[String], transposed: bool) -> Entry {
    Entry { name: name.into(), dims: dims.to_vec(), paths: paths.to_vec(), transposed }
}

fn gpt2_entries(shape: &Shape) -> Vec<Entry> {
    let Shape { layers, width, hidden, vocabulary, positions, .. } = *shape;
    let one = |ours: &str| [ours.to_owned()];
    let mut all = vec![
        entry("transformer.wte.weight", &[vocabulary, width], &one("tokens.weight"), false),
        entry("transformer.wpe.weight", &[positions, width], &one("positions"), false),
    ];
    let norm = |all: &mut Vec<Entry>, theirs: &str, ours: &str| {
        all.push(entry(format!("{theirs}.weight"), &[width], &one(&format!("{ours}.gamma")), false));
        all.push(entry(format!("{theirs}.bias"), &[width], &one(&format!("{ours}.beta")), false));
    };
    for index in 0..layers {
        let (theirs, ours) = (block_name(Family::Gpt2, index), format!("blocks.{index}"));
        norm(&mut all, &format!("{theirs}.ln_1"), &format!("{ours}.attention_norm"));
        norm(&mut all, &format!("{theirs}.ln_2"), &format!("{ours}.widen_norm"));
        for (module, names, from, to) in [
            ("attn.c_attn", &["attention.query", "attention.key", "attention.value"][..], width, 3 * width),
            ("attn.c_proj", &["attention.output"], width, width),
            ("mlp.c_fc", &["widen"], width, hidden),
            ("mlp.c_proj", &["narrow"], hidden, width),
        ] {
            let paths = |part: &str| names.iter().map(|name| format!("{ours}.{name}.{part}")).collect::<Vec<_>>();
            all.push(entry(format!("{theirs}.{module}.weight"), &[from, to], &paths("weight"), false));
            all.push(entry(format!("{theirs}.{module}.bias"), &[to], &paths("bias"), false));
        }
    }
    norm(&mut all, "transformer.ln_f", "norm");
    all
}

fn llama_entries(shape: &Shape) -> Vec<Entry> {
    let Shape { width, hidden, vocabulary, heads, kv_heads, head_size, .. } = *shape;
    let one = |ours: &str| [ours.to_owned()];
    let mut all = vec![entry("model.embed_tokens.weight", &[vocabulary, width], &one("tokens.weight"), false)];
    for index in 0..shape.layers {
        let (theirs, ours) = (block_name(Family::Llama, index), format!("blocks.{index}"));
        for (norm, name) in [("input_layernorm", "attention_norm"), ("post_attention_layernorm", "widen_norm")] {
            let path = one(&format!("{ours}.{name}.gamma"));
            all.push(entry(format!("{theirs}.{norm}.weight"), &[width], &path, false));
        }
        let (query_width, kv_width) = (heads * head_size, kv_heads * head_size);
        for (module, name, from, to, bias) in [
            ("self_attn.q_proj", "attention.query", width, query_width, shape.attention_bias),
            ("self_attn.k_proj", "attention.key", width, kv_width, shape.attention_bias),
            ("self_attn.v_proj", "attention.value", width, kv_width, shape.attention_bias),
            ("self_attn.o_proj", "attention.output", query_width, width, shape.attention_bias),
            ("mlp.gate_proj", "gate", width, hidden, shape.hidden_bias),
            ("mlp.up_proj", "widen", width, hidden, shape.hidden_bias),
            ("mlp.down_proj", "narrow", hidden, width, shape.hidden_bias),
        ] {
            let path = |part: &str| one(&format!("{ours}.{name}.{part}"));
            all.push(entry(format!("{theirs}.{module}.weight"), &[to, from], &path("weight"), true));
            if bias {
                all.push(entry(format!("{theirs}.{module}.bias"), &[to], &path("bias"), false));
            }
        }
    }
    all.push(entry("model.norm.weight", &[width], &one("norm.gamma"), false));
    all
}
