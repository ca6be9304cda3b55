//! The shape of a decoder: one model with options covers downshift's own models, GPT-2 and Llama.

use crate::task::{MOST_LAYERS, MOST_WIDTH};
use serde::{Deserialize, Serialize};

/// The conventions of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Layer norms, learned positions, a hidden layer with GELU (Radford et al., 2019).
    Gpt2,
    /// RMS norms (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), a gated hidden layer
    /// (SwiGLU: Shazeer, 2020).
    Llama,
}

/// The activation function of a hidden layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·Φ(x).
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// x·sigmoid(x), applied to the gate.
    Silu,
}

/// Every size and option that a decoder's weights depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Norms, positions and hidden layer.
    pub family: Family,
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves heads / kv_heads query heads (Ainslie et al., 2023).
    pub kv_heads: usize,
    /// Values per head.
    pub head_size: usize,
    /// Values per token (the model's width).
    pub width: usize,
    /// Values of a block's hidden layer.
    pub hidden: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// The maximum sequence length.
    pub positions: usize,
    /// The term added to the variance in norms.
    pub epsilon: f64,
    /// The base of rotary positions.
    pub theta: f64,
    /// The activation function of the hidden layer.
    pub activation: Activation,
    /// Whether the attention projections have biases.
    pub attention_bias: bool,
    /// Whether the projections of the hidden layer have biases.
    pub hidden_bias: bool,
    /// Whether the head shares the embedding matrix.
    pub tied: bool,
}

/// A size that makes no valid decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A size beyond what any machine can train.
    #[error("the model would have {size} {what}; at most {most} are allowed")]
    TooLarge {
        /// The size's meaning.
        what: &'static str,
        /// Its value.
        size: usize,
        /// The limit.
        most: usize,
    },
    /// A size of zero.
    #[error("the model would have 0 {0}; at least 1 is needed")]
    Zero(&'static str),
    /// Query heads that cannot share the key-value heads evenly.
    #[error("{kv_heads} key-value heads do not divide {heads} heads evenly")]
    UnevenHeads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// A head whose halves rotary positions cannot pair.
    #[error("a head has {0} values; rotary positions need an even number")]
    OddHead(usize),
}

impl Shape {
    /// Checks that these sizes make a valid model.
    ///
    /// # Errors
    /// Returns the first invalid size.
    pub fn check(&self) -> Result<(), ShapeError> {
        let Self { heads, kv_heads, head_size, .. } = *self;
        let sizes = [
            ("blocks", self.layers, MOST_LAYERS),
            ("heads", heads, MOST_WIDTH),
            ("key-value heads", kv_heads, MOST_WIDTH),
            ("values per head", head_size, MOST_WIDTH),
            ("values per token", self.width, MOST_WIDTH),
            ("values in the hidden layer", self.hidden, MOST_WIDTH),
            ("tokens in the vocabulary", self.vocabulary, MOST_WIDTH),
            ("positions", self.positions, MOST_WIDTH),
        ];
        if let Some((what, size, most)) = sizes.into_iter().find(|(_, size, most)| size > most) {
            return Err(ShapeError::TooLarge { what, size, most });
        }
        if let Some((what, ..)) = sizes.into_iter().find(|(_, size, _)| *size == 0) {
            return Err(ShapeError::Zero(what));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(ShapeError::UnevenHeads { heads, kv_heads });
        }
        if self.family == Family::Llama && !head_size.is_multiple_of(2) {
            return Err(ShapeError::OddHead(head_size));
        }
        Ok(())
    }

    /// Returns the parameter count, without adapters. Sizes that pass [`Shape::check`] cannot overflow it.
    #[must_use]
    pub fn parameter_count(&self) -> u128 {
        let sizes = [self.layers, self.heads, self.kv_heads, self.head_size, self.width, self.hidden];
        let [layers, heads, kv_heads, head_size, width, hidden] = sizes.map(|size| size as u128);
        let [vocabulary, positions] = [self.vocabulary, self.positions].map(|size| size as u128);
        let bias = u128::from(self.attention_bias);
        let attention = (width + bias) * head_size * (heads + 2 * kv_heads) + (heads * head_size + bias) * width;
        let (llama, bias) = (self.family == Family::Llama, u128::from(self.hidden_bias));
        let ups = if llama { 2 } else { 1 };
        let norm = if llama { width } else { 2 * width };
        let block = attention + ups * (width + bias) * hidden + (hidden + bias) * width + 2 * norm;
        let tokens = vocabulary * width * if self.tied { 1 } else { 2 };
        layers * block + tokens + norm + if llama { 0 } else { positions * width }
    }
}
