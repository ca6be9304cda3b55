//! The shape of a decoder: one model with options covers downshift's own, GPT-2's and Llama's.

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
