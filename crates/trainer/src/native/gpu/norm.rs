//! Layer norm and RMS norm of rows.
//!
//! ```text
//! x̂ = (x − μ) r    r = 1 / √(mean((x − μ)²) + ε)    y = x̂ γ + β        (RMS norm: μ = 0, no β)
//! d = g γ          grad of x = r (d − mean(d) − x̂ mean(d x̂))           (RMS norm: without mean(d))
//! ```
//! The gradients of γ and β are sums over all rows: each cube sums those of a block of rows, and Burn sums the blocks.

use super::super::operation::{Computed, Operation};
use super::layout::{MAX_PLANES, Rows, cube_sum, empty_f32, in_rows, output_over};
use super::{GpuTensor, Kernel, Runner};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata, ops::FloatTensor};
use cubecl::prelude::*;

/// The rows of a block.
const BLOCK: usize = 16;
/// The widest row: two sums of its columns fit shared memory.
const MAX_WIDTH: usize = 4096;

/// A layer norm, or an RMS norm.
#[derive(Debug, Clone, Copy)]
pub struct FusedNorm {
    /// ε.
    pub epsilon: f32,
    /// Whether it is a layer norm.
    pub centered: bool,
}

impl FusedNorm {
    /// Reports whether there are kernels for rows of this width.
    pub fn fits(width: usize) -> bool {
        (1..=MAX_WIDTH).contains(&width)
    }
}

/// Of x, γ and β. An RMS norm does not read β.
impl<R: Runner> Operation<R, 3, 3> for FusedNorm {
    fn forward(&self, [x, gamma, beta]: [&FloatTensor<R>; 3]) -> Computed<R, 3> {
        let inputs = [x, gamma, beta].map(Clone::clone);
        let [y, stats] = R::run(Normalize(*self), inputs);
        (y, [x.clone(), gamma.clone(), stats])
    }

    fn gradients(
        &self,
        [x, gamma, stats]: [FloatTensor<R>; 3],
        grad: FloatTensor<R>,
        [of_x, of_gamma, of_beta]: [bool; 3],
    ) -> [Option<FloatTensor<R>>; 3] {
        let dtype = FloatDType::from(gamma.dtype());
        let shape = gamma.shape();
        let [x, gammas, betas] = R::run(NormalizeGrad(*self), [grad, x, gamma, stats]);
        let sum = |blocks| R::float_cast(R::float_reshape(R::float_sum_dim(blocks, 0), shape.clone()), dtype);
        [of_x.then_some(x), of_gamma.then(|| sum(gammas)), (of_beta && self.centered).then(|| sum(betas))]
    }
}

/// From x, γ and β to y, and μ and r of each row.
#[derive(Debug, Clone, Copy)]
struct Normalize(FusedNorm);

impl Kernel<3, 2> for Normalize {
    const NAME: &'static str = "norm";

    fn outputs(&self, [x, gamma, _]: [(Shape, DType); 3]) -> [(Shape, DType); 2] {
        let rows = x.0.num_elements() / gamma.0.num_elements();
        [x, (Shape::new([rows, 2]), DType::F32)]
    }

    fn launch(&self, inputs: [GpuTensor; 3]) -> [GpuTensor; 2] {
        let [x, gamma, beta] = inputs.map(in_rows);
        let (y, argument) = output_over(&x);
        let rows = Rows::of(&[&x, &y]);
        let stats = empty_f32(&x, [rows.count, 2]);
        let (client, dtype) = (x.client.clone(), x.dtype);
        let strides = [rows.stride(&x), rows.stride(&y)];
        normalize::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            x.into_tensor_arg(),
            gamma.into_tensor_arg(),
            beta.into_tensor_arg(),
            argument,
            stats.clone().into_tensor_arg(),
            rows.vectors(),
            strides[0],
            strides[1],
            self.0.epsilon,
            self.0.centered,
            dtype.into(),
        );
        [y, stats]
    }
}

/// From the gradient of y, x, γ, and μ and r of each row to the gradient of x, and those of γ and β for each block of
/// rows.
#[derive(Debug, Clone, Copy)]
struct NormalizeGrad(FusedNorm);

impl Kernel<4, 3> for NormalizeGrad {
    const NAME: &'static str = "norm_grad";

    fn outputs(&self, [grad, x, gamma, _]: [(Shape, DType); 4]) -> [(Shape, DType); 3] {
        let width = gamma.0.num_elements();
        let blocks = (x.0.num_elements() / width).div_ceil(BLOCK);
        let betas = if self.0.centered { [blocks, width] } else { [1, 1] };
        [grad, (Shape::new([blocks, width]), DType::F32), (Shape::new(betas), DType::F32)]
    }

    fn launch(&self, inputs: [GpuTensor; 4]) -> [GpuTensor; 3] {
        let shapes = self.outputs(inputs.each_ref().map(|input| (input.shape(), input.dtype)));
        let [grad, x, gamma, stats] = inputs.map(in_rows);
        let (of_x, argument) = output_over(&grad);
        let [_, gammas, betas] = shapes.map(|(shape, _)| empty_f32(&x, shape));
        let rows = Rows::of(&[&grad, &x, &of_x, &gammas]);
        let (client, dtype) = (grad.client.clone(), grad.dtype);
        let strides = [&grad, &x, &of_x].map(|tensor| rows.stride(tensor));
        normalize_grad::launch(
            &client,
            CubeCount::new_1d(rows.count.div_ceil(BLOCK) as u32),
            rows.threads(),
            rows.vector,
            grad.into_tensor_arg(),
            x.into_tensor_arg(),
            gamma.into_tensor_arg(),
            stats.into_tensor_arg(),
            argument,
            gammas.clone().into_tensor_arg(),
            betas.clone().into_tensor_arg(),
            rows.count,
            strides[0],
            strides[1],
            strides[2],
            rows.vectors(),
            self.0.centered,
            dtype.into(),
        );
        [of_x, gammas, betas]
    }
}

#[cube(launch)]
fn normalize<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    gamma: &Tensor<Vector<F, N>>,
    beta: &Tensor<Vector<F, N>>,
    y: &mut Tensor<Vector<F, N>>,
    stats: &mut Tensor<f32>,
    vectors: usize,
    x_stride: usize,
    y_stride: usize,
    epsilon: f32,
    #[comptime] centered: bool,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    let lanes = N::value();
    let row = CUBE_POS;
    let width = f32::cast_from(vectors * lanes);

    let mut mean = f32::new(0.0);
    if comptime!(centered) {
        let mut sum = f32::new(0.0);
        let mut at = UNIT_POS as usize;
        while at < vectors {
            let x = Vector::<f32, N>::cast_from(x[row * x_stride + at]);
            #[unroll]
            for lane in 0..lanes {
                sum += x[lane];
            }
            at += CUBE_DIM as usize;
        }
        mean = cube_sum(sum, &mut parts) / width;
    }
    let mut sum = f32::new(0.0);
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(x[row * x_stride + at]);
        #[unroll]
        for lane in 0..lanes {
            sum += (x[lane] - mean) * (x[lane] - mean);
        }
        at += CUBE_DIM as usize;
    }
    let rate = 1.0 / (cube_sum(sum, &mut parts) / width + epsilon).sqrt();
    if UNIT_POS == 0 {
        stats[2 * row] = mean;
        stats[2 * row + 1] = rate;
    }

    let mut at = UNIT_POS as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(x[row * x_stride + at]);
        let mut found = (x - Vector::new(mean)) * Vector::new(rate) * Vector::<f32, N>::cast_from(gamma[at]);
        if comptime!(centered) {
            found += Vector::<f32, N>::cast_from(beta[at]);
        }
        y[row * y_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn normalize_grad<F: Float, N: Size>(
    grad: &Tensor<Vector<F, N>>,
    x: &Tensor<Vector<F, N>>,
    gamma: &Tensor<Vector<F, N>>,
    stats: &Tensor<f32>,
    of_x: &mut Tensor<Vector<F, N>>,
    gammas: &mut Tensor<Vector<f32, N>>,
    betas: &mut Tensor<Vector<f32, N>>,
    rows: usize,
    grad_stride: usize,
    x_stride: usize,
    of_x_stride: usize,
    #[comptime] vectors: usize,
    #[comptime] centered: bool,
    #[define(F)] _dtype: StorageType,
) {
    let mut parts = SharedMemory::<f32>::new(MAX_PLANES);
    // A thread reads and writes the same columns throughout.
    let mut of_gamma = SharedMemory::<Vector<f32, N>>::new(vectors);
    let mut of_beta = SharedMemory::<Vector<f32, N>>::new(vectors);
    let mut at = UNIT_POS as usize;
    while at < vectors {
        of_gamma[at] = Vector::new(0.0);
        of_beta[at] = Vector::new(0.0);
        at += CUBE_DIM as usize;
    }
    let lanes = N::value();
    let width = f32::cast_from(vectors * lanes);
    let begin = CUBE_POS * BLOCK;
    let end = min(begin + BLOCK, rows);
    for row in begin..end {
        let mean = stats[2 * row];
        let rate = stats[2 * row + 1];
        let mut sum = f32::new(0.0);
        let mut product = f32::new(0.0);
        let mut at = UNIT_POS as usize;
        while at < vectors {
            let grad = Vector::<f32, N>::cast_from(grad[row * grad_stride + at]);
            let x = Vector::<f32, N>::cast_from(x[row * x_stride + at]);
            let normal = (x - Vector::new(mean)) * Vector::new(rate);
            of_gamma[at] += grad * normal;
            of_beta[at] += grad;
            let of_normal = grad * Vector::<f32, N>::cast_from(gamma[at]);
            #[unroll]
            for lane in 0..lanes {
                sum += of_normal[lane];
                product += of_normal[lane] * normal[lane];
            }
            at += CUBE_DIM as usize;
        }
        let mut shift = f32::new(0.0);
        if comptime!(centered) {
            shift = cube_sum(sum, &mut parts) / width;
        }
        let slope = cube_sum(product, &mut parts) / width;

        let mut at = UNIT_POS as usize;
        while at < vectors {
            let grad = Vector::<f32, N>::cast_from(grad[row * grad_stride + at]);
            let x = Vector::<f32, N>::cast_from(x[row * x_stride + at]);
            let normal = (x - Vector::new(mean)) * Vector::new(rate);
            let of_normal = grad * Vector::<f32, N>::cast_from(gamma[at]);
            let found = (of_normal - Vector::new(shift) - normal * Vector::new(slope)) * Vector::new(rate);
            of_x[row * of_x_stride + at] = Vector::cast_from(found);
            at += CUBE_DIM as usize;
        }
    }
    let mut at = UNIT_POS as usize;
    while at < vectors {
        gammas[CUBE_POS * vectors + at] = of_gamma[at];
        if comptime!(centered) {
            betas[CUBE_POS * vectors + at] = of_beta[at];
        }
        at += CUBE_DIM as usize;
    }
}
