//! Causal attention in tiles, without stored scores (FlashAttention-2, Dao 2023), on tensor cores.
//!
//! ```text
//! forward    S = q kᵀ / √d    P = exp(S − log)    mixed = P v     log = log Σ exp(S), of each query
//! backward   D = Σ g ∘ mixed  T = P ∘ (g vᵀ − D)
//!            by tiles of queries: grad of q = T k / √d         by tiles of keys: grad of v = Pᵀ g, of k = Tᵀ q / √d
//! ```
//! A cube holds a tile of 64 rows and goes over the visible tiles of the others. Scores and weights are in registers alone,
//! and are computed three times: the price for gradients that no other cube adds to. Queries `[batch, length,
//! heads · size]`, keys and values `[batch, length, kv_heads · size]` are read as the projections leave them.

mod backward;
mod forward;
mod tiles;

use super::super::operation::{Computed, Operation};
use super::layout::{Rows, empty_f32, in_rows, output_over, output_over_input};
use super::{GpuTensor, Kernel, Runner};
use crate::native::ops::AttentionShape;
use backward::{attend_key_grad, attend_query_grad};
use burn::tensor::{DType, Shape, TensorMetadata, ops::FloatTensor};
use burn_cubecl::kernel::into_contiguous;
use cubecl::prelude::*;
use forward::attend;
use tiles::{PART, THREADS, TILE};

/// The numbers of a chunk.
const CHUNK: usize = 8;
/// The largest head, whose tiles fit shared memory and registers.
const MAX_SIZE: usize = 128;

/// Attention of these heads.
#[derive(Debug, Clone, Copy)]
pub struct TiledAttention(pub AttentionShape);

impl TiledAttention {
    /// Reports whether there are kernels for queries, keys and values of these shapes.
    pub fn fits(self, [queries, keys, values]: [[usize; 3]; 3]) -> bool {
        let AttentionShape { heads, kv_heads } = self.0;
        let [batch, length, width] = queries;
        let size = width / heads.max(1);
        let shared = [batch, length, kv_heads * size];
        let in_grid = |count: usize| u16::try_from(count).is_ok();
        length > 0
            && width == heads * size
            && [keys, values] == [shared; 2]
            && size.is_multiple_of(PART)
            && (PART..=MAX_SIZE).contains(&size)
            && kv_heads > 0
            && heads.is_multiple_of(kv_heads)
            && in_grid(batch)
            && in_grid(heads)
    }

    /// Returns the numbers of each query.
    fn row_numbers(self, queries: &Shape) -> Shape {
        let [batch, length, _] = queries.dims();
        Shape::new([batch, self.0.heads, length])
    }

    /// Returns the sizes that kernels need.
    fn sizes(self, queries: &GpuTensor) -> Sizes {
        let [batch, length, width] = queries.shape().dims();
        let AttentionShape { heads, kv_heads } = self.0;
        let size = width / heads;
        Sizes { batch, length, shared: heads / kv_heads, scale: (size as f32).powf(-0.5), steps: size / PART }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    /// The heads of queries that share one of keys.
    shared: usize,
    scale: f32,
    /// The 16th part of a head's size.
    steps: usize,
}

impl Sizes {
    /// Returns the cubes for a tile of each of these heads.
    fn cubes(self, heads: usize) -> CubeCount {
        CubeCount::Static(self.length.div_ceil(TILE) as u32, heads as u32, self.batch as u32)
    }
}

/// Returns the tensor with its rows at equal distances, in whole chunks.
fn in_chunks(tensor: GpuTensor) -> GpuTensor {
    let tensor = in_rows(tensor);
    if Rows::of(&[&tensor]).vector == CHUNK { tensor } else { into_contiguous(tensor) }
}

/// Returns the distance of a tensor's rows in chunks.
fn stride(tensor: &GpuTensor) -> usize {
    Rows::of(&[tensor]).stride(tensor)
}

fn threads() -> CubeDim {
    CubeDim::new_1d(THREADS as u32)
}

/// Of queries, keys and values. Keeps them, the output, and the logs.
impl<R: Runner> Operation<R, 3, 5> for TiledAttention {
    fn forward(&self, inputs: [&FloatTensor<R>; 3]) -> Computed<R, 5> {
        let [q, k, v] = inputs.map(Clone::clone);
        let [mixed, logs] = R::run(Attend(*self), [q.clone(), k.clone(), v.clone()]);
        (mixed.clone(), [q, k, v, mixed, logs])
    }

    fn gradients(
        &self,
        [q, k, v, mixed, logs]: [FloatTensor<R>; 5],
        grad: FloatTensor<R>,
        [of_q, of_k, of_v]: [bool; 3],
    ) -> [Option<FloatTensor<R>>; 3] {
        let inputs = [mixed, grad.clone(), q.clone(), k.clone(), v.clone(), logs.clone()];
        let [queries, means] = R::run(AttendQueryGrad(*self), inputs);
        let [keys, values] = R::run(AttendKeyGrad(*self), [k, v, q, grad, logs, means]);
        [of_q.then_some(queries), of_k.then_some(keys), of_v.then_some(values)]
    }
}

/// From queries, keys and values to the mixed values, and the logs.
#[derive(Debug, Clone, Copy)]
struct Attend(TiledAttention);

impl Kernel<3, 2> for Attend {
    const NAME: &'static str = "attend";

    fn outputs(&self, [q, _, _]: [(Shape, DType); 3]) -> [(Shape, DType); 2] {
        let logs = self.0.row_numbers(&q.0);
        [q, (logs, DType::F32)]
    }

    fn launch(&self, inputs: [GpuTensor; 3]) -> [GpuTensor; 2] {
        let [q, k, v] = inputs.map(in_chunks);
        let sizes = self.0.sizes(&q);
        let (mixed, argument) = output_over(&q);
        let logs = empty_f32(&q, self.0.row_numbers(&q.shape()));
        let (client, dtype) = (q.client.clone(), q.dtype);
        let strides = [&q, &k, &v, &mixed].map(stride);
        attend::launch(
            &client,
            sizes.cubes(self.0.0.heads),
            threads(),
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            argument,
            logs.clone().into_tensor_arg(),
            sizes.length,
            strides[0],
            strides[1],
            strides[2],
            strides[3],
            sizes.shared,
            sizes.scale,
            sizes.steps,
            dtype.into(),
        );
        [mixed, logs]
    }
}

/// From the mixed values, their gradient, queries, keys, values and the logs to the gradient of queries, and D.
#[derive(Debug, Clone, Copy)]
struct AttendQueryGrad(TiledAttention);

impl Kernel<6, 2> for AttendQueryGrad {
    const NAME: &'static str = "attend_query_grad";

    fn outputs(&self, [mixed, ..]: [(Shape, DType); 6]) -> [(Shape, DType); 2] {
        let means = self.0.row_numbers(&mixed.0);
        [mixed, (means, DType::F32)]
    }

    fn launch(&self, [mixed, grad, q, k, v, logs]: [GpuTensor; 6]) -> [GpuTensor; 2] {
        let [mixed, grad, q, k, v] = [mixed, grad, q, k, v].map(in_chunks);
        let sizes = self.0.sizes(&q);
        let (of_q, argument) = output_over(&mixed);
        let means = empty_f32(&q, self.0.row_numbers(&q.shape()));
        let (client, dtype) = (q.client.clone(), q.dtype);
        let strides = [&mixed, &grad, &q, &k, &v, &of_q].map(stride);
        attend_query_grad::launch(
            &client,
            sizes.cubes(self.0.0.heads),
            threads(),
            mixed.into_tensor_arg(),
            grad.into_tensor_arg(),
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            into_contiguous(logs).into_tensor_arg(),
            argument,
            means.clone().into_tensor_arg(),
            sizes.length,
            strides[0],
            strides[1],
            strides[2],
            strides[3],
            strides[4],
            strides[5],
            sizes.shared,
            sizes.scale,
            sizes.steps,
            dtype.into(),
        );
        [of_q, means]
    }
}

/// From keys, values, queries, the gradient of the mixed values, the logs and D to the gradients of keys and values.
#[derive(Debug, Clone, Copy)]
struct AttendKeyGrad(TiledAttention);

impl Kernel<6, 2> for AttendKeyGrad {
    const NAME: &'static str = "attend_key_grad";

    fn outputs(&self, [k, v, ..]: [(Shape, DType); 6]) -> [(Shape, DType); 2] {
        [k, v]
    }

    fn launch(&self, [k, v, q, grad, logs, means]: [GpuTensor; 6]) -> [GpuTensor; 2] {
        let [k, v, q, grad] = [k, v, q, grad].map(in_chunks);
        let sizes = self.0.sizes(&q);
        let (of_k, argument) = output_over(&k);
        let (of_v, of_v_argument) = output_over_input(&v, 1);
        let (client, dtype) = (q.client.clone(), q.dtype);
        let strides = [&k, &v, &q, &grad, &of_k, &of_v].map(stride);
        attend_key_grad::launch(
            &client,
            sizes.cubes(self.0.0.kv_heads),
            threads(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            q.into_tensor_arg(),
            grad.into_tensor_arg(),
            into_contiguous(logs).into_tensor_arg(),
            into_contiguous(means).into_tensor_arg(),
            argument,
            of_v_argument,
            sizes.length,
            strides[0],
            strides[1],
            strides[2],
            strides[3],
            strides[4],
            strides[5],
            sizes.shared,
            sizes.scale,
            sizes.steps,
            dtype.into(),
        );
        [of_k, of_v]
    }
}
