//! Softmax of attention scores `[.., length, length]`, in which a position attends to itself and earlier ones: mask and
//! softmax in one kernel, and their gradient in another.
//!
//! ```text
//! p = softmax(s), 0 at later positions        grad of s = p (d − Σ p d)
//! ```

use super::layout::{MAX_PLANES, Rows, cube_max, cube_sum, in_rows, output_over};
use super::{GpuTensor, Kernel};
use burn::tensor::{DType, Shape};
use cubecl::prelude::*;

/// Turns scores into attention weights.
#[derive(Debug, Clone, Copy)]
pub struct CausalSoftmax;

impl Kernel<1, 1> for CausalSoftmax {
    const NAME: &'static str = "causal_softmax";

    fn outputs(&self, inputs: [(Shape, DType); 1]) -> [(Shape, DType); 1] {
        inputs
    }

    fn launch(&self, [scores]: [GpuTensor; 1]) -> [GpuTensor; 1] {
        let scores = in_rows(scores);
        let (output, argument) = output_over(&scores);
        let rows = Rows::of(&[&scores, &output]);
        let (client, dtype) = (scores.client.clone(), scores.dtype);
        let strides = [rows.stride(&scores), rows.stride(&output)];
        causal_softmax::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            scores.into_tensor_arg(),
            argument,
            rows.vectors(),
            strides[0],
            strides[1],
            dtype.into(),
        );
        [output]
    }
}

/// Returns the gradient of scores from that of the weights, and the weights.
#[derive(Debug, Clone, Copy)]
pub struct CausalSoftmaxGrad;

impl Kernel<2, 1> for CausalSoftmaxGrad {
    const NAME: &'static str = "causal_softmax_grad";

    fn outputs(&self, [grad, _]: [(Shape, DType); 2]) -> [(Shape, DType); 1] {
        [grad]
    }

    fn launch(&self, inputs: [GpuTensor; 2]) -> [GpuTensor; 1] {
        let [grad, weights] = inputs.map(in_rows);
        let (output, argument) = output_over(&grad);
        let rows = Rows::of(&[&grad, &weights, &output]);
        let (client, dtype) = (grad.client.clone(), grad.dtype);
        let strides = [&grad, &weights, &output].map(|tensor| rows.stride(tensor));
        causal_softmax_grad::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            grad.into_tensor_arg(),
            weights.into_tensor_arg(),
            argument,
            rows.vectors(),
            strides[0],
            strides[1],
            strides[2],
            dtype.into(),
        );
        [output]
    }
}

#[cube(launch)]
fn causal_softmax<F: Float, N: Size>(
    scores: &Tensor<Vector<F, N>>,
    weights: &mut Tensor<Vector<F, N>>,
    vectors: usize,
    scores_stride: usize,
    weights_stride: usize,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    let lanes = N::value();
    let row = CUBE_POS;
    let position = row % (vectors * lanes);
    let visible = position / lanes + 1;

    let mut highest = f32::min_value();
    let mut total = f32::new(0.0);
    let mut at = UNIT_POS as usize;
    while at < visible {
        let scores = Vector::<f32, N>::cast_from(scores[row * scores_stride + at]);
        let mut higher = highest;
        #[unroll]
        for lane in 0..lanes {
            higher = select(at * lanes + lane <= position, max(higher, scores[lane]), higher);
        }
        total *= (highest - higher).exp();
        #[unroll]
        for lane in 0..lanes {
            total += select(at * lanes + lane <= position, (scores[lane] - higher).exp(), f32::new(0.0));
        }
        highest = higher;
        at += CUBE_DIM as usize;
    }
    let top = cube_max(highest, &mut parts);
    let sum = cube_sum(total * (highest - top).exp(), &mut parts);

    let mut at = UNIT_POS as usize;
    while at < vectors {
        let mut found = Vector::<f32, N>::new(0.0);
        if at < visible {
            let scores = Vector::<f32, N>::cast_from(scores[row * scores_stride + at]);
            #[unroll]
            for lane in 0..lanes {
                found[lane] = select(at * lanes + lane <= position, (scores[lane] - top).exp() / sum, f32::new(0.0));
            }
        }
        weights[row * weights_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn causal_softmax_grad<F: Float, N: Size>(
    grad: &Tensor<Vector<F, N>>,
    weights: &Tensor<Vector<F, N>>,
    output: &mut Tensor<Vector<F, N>>,
    vectors: usize,
    grad_stride: usize,
    weights_stride: usize,
    output_stride: usize,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    let lanes = N::value();
    let row = CUBE_POS;
    let position = row % (vectors * lanes);
    let visible = position / lanes + 1;

    // Weights are 0 at later positions, but a gradient there may be anything.
    let mut sum = f32::new(0.0);
    let mut at = UNIT_POS as usize;
    while at < visible {
        let grad = Vector::<f32, N>::cast_from(grad[row * grad_stride + at]);
        let weights = Vector::<f32, N>::cast_from(weights[row * weights_stride + at]);
        #[unroll]
        for lane in 0..lanes {
            sum += select(at * lanes + lane <= position, grad[lane] * weights[lane], f32::new(0.0));
        }
        at += CUBE_DIM as usize;
    }
    let mean = cube_sum(sum, &mut parts);

    let mut at = UNIT_POS as usize;
    while at < vectors {
        let mut found = Vector::<f32, N>::new(0.0);
        if at < visible {
            let grad = Vector::<f32, N>::cast_from(grad[row * grad_stride + at]);
            let weights = Vector::<f32, N>::cast_from(weights[row * weights_stride + at]);
            #[unroll]
            for lane in 0..lanes {
                let of_score = weights[lane] * (grad[lane] - mean);
                found[lane] = select(at * lanes + lane <= position, of_score, f32::new(0.0));
            }
        }
        output[row * output_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}
