//! Causal attention, from the projections of queries, keys and values to the mixed values.

use super::super::operation::{Computed, Operation};
use super::super::runner::Runner;
use super::{compute, primitive};
#[cfg(feature = "cuda")]
use crate::native::gpu::{self, TiledAttention};
#[cfg(feature = "cuda")]
use crate::params::with_rank;
use burn::tensor::{Shape, Tensor, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::attention::{self, Sizes};

/// The heads of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys and values.
    pub kv_heads: usize,
}

#[derive(Debug, Clone)]
struct CausalAttention {
    shape: AttentionShape,
    has_rotary: bool,
}

/// Maps queries `[batch, length, heads · size]`, keys and values `[batch, length, kv_heads · size]` to
/// softmax(q kᵀ / √size) v of each head. `rotary` holds cosine and sine of the positions, `length` rows of `size`.
pub fn attention<B: Backend, const D: usize>(
    inputs: [&Tensor<B, 3>; 3],
    rotary: Option<[&Tensor<B, D>; 2]>,
    shape: AttentionShape,
) -> Option<Tensor<B, 3>> {
    let [q, k, v] = inputs.map(primitive);
    // Without rotations, queries take the place of the tables and are not read.
    let [cos, sin] = rotary.map_or_else(|| [q.clone(), q.clone()], |tables| tables.map(primitive));
    compute(&CausalAttention { shape, has_rotary: rotary.is_some() }, &[q, k, v, cos, sin])
}

/// Computes the same on the tensor cores of a GPU, from queries and keys that `rotate` turns by their positions.
///
/// # Errors
/// Returns the inputs, as they were, if there are no kernels for them.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is no GPU"))]
pub fn tiled_attention<B: Backend>(
    inputs: [Tensor<B, 3>; 3],
    rotate: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
    shape: AttentionShape,
) -> Result<Tensor<B, 3>, [Tensor<B, 3>; 3]> {
    #[cfg(feature = "cuda")]
    if has_tiles(inputs.each_ref(), shape) {
        let [q, k, v] = inputs;
        let inputs = [rotate(q), rotate(k), v];
        let primitives = inputs.each_ref().map(primitive);
        let mixed = gpu::apply::<B, _, 3, 5>(&TiledAttention(shape), primitives.each_ref());
        return match mixed {
            Some(mixed) => Ok(with_rank(mixed)),
            None => unreachable!("kernels apply to these tensors"),
        };
    }
    Err(inputs)
}

#[cfg(feature = "cuda")]
fn has_tiles<B: Backend>(inputs: [&Tensor<B, 3>; 3], shape: AttentionShape) -> bool {
    let shapes = inputs.map(Tensor::dims);
    let same_dtype = inputs.iter().all(|input| input.dtype() == inputs[0].dtype());
    let inputs = inputs.map(primitive);
    same_dtype
        && TiledAttention(shape).fits(shapes)
        && gpu::applies::<B>(&inputs.each_ref())
        && gpu::has_matrix_units::<B>(&inputs[0])
}

impl CausalAttention {
    fn heads<'a>(&self, [batch, length, width]: [usize; 3], tables: [&'a [f32]; 2]) -> Sizes<'a> {
        let AttentionShape { heads, kv_heads } = self.shape;
        let rotary = self.has_rotary.then_some(tables);
        Sizes { batch, length, heads, kv_heads, size: width / heads, rotary }
    }
}

impl<R: Runner> Operation<R, 5, 7> for CausalAttention {
    fn forward(&self, inputs: [&FloatTensor<R>; 5]) -> Computed<R, 7> {
        let [q, k, v, cos, sin] = inputs;
        let size = q.shape().dims::<3>();
        let sums = Shape::new([size[0], self.shape.heads, size[1]]);
        let [out, sums] = R::run(inputs, [q.shape(), sums], |[q, k, v, cos, sin], [out, sums]| {
            attention::forward([q, k, v], self.heads(size, [cos, sin]), out, sums);
        });
        let kept = [q, k, v, cos, sin, &out, &sums].map(Clone::clone);
        (out, kept)
    }

    fn gradients(
        &self,
        kept: [FloatTensor<R>; 7],
        grad: FloatTensor<R>,
        [of_q, of_k, of_v, ..]: [bool; 5],
    ) -> [Option<FloatTensor<R>>; 5] {
        let [q, k, v, cos, sin, out, sums] = &kept;
        let size = q.shape().dims::<3>();
        let shapes = [q, k, v].map(TensorMetadata::shape);
        let inputs = [q, k, v, cos, sin, out, sums, &grad];
        let [q, k, v] = R::run(inputs, shapes, |[q, k, v, cos, sin, out, sums, grad], grads| {
            let heads = self.heads(size, [cos, sin]);
            attention::backward([q, k, v], [out, sums, grad], heads, grads);
        });
        [of_q.then_some(q), of_k.then_some(k), of_v.then_some(v), None, None]
    }
}
