//! An update of AdamW and sums of squares, each in one pass over a parameter.

use super::layout::{MAX_PLANES, Rows, cube_sum, empty_like_as, in_rows, output_over_input};
use super::{GpuTensor, Kernel};
use burn::tensor::{DType, Shape};
use cubecl::prelude::*;
use downshift_kernels::adamw::Factors;

/// The sums that [`AddSquares`] adds to.
pub const SUMS: usize = 256;

/// Updates weights, first and second moments in f32 by a gradient, each in place. The last output is a copy of the weights in
/// another format, or else the gradient.
#[derive(Debug, Clone, Copy)]
pub struct UpdateAdamW {
    /// The factors.
    pub factors: Factors,
    /// The number format of the copy.
    pub rounded: Option<DType>,
}

impl Kernel<4, 4> for UpdateAdamW {
    const NAME: &'static str = "adamw";

    fn outputs(&self, [weights, first, second, grad]: [(Shape, DType); 4]) -> [(Shape, DType); 4] {
        [weights, first, second, (grad.0, self.rounded.unwrap_or(grad.1))]
    }

    fn launch(&self, inputs: [GpuTensor; 4]) -> [GpuTensor; 4] {
        let [weights, first, second, grad] = inputs.map(in_rows);
        let (client, dtype) = (weights.client.clone(), grad.dtype);
        let (new_weights, of_weights) = output_over_input(&weights, 0);
        let (new_first, of_first) = output_over_input(&first, 1);
        let (new_second, of_second) = output_over_input(&second, 2);
        let to = self.rounded.unwrap_or(dtype);
        let (rounded, of_rounded) = if to == dtype {
            output_over_input(&grad, 3)
        } else {
            let rounded = empty_like_as(&weights, to);
            (rounded.clone(), rounded.into_tensor_arg())
        };
        let all = [&weights, &first, &second, &grad, &new_weights, &new_first, &new_second, &rounded];
        let rows = Rows::of(&all);
        let strides = all.map(|tensor| rows.stride(tensor));
        let Factors { scale, betas, rate, correction, epsilon, keep } = self.factors;
        adamw::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            weights.into_tensor_arg(),
            first.into_tensor_arg(),
            second.into_tensor_arg(),
            grad.into_tensor_arg(),
            of_weights,
            of_first,
            of_second,
            of_rounded,
            rows.vectors(),
            strides[0],
            strides[1],
            strides[2],
            strides[3],
            strides[4],
            strides[5],
            strides[6],
            strides[7],
            scale as f32,
            betas[0] as f32,
            betas[1] as f32,
            (1.0 - betas[0]) as f32,
            (1.0 - betas[1]) as f32,
            rate as f32,
            correction as f32,
            epsilon as f32,
            keep as f32,
            self.rounded.is_some(),
            dtype.into(),
            to.into(),
        );
        [new_weights, new_first, new_second, rounded]
    }
}

/// Adds the squares of a tensor to [`SUMS`] sums in f32.
#[derive(Debug, Clone, Copy)]
pub struct AddSquares;

impl Kernel<2, 1> for AddSquares {
    const NAME: &'static str = "add_squares";

    fn outputs(&self, [sums, _]: [(Shape, DType); 2]) -> [(Shape, DType); 1] {
        [sums]
    }

    fn launch(&self, inputs: [GpuTensor; 2]) -> [GpuTensor; 1] {
        let [sums, x] = inputs.map(in_rows);
        let (output, argument) = output_over_input(&sums, 0);
        let rows = Rows::of(&[&x]);
        let (client, dtype) = (x.client.clone(), x.dtype);
        let stride = rows.stride(&x);
        add_squares::launch(
            &client,
            CubeCount::new_1d(SUMS as u32),
            rows.threads(),
            rows.vector,
            sums.into_tensor_arg(),
            x.into_tensor_arg(),
            argument,
            rows.count,
            rows.vectors(),
            stride,
            dtype.into(),
        );
        [output]
    }
}

#[cube(launch)]
fn adamw<G: Float, R: Float, N: Size>(
    weights: &Tensor<Vector<f32, N>>,
    first: &Tensor<Vector<f32, N>>,
    second: &Tensor<Vector<f32, N>>,
    grad: &Tensor<Vector<G, N>>,
    new_weights: &mut Tensor<Vector<f32, N>>,
    new_first: &mut Tensor<Vector<f32, N>>,
    new_second: &mut Tensor<Vector<f32, N>>,
    rounded: &mut Tensor<Vector<R, N>>,
    vectors: usize,
    weights_stride: usize,
    first_stride: usize,
    second_stride: usize,
    grad_stride: usize,
    new_weights_stride: usize,
    new_first_stride: usize,
    new_second_stride: usize,
    rounded_stride: usize,
    scale: f32,
    beta_1: f32,
    beta_2: f32,
    rest_1: f32,
    rest_2: f32,
    rate: f32,
    correction: f32,
    epsilon: f32,
    keep: f32,
    #[comptime] rounds: bool,
    #[define(G)] _of_gradient: StorageType,
    #[define(R)] _of_copy: StorageType,
) {
    let row = CUBE_POS;
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let grad = Vector::<f32, N>::cast_from(grad[row * grad_stride + at]);
        let mut weight = weights[row * weights_stride + at];
        let mut mean = first[row * first_stride + at];
        let mut square = second[row * second_stride + at];
        #[unroll]
        for lane in 0..N::value() {
            let grad = grad[lane] * scale;
            let of_mean = mean[lane] * beta_1 + grad * rest_1;
            let of_square = square[lane] * beta_2 + grad * grad * rest_2;
            mean[lane] = of_mean;
            square[lane] = of_square;
            weight[lane] = weight[lane] * keep - of_mean / ((of_square / correction).sqrt() + epsilon) * rate;
        }
        new_weights[row * new_weights_stride + at] = weight;
        new_first[row * new_first_stride + at] = mean;
        new_second[row * new_second_stride + at] = square;
        if comptime!(rounds) {
            rounded[row * rounded_stride + at] = Vector::cast_from(weight);
        }
        at += CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn add_squares<F: Float, N: Size>(
    sums: &Tensor<f32>,
    x: &Tensor<Vector<F, N>>,
    output: &mut Tensor<f32>,
    rows: usize,
    vectors: usize,
    stride: usize,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    let mut sum = f32::new(0.0);
    let mut row = CUBE_POS;
    while row < rows {
        let mut at = UNIT_POS as usize;
        while at < vectors {
            let x = Vector::<f32, N>::cast_from(x[row * stride + at]);
            #[unroll]
            for lane in 0..N::value() {
                sum += x[lane] * x[lane];
            }
            at += CUBE_DIM as usize;
        }
        row += SUMS;
    }
    let sum = cube_sum(sum, &mut parts);
    if UNIT_POS == 0 {
        output[CUBE_POS] = sums[CUBE_POS] + sum;
    }
}
