//! GELU, exact and by tanh, as on the CPU. Burn's gradient of the exact one is that of the approximation.

use super::super::operation::{Computed, Operation};
use super::layout::{Rows, in_rows, output_over};
use super::{GpuTensor, Kernel, Runner};
use burn::tensor::{DType, Shape, ops::FloatTensor};
use cubecl::prelude::*;
use downshift_kernels::activation::{CUBIC, Gelu, TANH_SCALE};

/// GELU of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct FusedGelu(pub Gelu);

impl<R: Runner> Operation<R, 1, 1> for FusedGelu {
    fn forward(&self, [x]: [&FloatTensor<R>; 1]) -> Computed<R, 1> {
        let [y] = R::run(GeluOf(self.0), [x.clone()]);
        (y, [x.clone()])
    }

    fn gradients(
        &self,
        [x]: [FloatTensor<R>; 1],
        grad: FloatTensor<R>,
        [of_x]: [bool; 1],
    ) -> [Option<FloatTensor<R>>; 1] {
        let [grad] = R::run(GeluGrad(self.0), [grad, x]);
        [of_x.then_some(grad)]
    }
}

/// From x to y.
#[derive(Debug, Clone, Copy)]
pub struct GeluOf(pub Gelu);

impl Kernel<1, 1> for GeluOf {
    const NAME: &'static str = "gelu";

    fn outputs(&self, inputs: [(Shape, DType); 1]) -> [(Shape, DType); 1] {
        inputs
    }

    fn launch(&self, [x]: [GpuTensor; 1]) -> [GpuTensor; 1] {
        let x = in_rows(x);
        let (y, argument) = output_over(&x);
        let rows = Rows::of(&[&x, &y]);
        let (client, dtype) = (x.client.clone(), x.dtype);
        let strides = [&x, &y].map(|tensor| rows.stride(tensor));
        gelu::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            x.into_tensor_arg(),
            argument,
            rows.vectors(),
            strides[0],
            strides[1],
            self.0 == Gelu::Exact,
            dtype.into(),
        );
        [y]
    }
}

/// From the gradient of y, and x, to the gradient of x.
#[derive(Debug, Clone, Copy)]
pub struct GeluGrad(pub Gelu);

impl Kernel<2, 1> for GeluGrad {
    const NAME: &'static str = "gelu_grad";

    fn outputs(&self, [grad, _]: [(Shape, DType); 2]) -> [(Shape, DType); 1] {
        [grad]
    }

    fn launch(&self, inputs: [GpuTensor; 2]) -> [GpuTensor; 1] {
        let [grad, x] = inputs.map(in_rows);
        let (output, argument) = output_over(&grad);
        let rows = Rows::of(&[&grad, &x, &output]);
        let (client, dtype) = (grad.client.clone(), grad.dtype);
        let strides = [&grad, &x, &output].map(|tensor| rows.stride(tensor));
        gelu_grad::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            grad.into_tensor_arg(),
            x.into_tensor_arg(),
            argument,
            rows.vectors(),
            strides[0],
            strides[1],
            strides[2],
            self.0 == Gelu::Exact,
            dtype.into(),
        );
        [output]
    }
}

#[cube(launch)]
fn gelu<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    y: &mut Tensor<Vector<F, N>>,
    vectors: usize,
    x_stride: usize,
    y_stride: usize,
    #[comptime] exact: bool,
    #[define(F)] _dtype: StorageType,
) {
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(x[CUBE_POS * x_stride + at]);
        let mut found = Vector::<f32, N>::new(0.0);
        #[unroll]
        for lane in 0..N::value() {
            found[lane] = x[lane] * below(x[lane], exact);
        }
        y[CUBE_POS * y_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn gelu_grad<F: Float, N: Size>(
    grad: &Tensor<Vector<F, N>>,
    x: &Tensor<Vector<F, N>>,
    output: &mut Tensor<Vector<F, N>>,
    vectors: usize,
    grad_stride: usize,
    x_stride: usize,
    output_stride: usize,
    #[comptime] exact: bool,
    #[define(F)] _dtype: StorageType,
) {
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let grad = Vector::<f32, N>::cast_from(grad[CUBE_POS * grad_stride + at]);
        let x = Vector::<f32, N>::cast_from(x[CUBE_POS * x_stride + at]);
        let mut found = Vector::<f32, N>::new(0.0);
        #[unroll]
        for lane in 0..N::value() {
            let x = x[lane];
            let share = below(x, exact);
            if comptime!(exact) {
                found[lane] = grad[lane] * (share + x * (x * x * -0.5).exp() * 0.398_942_3);
            } else {
                let slope = TANH_SCALE * (1.0 + 3.0 * CUBIC * x * x);
                found[lane] = grad[lane] * (share + 2.0 * x * share * (1.0 - share) * slope);
            }
        }
        output[CUBE_POS * output_stride + at] = Vector::cast_from(found);
        at += CUBE_DIM as usize;
    }
}

/// Returns Φ(x), or ½ (1 + tanh(…)).
#[cube]
fn below(x: f32, #[comptime] exact: bool) -> f32 {
    if comptime!(exact) {
        0.5 * (1.0 + Erf::erf(x * 0.707_106_77))
    } else {
        0.5 * (1.0 + (TANH_SCALE * (x + CUBIC * x * x * x)).tanh())
    }
}
