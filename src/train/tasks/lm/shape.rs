//! The shape of a decoder: one model with options covers downshift's own, GPT-2's and Llama's.

use crate::train::task::{MOST_LAYERS, MOST_WIDTH};
use serde::{Deserialize, Serialize};

/// Whose conventions a decoder follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Layer norms, learnt positions, a hidden layer with GELU (Radford et al., 2019).
    Gpt2,
    /// RMS norms (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), a gated hidden layer
    /// (SwiGLU: Shazeer, 2020).
    Llama,
}

/// The function in a hidden layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·Φ(x).
    Gelu,
    /// GELU by way of tanh.
    GeluTanh,
    /// x·sigmoid(x), of the gate.
    Silu,
}

/// Every size and option that the weights of a decoder depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Norms, positions and hidden layer.
    pub family: Family,
    /// Blocks.
    pub layers: usize,
    /// Heads that ask.
    pub heads: usize,
    /// Heads that answer; each serves heads / kv_heads of those that ask (Ainslie et al., 2023).
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
    /// Numbers that stand for a token.
    pub width: usize,
    /// Numbers of the hidden layer in a block.
    pub hidden: usize,
    /// Tokens that there are.
    pub vocabulary: usize,
    /// The longest sequence.
    pub positions: usize,
    /// Added to the variance in norms.
    pub epsilon: f64,
    /// The base of rotary positions.
    pub theta: f64,
    /// The function in the hidden layer.
    pub activation: Activation,
    /// Whether attention's layers have biases.
    pub attention_bias: bool,
    /// Whether the layers of the hidden layer have biases.
    pub hidden_bias: bool,
    /// Whether the head reads tokens off with the matrix that looks them up.
    pub tied: bool,
}

impl Shape {
    /// Sees that these sizes make a model.
    ///
    /// # Errors
    /// A sentence about the size that does not.
    pub fn check(&self) -> Result<(), String> {
        let Self { heads, kv_heads, head_size, .. } = *self;
        let sizes = [
            ("blocks", self.layers, MOST_LAYERS),
            ("heads", heads, MOST_WIDTH),
            ("key-value heads", kv_heads, MOST_WIDTH),
            ("numbers of a head", head_size, MOST_WIDTH),
            ("numbers that stand for a token", self.width, MOST_WIDTH),
            ("numbers of the hidden layer", self.hidden, MOST_WIDTH),
            ("tokens in the vocabulary", self.vocabulary, MOST_WIDTH),
            ("positions", self.positions, MOST_WIDTH),
        ];
        if let Some((name, size, most)) = sizes.iter().find(|(_, size, most)| size > most) {
            return Err(format!("its sizes make no model: {size} {name}, and at most {most} can be built"));
        }
        if sizes.iter().any(|(_, size, _)| *size == 0) || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "its sizes make no model: {heads} heads, {kv_heads} key-value heads, a width of {}",
                self.width
            ));
        }
        if self.family == Family::Llama && !head_size.is_multiple_of(2) {
            return Err(format!("a head of {head_size} numbers cannot be turned; rotary positions need an even count"));
        }
        Ok(())
    }

    /// Numbers in the weights, adapters left out. Sizes that [`Shape::check`] lets pass cannot overflow it.
    #[must_use]
    pub fn parameters(&self) -> u128 {
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
