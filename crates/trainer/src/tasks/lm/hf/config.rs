//! `config.json`: the shape of a decoder in Hugging Face's terms.

use super::ModelSource;
use crate::task::DataError;
use crate::tasks::files::data_error;
use crate::tasks::lm::shape::{Activation, Family, Shape, ShapeError};
use serde_json::{Value, json};
use std::path::Path;

/// The name of the file.
pub const FILE: &str = "config.json";

/// A config.json that downshift cannot load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A size is missing or not a positive integer.
    #[error("{0} is missing or is not a size")]
    Size(&'static str),
    /// A value that downshift does not support.
    #[error("{key} is {found}; downshift loads {supported}")]
    Unsupported {
        /// The key of the value.
        key: &'static str,
        /// The value.
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// A width that the heads cannot share evenly.
    #[error("{heads} heads do not divide a width of {width} evenly")]
    UnevenWidth {
        /// Attention heads.
        heads: usize,
        /// The model's width.
        width: usize,
    },
    /// Sizes that make no valid model.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

impl ConfigError {
    fn unsupported(key: &'static str, found: &str, supported: &'static str) -> Self {
        Self::Unsupported { key, found: found.to_owned(), supported }
    }
}

/// Reads the shape of the model at a location.
///
/// # Errors
/// Returns an error that names the unreadable file, or the feature that downshift does not support.
pub fn read_config(source: &ModelSource, named: &str) -> Result<Shape, DataError> {
    let fail = |why: String| data_error(&Path::new(named).join(FILE), why);
    let text = source.read_file(FILE)?;
    let config: Value = serde_json::from_slice(&text).map_err(|error| fail(format!("is not valid JSON ({error})")))?;
    parse_config(&config).map_err(|error| fail(error.to_string()))
}

/// Returns the shape that a config describes.
///
/// # Errors
/// Returns the missing or unsupported value.
pub fn parse_config(config: &Value) -> Result<Shape, ConfigError> {
    let config = Config(config);
    let shape = match config.0.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => gpt2_shape(&config)?,
        Some("llama") => llama_shape(&config)?,
        other => return Err(ConfigError::unsupported("model_type", other.unwrap_or("missing"), "gpt2 and llama")),
    };
    shape.check()?;
    Ok(shape)
}

struct Config<'a>(&'a Value);

impl Config<'_> {
    fn size(&self, key: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(key).ok_or(ConfigError::Size(key))
    }

    fn optional_size(&self, key: &str) -> Option<usize> {
        self.0.get(key)?.as_u64().map(|size| size as usize)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    fn flag(&self, key: &str, usual: bool) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(usual)
    }

    fn word(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// Rejects a flag that differs from its usual value, since the model would compute something else than
    /// downshift does.
    fn require(&self, key: &'static str, usual: bool) -> Result<(), ConfigError> {
        let found = self.flag(key, usual);
        let name = |flag: bool| if flag { "true" } else { "false" };
        if found == usual { Ok(()) } else { Err(ConfigError::unsupported(key, name(found), name(usual))) }
    }
}

fn gpt2_shape(config: &Config<'_>) -> Result<Shape, ConfigError> {
    config.require("scale_attn_weights", true)?;
    config.require("scale_attn_by_inverse_layer_idx", false)?;
    config.require("add_cross_attention", false)?;
    let (width, heads) = (config.size("n_embd")?, config.size("n_head")?);
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(ConfigError::UnevenWidth { heads, width });
    }
    let activation = match config.word("activation_function").unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::Gelu,
        other => return Err(ConfigError::unsupported("activation_function", other, "gelu_new and gelu")),
    };
    Ok(Shape {
        family: Family::Gpt2,
        layers: config.size("n_layer")?,
        heads,
        kv_heads: heads,
        head_size: width / heads,
        width,
        hidden: config.optional_size("n_inner").unwrap_or(width.saturating_mul(4)),
        vocabulary: config.size("vocab_size")?,
        positions: config.size("n_positions")?,
        epsilon: config.number("layer_norm_epsilon").unwrap_or(1e-5),
        theta: 0.0,
        activation,
        attention_bias: true,
        hidden_bias: true,
        tied: config.flag("tie_word_embeddings", true),
    })
}

fn llama_shape(config: &Config<'_>) -> Result<Shape, ConfigError> {
    // Older files have rope_theta and rope_scaling; newer files have both in rope_parameters.
    let given = |key| config.0.get(key).filter(|value| !value.is_null());
    let rope = given("rope_parameters").or_else(|| given("rope_scaling")).unwrap_or(&Value::Null);
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
    if kind != "default" {
        return Err(ConfigError::unsupported("rope_type", kind, "default"));
    }
    let activation = config.word("hidden_act").unwrap_or("silu");
    if activation != "silu" {
        return Err(ConfigError::unsupported("hidden_act", activation, "silu"));
    }
    let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    Ok(Shape {
        family: Family::Llama,
        layers: config.size("num_hidden_layers")?,
        heads,
        kv_heads: config.optional_size("num_key_value_heads").unwrap_or(heads),
        head_size: config.optional_size("head_dim").unwrap_or(width / heads.max(1)),
        width,
        hidden: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        positions: config.optional_size("max_position_embeddings").unwrap_or(2048),
        epsilon: config.number("rms_norm_eps").unwrap_or(1e-6),
        theta: rope.get("rope_theta").and_then(Value::as_f64).or(config.number("rope_theta")).unwrap_or(10_000.0),
        activation: Activation::Silu,
        attention_bias: config.flag("attention_bias", false),
        hidden_bias: config.flag("mlp_bias", false),
        tied: config.flag("tie_word_embeddings", false),
    })
}

/// Returns the config of a shape.
#[must_use]
pub fn to_config(shape: &Shape) -> Value {
    let Shape { layers, heads, kv_heads, head_size, width, hidden, vocabulary, positions, epsilon, tied, .. } = *shape;
    match shape.family {
        Family::Gpt2 => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": if shape.activation == Activation::GeluTanh { "gelu_new" } else { "gelu" },
            "n_embd": width, "n_head": heads, "n_inner": hidden, "n_layer": layers, "n_positions": positions,
            "vocab_size": vocabulary, "layer_norm_epsilon": epsilon, "tie_word_embeddings": tied,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
            "bos_token_id": Value::Null, "eos_token_id": Value::Null, "torch_dtype": "float32",
        }),
        Family::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_size,
            "max_position_embeddings": positions, "vocab_size": vocabulary, "rms_norm_eps": epsilon,
            "rope_theta": shape.theta, "attention_bias": shape.attention_bias, "mlp_bias": shape.hidden_bias,
            "tie_word_embeddings": tied,
            "bos_token_id": Value::Null, "eos_token_id": Value::Null, "torch_dtype": "float32",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigError, ShapeError, parse_config, to_config};
    use serde_json::json;

    #[test]
    fn a_written_config_reads_back_as_the_same_shape() {
        let llama = json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "rope_theta": 5000.0,
        });
        let gpt2 = json!({
            "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 96,
        });
        for config in [llama, gpt2] {
            let shape = parse_config(&config).unwrap();
            assert_eq!(parse_config(&to_config(&shape)), Ok(shape));
        }
    }

    #[test]
    fn unsupported_features_are_refused_by_name() {
        let llama = json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
        });
        let unsupported = |key, found: &str, supported| ConfigError::unsupported(key, found, supported);
        for (key, value, wanted) in [
            ("model_type", json!("mamba"), unsupported("model_type", "mamba", "gpt2 and llama")),
            (
                "rope_parameters",
                json!({"rope_type": "llama3", "rope_theta": 1e4}),
                unsupported("rope_type", "llama3", "default"),
            ),
            ("rope_scaling", json!({"type": "linear", "factor": 2.0}), unsupported("rope_type", "linear", "default")),
            ("hidden_act", json!("relu"), unsupported("hidden_act", "relu", "silu")),
            ("num_key_value_heads", json!(3), ShapeError::UnevenHeads { heads: 4, kv_heads: 3 }.into()),
            ("head_dim", json!(7), ShapeError::OddHead(7).into()),
            ("hidden_size", json!("wide"), ConfigError::Size("hidden_size")),
        ] {
            let mut config = llama.clone();
            // Older keys next to the empty key of newer files.
            config["rope_parameters"] = json!(null);
            config[key] = value;
            assert_eq!(parse_config(&config), Err(wanted));
        }
        let gpt2 = json!({
            "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 96,
        });
        for (key, value) in
            [("scale_attn_weights", false), ("scale_attn_by_inverse_layer_idx", true), ("add_cross_attention", true)]
        {
            let mut config = gpt2.clone();
            config[key] = json!(!value);
            assert!(parse_config(&config).is_ok());
            config[key] = json!(value);
            let supported = if value { "false" } else { "true" };
            assert_eq!(parse_config(&config), Err(unsupported(key, &value.to_string(), supported)));
        }
    }
}
