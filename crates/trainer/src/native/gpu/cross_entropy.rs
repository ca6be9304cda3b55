//! Cross-entropy of rows of logits, and its gradient, without a copy of the logits.
//!
//! ```text
//! loss = log Σ exp(z) − z[target]        grad of z = softmax(z) − onehot(target)
//! ```

use super::layout::{MAX_PLANES, Rows, cube_max, cube_sum, in_rows, output_over, output_over_input};
use super::{GpuTensor, Kernel};
use burn::tensor::{DType, Shape};
use cubecl::prelude::*;

/// Turns logits `[tokens, classes]` and targets `[tokens]`, one class each in f32, into the gradients of the summed
/// losses and the losses `[tokens]` in f32.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy;

impl Kernel<2, 2> for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn outputs(&self, [logits, targets]: [(Shape, DType); 2]) -> [(Shape, DType); 2] {
        [logits, targets]
    }

    fn launch(&self, inputs: [GpuTensor; 2]) -> [GpuTensor; 2] {
        let [logits, targets] = inputs.map(in_rows);
        let (grads, argument) = output_over(&logits);
        let rows = Rows::of(&[&logits, &grads]);
        let (losses, of_losses) = output_over_input(&targets, 1);
        let (client, dtype) = (logits.client.clone(), logits.dtype);
        let strides = [rows.stride(&logits), rows.stride(&grads)];
        cross_entropy::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            logits.into_tensor_arg(),
            targets.into_tensor_arg(),
            argument,
            of_losses,
            rows.vectors(),
            strides[0],
            strides[1],
            dtype.into(),
        );
        [grads, losses]
    }
}

#[cube(launch)]
fn cross_entropy<F: Float, N: Size>(
    logits: &Tensor<Vector<F, N>>,
    targets: &Tensor<f32>,
    grads: &mut Tensor<Vector<F, N>>,
    losses: &mut Tensor<f32>,
    vectors: usize,
    logits_stride: usize,
    grads_stride: usize,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    let lanes = N::value();
    let row = CUBE_POS;
    let target = usize::cast_from(targets[row]);

    let mut highest = f32::min_value();
    let mut total = f32::new(0.0);
    let mut of_target = f32::new(0.0);
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let logits = Vector::<f32, N>::cast_from(logits[row * logits_stride + at]);
        let mut higher = highest;
        #[unroll]
        for lane in 0..lanes {
            higher = max(higher, logits[lane]);
            of_target += select(at * lanes + lane == target, logits[lane], f32::new(0.0));
        }
        total *= (highest - higher).exp();
        #[unroll]
        for lane in 0..lanes {
            total += (logits[lane] - higher).exp();
        }
        highest = higher;
        at += CUBE_DIM as usize;
    }
    let top = cube_max(highest, &mut parts);
    let sum = cube_sum(total * (highest - top).exp(), &mut parts);
    let of_target = cube_sum(of_target, &mut parts);
    if UNIT_POS == 0 {
        losses[row] = sum.ln() + (top - of_target);
    }

    let mut at = UNIT_POS as usize;
    while at < vectors {
        let logits = Vector::<f32, N>::cast_from(logits[row * logits_stride + at]);
        let mut found = Vector::<f32, N>::new(0.0);
        #[unroll]
        for lane in 0..lanes {
            let one = select(at * lanes + lane == target, f32::new(1.0), f32::new(0.0));
            found[lane] = (logits[lane] - top).exp() / sum - one;
        }
        grads[row * grads_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}
