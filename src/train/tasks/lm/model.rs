//! A decoder-only transformer (Radford et al., 2019, without biases in its linear layers).
//!
//! ```text
//! tokens ─ embed + position ─ dropout ─ block × layers ─ norm ─ head ─ logits
//!
//! block:  x ─ norm ─ causal attention ─ dropout ─(+ x)─ norm ─ linear ×4 ─ gelu ─ linear ─ dropout ─(+)
//! ```
//! Norms come before what they feed (pre-norm). A tied head multiplies by the transpose of the
//! embedding matrix: one parameter, used twice.

use super::TextModel;
use burn::module::{Module, Param};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{DType, FloatDType, Int, Tensor, activation, backend::Backend};

/// The hidden layer of a block is so many times as wide as the model.
const EXPANSION: usize = 4;

/// The model.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    tokens: Embedding<B>,
    positions: Param<Tensor<B, 2>>,
    dropout: Dropout,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    /// None where the head is tied to `tokens`.
    head: Option<Linear<B>>,
    /// What is added to attention scores, `[1, 1, sequence, sequence]`: 0 where a position may look,
    /// minus infinity at later ones. No parameter.
    mask: Tensor<B, 4>,
}

/// One transformer block.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    attention: Attention<B>,
    widen_norm: LayerNorm<B>,
    widen: Linear<B>,
    narrow: Linear<B>,
    dropout: Dropout,
}

/// Causal self-attention with several heads.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    output: Linear<B>,
    dropout: Dropout,
    heads: usize,
}

impl<B: Backend> Transformer<B> {
    /// A fresh model for tokens below `vocabulary`.
    pub fn new(config: &TextModel, vocabulary: usize, device: &B::Device) -> Self {
        let TextModel { layers, width, sequence, .. } = *config;
        let normal = Initializer::Normal { mean: 0.0, std: spread(config) };
        Self {
            tokens: EmbeddingConfig::new(vocabulary, width).with_initializer(normal.clone()).init(device),
            positions: normal.init([sequence, width], device),
            dropout: DropoutConfig::new(config.dropout).init(),
            blocks: (0..layers).map(|_| Block::new(config, device)).collect(),
            norm: LayerNormConfig::new(width).init(device),
            head: (!config.tied).then(|| linear(width, vocabulary, spread(config), device)),
            mask: causal_mask(sequence, device),
        }
    }

    /// Tokens `[batch, length]` to logits `[batch, length, vocabulary]`, length up to `sequence`.
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [_, length] = tokens.dims();
        let mask = self.mask.clone().slice([0..1, 0..1, 0..length, 0..length]);
        let positions = self.positions.val().narrow(0, 0, length).unsqueeze::<3>();
        let x = self.dropout.forward(self.tokens.forward(tokens) + positions);
        let x = self.norm.forward(self.blocks.iter().fold(x, |x, block| block.forward(x, mask.clone())));
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.tokens.weight.val().transpose().unsqueeze()),
        }
    }
}

impl<B: Backend> Block<B> {
    fn new(config: &TextModel, device: &B::Device) -> Self {
        let TextModel { width, .. } = *config;
        Self {
            attention_norm: LayerNormConfig::new(width).init(device),
            attention: Attention::new(config, device),
            widen_norm: LayerNormConfig::new(width).init(device),
            widen: linear(width, EXPANSION * width, spread(config), device),
            narrow: linear(EXPANSION * width, width, onto_the_residual(config), device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    /// `[batch, length, width]` to the same shape.
    fn forward(&self, x: Tensor<B, 3>, mask: Tensor<B, 4>) -> Tensor<B, 3> {
        let attended = self.attention.forward(self.attention_norm.forward(x.clone()), mask);
        let x = x + self.dropout.forward(attended);
        let hidden = activation::gelu(self.widen.forward(self.widen_norm.forward(x.clone())));
        x + self.dropout.forward(self.narrow.forward(hidden))
    }
}

impl<B: Backend> Attention<B> {
    fn new(config: &TextModel, device: &B::Device) -> Self {
        let TextModel { width, heads, .. } = *config;
        Self {
            query: linear(width, width, spread(config), device),
            key: linear(width, width, spread(config), device),
            value: linear(width, width, spread(config), device),
            output: linear(width, width, onto_the_residual(config), device),
            dropout: DropoutConfig::new(config.dropout).init(),
            heads,
        }
    }

    /// `[batch, length, width]` to the same shape: softmax(q kᵀ / √d + mask) v for each head of
    /// size d (Vaswani et al., 2017).
    fn forward(&self, x: Tensor<B, 3>, mask: Tensor<B, 4>) -> Tensor<B, 3> {
        let [batch, length, width] = x.dims();
        let size = width / self.heads;
        let split = |x: Tensor<B, 3>| x.reshape([batch, length, self.heads, size]).swap_dims(1, 2);
        let query = split(self.query.forward(x.clone())) * (size as f64).powf(-0.5);
        let key = split(self.key.forward(x.clone()));
        let value = split(self.value.forward(x));
        let weights = activation::softmax(query.matmul(key.swap_dims(2, 3)) + mask, 3);
        let mixed = self.dropout.forward(weights).matmul(value);
        self.output.forward(mixed.swap_dims(1, 2).reshape([batch, length, width]))
    }
}

/// Cross-entropy of each token: logits `[batch, length, vocabulary]` and targets `[batch, length]`
/// to losses `[batch × length]`, computed in f32 whatever the precision of the model.
pub fn token_losses<B: Backend>(logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
    let [batch, length, vocabulary] = logits.dims();
    let count = batch * length;
    let logits = logits.reshape([count, vocabulary]);
    let logits = if logits.dtype() == DType::F32 { logits } else { logits.cast(FloatDType::F32) };
    activation::log_softmax(logits, 1).gather(1, targets.reshape([count, 1])).reshape([count]).neg()
}

fn linear<B: Backend>(from: usize, to: usize, spread: f64, device: &B::Device) -> Linear<B> {
    let initializer = Initializer::Normal { mean: 0.0, std: spread };
    LinearConfig::new(from, to).with_bias(false).with_initializer(initializer).init(device)
}

/// Standard deviation of fresh weights: √(2 / 5 width) (Nguyen and Salazar, 2019).
fn spread(config: &TextModel) -> f64 {
    (0.4 / config.width as f64).sqrt()
}

/// The spread of layers that add onto the residual path: smaller the more of them there are, two a
/// block (Radford et al., 2019).
fn onto_the_residual(config: &TextModel) -> f64 {
    spread(config) / (2.0 * config.layers as f64).sqrt()
}

fn causal_mask<B: Backend>(sequence: usize, device: &B::Device) -> Tensor<B, 4> {
    let later = Tensor::<B, 2>::ones([sequence, sequence], device).triu(1).equal_elem(1.0);
    Tensor::<B, 2>::zeros([sequence, sequence], device).mask_fill(later, f32::NEG_INFINITY).unsqueeze()
}
