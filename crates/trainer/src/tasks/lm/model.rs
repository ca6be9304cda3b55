//! A decoder-only transformer, with the options in which GPT-2 (Radford et al., 2019) and Llama (Touvron et
//! al., 2023) differ.
//!
//! ```text
//! tokens ─ embed (+ position) ─ dropout ─ block × layers ─ norm ─ head ─ logits
//!
//! block:  x ─ norm ─ causal attention ─ dropout ─(+ x)─ norm ─ hidden layer ─ dropout ─(+)
//! hidden: down(gelu(up(x)))   or   down(silu(gate(x)) · up(x))
//! ```
//! Norms come before the layers they feed (pre-norm). Positions are learned and added to the embedding, or
//! rotate queries and keys. A tied head multiplies by the transpose of the embedding matrix: one parameter, used twice.
//!
//! Field names are parameter paths: checkpoints, `model.lora.targets` and `optimizer.groups` contain them. So the
//! up-projection and the down-projection of a block keep their names `widen` and `narrow`.

use super::attention::{Attention, AttentionContext, Rotary};
use super::attention_op::{AttentionFn, plain_attention};
use super::layer_builder::{LayerBuilder, ModelSpec};
use super::loss::{Term, Terms};
use super::shape::{Activation, Family, Shape};
use crate::lora::projection::Projection;
use crate::native::ops::{self, Gelu};
use crate::params;
use crate::tasks::norm::Norm;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, Embedding, EmbeddingConfig};
use burn::tensor::{Int, Tensor, activation, backend::Backend};

/// The model.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    tokens: Embedding<B>,
    /// Position embeddings; `None` if positions rotate queries and keys.
    positions: Option<Param<Tensor<B, 2>>>,
    dropout: Dropout,
    pub(super) blocks: Vec<Block<B>>,
    norm: Norm<B>,
    /// The output layer; `None` if the head is tied to `tokens`.
    head: Option<Projection<B>>,
    /// The attention mask, `[1, sequence, sequence]`: 0 where a position may attend, minus infinity at later
    /// positions. Not a parameter.
    mask: Tensor<B, 3>,
    rotary: Option<Rotary<B>>,
}

/// One transformer block.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    attention_norm: Norm<B>,
    attention: Attention<B>,
    /// The norm before the hidden layer.
    widen_norm: Norm<B>,
    /// The gate of the hidden layer, if it has one.
    gate: Option<Projection<B>>,
    /// The up-projection (`up_proj` in Llama, `c_fc` in GPT-2).
    widen: Projection<B>,
    /// The down-projection (`down_proj` in Llama, `mlp.c_proj` in GPT-2).
    narrow: Projection<B>,
    dropout: Dropout,
    tanh: bool,
}

/// Options of a pass through the model.
pub struct ForwardOptions<'a, B: Backend> {
    /// Called before each part begins: 0 is the embedding, followed by the blocks and the head.
    pub seed_part: &'a dyn Fn(usize),
    /// The attention function: separate operations or a single one.
    pub attention: AttentionFn<B>,
}

impl<B: Backend> ForwardOptions<'_, B> {
    /// Returns options that seed nothing and compute attention as separate operations.
    pub fn plain() -> Self {
        Self { seed_part: &|_| {}, attention: plain_attention }
    }
}

impl<B: Backend> Transformer<B> {
    /// Returns a fresh model.
    pub fn new(spec: &ModelSpec, device: &B::Device) -> Self {
        let builder = LayerBuilder::new(spec, device);
        let Shape { layers, width, vocabulary, positions, family, tied, .. } = spec.shape;
        let normal = Initializer::Normal { mean: 0.0, std: builder.init_std() };
        Self {
            tokens: EmbeddingConfig::new(vocabulary, width).with_initializer(normal.clone()).init(device),
            positions: (family == Family::Gpt2).then(|| normal.init([positions, width], device)),
            dropout: builder.dropout(),
            blocks: (0..layers).map(|_| Block::new(&builder)).collect(),
            norm: builder.norm(),
            head: (!tied).then(|| builder.layer("head", width, vocabulary, false, builder.init_std())),
            mask: causal_mask(spec.sequence, device),
            rotary: (family == Family::Llama).then(|| Rotary::new(&spec.shape, spec.sequence, device)),
        }
    }

    /// Maps tokens `[batch, length]` to logits `[batch, length, vocabulary]`, for lengths up to `sequence`.
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let x = self.norm.forward(self.hidden_states(tokens, &ForwardOptions::plain()));
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.tokens.weight.val().transpose().unsqueeze()),
        }
    }

    /// Maps tokens `[batch, length]` to the output of the last block, `[batch, length, width]`.
    pub fn hidden_states(&self, tokens: Tensor<B, 2, Int>, options: &ForwardOptions<'_, B>) -> Tensor<B, 3> {
        let context = self.attention_context(tokens.dims()[1], options);
        let blocks = self.blocks.iter().enumerate();
        blocks.fold(self.embed(tokens, options), |x, (number, block)| {
            (options.seed_part)(number + 1);
            block.forward(x, &context)
        })
    }

    /// Maps the output of the last block, `[batch, length, width]`, to the terms that sum to the logits.
    pub fn logit_terms(&self, x: Tensor<B, 3>, options: &ForwardOptions<'_, B>) -> Terms<B> {
        let x = self.norm.forward(x).flatten::<2>(0, 1);
        (options.seed_part)(self.blocks.len() + 1);
        match &self.head {
            Some(head) => head.product_terms(x).into_iter().map(Term::new).collect(),
            None => vec![Term { x, weight: self.tokens.weight.val(), transposed: true }],
        }
    }

    /// Maps tokens `[batch, length]` to the input of the first block, `[batch, length, width]`.
    pub fn embed(&self, tokens: Tensor<B, 2, Int>, options: &ForwardOptions<'_, B>) -> Tensor<B, 3> {
        let [_, length] = tokens.dims();
        (options.seed_part)(0);
        let mut x = self.tokens.forward(tokens);
        if let Some(positions) = &self.positions {
            x = x + positions.val().narrow(0, 0, length).unsqueeze::<3>();
        }
        self.dropout.forward(x)
    }

    /// Returns the mask and rotations that all blocks need for a sequence of this length.
    pub fn attention_context(&self, length: usize, options: &ForwardOptions<'_, B>) -> AttentionContext<B> {
        AttentionContext {
            mask: self.mask.clone().slice([0..1, 0..length, 0..length]),
            rotary: self.rotary.as_ref().map(|rotary| rotary.for_length(length)),
            attention: options.attention,
        }
    }

    /// Reports whether a training pass draws random numbers.
    pub fn has_dropout(&self) -> bool {
        self.dropout.prob > 0.0
            || self.head.as_ref().is_some_and(Projection::has_dropout)
            || self.blocks.iter().any(Block::has_dropout)
    }

    /// Returns the lowest block that gradients have to pass through: 0 if an embedding is trained, else the
    /// lowest block with trained parameters, or the number of blocks if there is none.
    pub fn lowest_trained_block(&self) -> usize {
        let is_trained = |param: &Param<Tensor<B, 2>>| param.val().is_require_grad();
        if is_trained(&self.tokens.weight) || self.positions.as_ref().is_some_and(is_trained) {
            return 0;
        }
        self.blocks.iter().position(params::has_trained).unwrap_or(self.blocks.len())
    }
}

impl<B: Backend> Block<B> {
    fn new(builder: &LayerBuilder<'_, B>) -> Self {
        let Shape { width, hidden, hidden_bias: bias, activation, .. } = *builder.shape();
        Self {
            attention_norm: builder.norm(),
            attention: Attention::new(builder),
            widen_norm: builder.norm(),
            gate: (activation == Activation::Silu)
                .then(|| builder.layer("gate", width, hidden, bias, builder.init_std())),
            widen: builder.layer("widen", width, hidden, bias, builder.init_std()),
            narrow: builder.layer("narrow", hidden, width, bias, builder.residual_init_std()),
            dropout: builder.dropout(),
            tanh: activation == Activation::GeluTanh,
        }
    }

    /// Maps `[batch, length, width]` to the same shape.
    pub fn forward(&self, x: Tensor<B, 3>, context: &AttentionContext<B>) -> Tensor<B, 3> {
        let attended = self.attention.forward(self.attention_norm.forward(x.clone()), context);
        let x = x + self.dropout.forward(attended);
        let read = self.widen_norm.forward(x.clone());
        let narrowed = match &self.gate {
            Some(gate) => self.narrow.forward(swiglu(gate.forward(read.clone()), self.widen.forward(read))),
            None => self.narrow_gelu(self.widen.forward(read)),
        };
        x + self.dropout.forward(narrowed)
    }

    /// Maps the output of the up-projection through GELU and the down-projection.
    fn narrow_gelu(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let kind = if self.tanh { Gelu::Tanh } else { Gelu::Exact };
        let fused = self.narrow.forward_gelu(&x, kind);
        fused.unwrap_or_else(|| self.narrow.forward(gelu(x, kind)))
    }

    fn has_dropout(&self) -> bool {
        let layers = [&self.widen, &self.narrow].into_iter().chain(&self.gate).chain(self.attention.layers());
        self.dropout.prob > 0.0 || layers.into_iter().any(Projection::has_dropout)
    }
}

fn swiglu<B: Backend>(gate: Tensor<B, 3>, up: Tensor<B, 3>) -> Tensor<B, 3> {
    ops::swiglu(&gate, &up).unwrap_or_else(|| activation::silu(gate) * up)
}

fn gelu<B: Backend>(x: Tensor<B, 3>, kind: Gelu) -> Tensor<B, 3> {
    ops::gelu(&x, kind).unwrap_or_else(|| match kind {
        Gelu::Exact => activation::gelu(x),
        Gelu::Tanh => gelu_tanh(x),
    })
}

/// Computes ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks and Gimpel, 2016).
fn gelu_tanh<B: Backend>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    let cube = x.clone().powi_scalar(3).mul_scalar(0.044_715);
    let inner = (x.clone() + cube).mul_scalar(std::f64::consts::FRAC_2_PI.sqrt());
    x.mul_scalar(0.5) * inner.tanh().add_scalar(1.0)
}

fn causal_mask<B: Backend>(sequence: usize, device: &B::Device) -> Tensor<B, 3> {
    let later = Tensor::<B, 2>::ones([sequence, sequence], device).triu(1).equal_elem(1.0);
    Tensor::<B, 2>::zeros([sequence, sequence], device).mask_fill(later, f32::NEG_INFINITY).unsqueeze()
}
