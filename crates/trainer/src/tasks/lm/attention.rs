//! Causal multi-head self-attention (Vaswani et al., 2017) with optional shared keys and values, and rotary positions.

use super::attention_op::AttentionFn;
use super::layer_builder::LayerBuilder;
use super::shape::Shape;
use crate::lora::projection::Projection;
use crate::native::ops::{self, AttentionShape};
use burn::module::Module;
use burn::nn::Dropout;
use burn::tensor::{Tensor, TensorData, activation, backend::Backend};

/// The attention mask and the rotation of each position.
pub struct AttentionContext<B: Backend> {
    /// The mask of the model, `[1, length, length]`.
    pub mask: Tensor<B, 3>,
    /// Rotary positions, if the model uses them.
    pub rotary: Option<Rotary<B>>,
    /// The attention function.
    pub attention: AttentionFn<B>,
}

/// The projections of an attention layer.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    query: Projection<B>,
    key: Projection<B>,
    value: Projection<B>,
    output: Projection<B>,
    dropout: Dropout,
    heads: usize,
    kv_heads: usize,
}

impl<B: Backend> Attention<B> {
    /// Returns fresh projections.
    pub fn new(builder: &LayerBuilder<'_, B>) -> Self {
        let Shape { width, heads, kv_heads, head_size, attention_bias: bias, .. } = *builder.shape();
        let (query_width, kv_width) = (heads * head_size, kv_heads * head_size);
        Self {
            query: builder.layer("query", width, query_width, bias, builder.init_std()),
            key: builder.layer("key", width, kv_width, bias, builder.init_std()),
            value: builder.layer("value", width, kv_width, bias, builder.init_std()),
            output: builder.layer("output", query_width, width, bias, builder.residual_init_std()),
            dropout: builder.dropout(),
            heads,
            kv_heads,
        }
    }

    /// Maps `[batch, length, width]` to the same shape: softmax(q kᵀ / √d + mask) v for each head of size d.
    pub fn forward(&self, x: Tensor<B, 3>, context: &AttentionContext<B>) -> Tensor<B, 3> {
        let query = self.query.forward(x.clone());
        let key = self.key.forward(x.clone());
        let value = self.value.forward(x);
        let drops = B::ad_enabled(&query.device()) && self.dropout.prob > 0.0;
        let shape = AttentionShape { heads: self.heads, kv_heads: self.kv_heads };
        let rotary = context.rotary.as_ref().map(|rotary| [&rotary.cosine, &rotary.sine]);
        let native = if drops { None } else { ops::attention([&query, &key, &value], rotary, shape) };
        let inputs = [query, key, value];
        let mixed = match native {
            Some(mixed) => mixed,
            None if drops => self.mix(inputs, context),
            None => {
                let rotate = |x| context.rotary.iter().fold(x, |x, rotary| rotary.rotate_rows(x));
                ops::tiled_attention(inputs, rotate, shape).unwrap_or_else(|inputs| self.mix(inputs, context))
            }
        };
        self.output.forward(mixed)
    }

    /// Mixes the values of queries, keys and values `[batch, length, heads · size]`, by separate operations.
    fn mix(&self, [query, key, value]: [Tensor<B, 3>; 3], context: &AttentionContext<B>) -> Tensor<B, 3> {
        let [batch, length, width] = query.dims();
        let size = width / self.heads;
        let split = |x: Tensor<B, 3>, heads: usize| x.reshape([batch, length, heads, size]).swap_dims(1, 2);
        let mut query = split(query, self.heads);
        let mut key = split(key, self.kv_heads);
        let value = split(value, self.kv_heads);
        if let Some(rotary) = &context.rotary {
            (query, key) = (rotary.rotate(query), rotary.rotate(key));
        }
        let (key, value) = (self.repeat_kv(key), self.repeat_kv(value));
        let query = query * (size as f64).powf(-0.5);
        let mixed = if B::ad_enabled(&query.device()) && self.dropout.prob > 0.0 {
            // The dropout mask is drawn only once, so the graph has to store it.
            let scores = query.matmul(key.swap_dims(2, 3)) + context.mask.clone().unsqueeze();
            self.dropout.forward(activation::softmax(scores, 3)).matmul(value)
        } else {
            let heads = [query, key, value].map(|x| x.reshape([batch * self.heads, length, size]));
            (context.attention)(heads, &context.mask).reshape([batch, self.heads, length, size])
        };
        mixed.swap_dims(1, 2).reshape([batch, length, width])
    }

    /// Returns the projections.
    pub fn layers(&self) -> [&Projection<B>; 4] {
        [&self.query, &self.key, &self.value, &self.output]
    }

    /// Repeats keys or values `[batch, kv_heads, length, size]` for each query head that shares them.
    fn repeat_kv(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let times = self.heads / self.kv_heads;
        if times == 1 {
            return x;
        }
        let [batch, kv_heads, length, size] = x.dims();
        x.unsqueeze_dim::<5>(2).repeat_dim(2, times).reshape([batch, kv_heads * times, length, size])
    }
}

/// Rotary positions (Su et al., 2021): element i of a head's first half and element i of its second half are
/// rotated by the angle position / θ^(2i / size).
#[derive(Module, Debug)]
pub struct Rotary<B: Backend> {
    /// `[1, 1, sequence, size]`, not a parameter.
    cosine: Tensor<B, 4>,
    /// `[1, 1, sequence, size]`, not a parameter.
    sine: Tensor<B, 4>,
}

impl<B: Backend> Rotary<B> {
    /// Returns the angles of the first `sequence` positions.
    pub fn new(shape: &Shape, sequence: usize, device: &B::Device) -> Self {
        let size = shape.head_size;
        let angle =
            |position: usize, i: usize| position as f64 / shape.theta.powf(2.0 * (i % (size / 2)) as f64 / size as f64);
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = (0..sequence).flat_map(|p| (0..size).map(move |i| of(angle(p, i)) as f32)).collect();
            Tensor::from_data(TensorData::new(values, [1, 1, sequence, size]), device)
        };
        Self { cosine: table(f64::cos), sine: table(f64::sin) }
    }

    /// Returns the angles of the first `length` positions.
    pub fn for_length(&self, length: usize) -> Self {
        let first = |table: &Tensor<B, 4>| table.clone().narrow(2, 0, length);
        Self { cosine: first(&self.cosine), sine: first(&self.sine) }
    }

    /// Rotates `[batch, heads, length, size]`.
    fn rotate(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        rotate(x, [self.cosine.clone(), self.sine.clone()])
    }

    /// Rotates `[batch, length, heads · size]`.
    fn rotate_rows(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let ([batch, length, width], size) = (x.dims(), self.cosine.dims()[3]);
        let tables = [&self.cosine, &self.sine].map(|table| table.clone().swap_dims(1, 2));
        rotate(x.reshape([batch, length, width / size, size]), tables).reshape([batch, length, width])
    }
}

/// Rotates the last dimension by the angles of these cosines and sines.
fn rotate<B: Backend>(x: Tensor<B, 4>, [cosine, sine]: [Tensor<B, 4>; 2]) -> Tensor<B, 4> {
    let half = x.dims()[3] / 2;
    let (first, second) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    x * cosine + Tensor::cat(vec![second.neg(), first], 3) * sine
}
