//! A linear layer with its bias, and one of GELU.

use super::super::operation::{Computed, Operation};
use super::super::runner::Runner;
use super::{Gelu, compute, primitive};
#[cfg(feature = "cuda")]
use crate::native::gpu::{self, GeluLinear};
#[cfg(feature = "cuda")]
use crate::params::with_rank;
use burn::tensor::{Shape, Tensor, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::linear;

#[derive(Debug, Clone)]
struct Linear {
    has_bias: bool,
}

/// Maps x `[.., from]` to x W + b `[.., to]`.
pub fn linear<B: Backend, const D: usize>(
    x: &Tensor<B, D>,
    weight: &Tensor<B, 2>,
    bias: Option<&Tensor<B, 1>>,
) -> Option<Tensor<B, D>> {
    let weight = primitive(weight);
    // Without a bias, W takes its place and is not read.
    let third = bias.map_or_else(|| weight.clone(), primitive);
    compute(&Linear { has_bias: bias.is_some() }, &[primitive(x), weight, third])
}

/// Maps x `[.., from]` to gelu(x) W + b `[.., to]`, and keeps only x for the gradients; on a GPU alone. Returns `None` for a frozen
/// W too, since its layer keeps nothing.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is no GPU"))]
pub fn gelu_linear<B: Backend, const D: usize>(
    x: &Tensor<B, D>,
    gelu: Gelu,
    weight: &Tensor<B, 2>,
    bias: Option<&Tensor<B, 1>>,
) -> Option<Tensor<B, D>> {
    #[cfg(feature = "cuda")]
    {
        if !weight.is_require_grad() {
            return None;
        }
        let weight = primitive(weight);
        let third = bias.map_or_else(|| weight.clone(), primitive);
        let operation = GeluLinear { gelu, has_bias: bias.is_some() };
        gpu::apply::<B, _, 3, 2>(&operation, [&primitive(x), &weight, &third]).map(with_rank)
    }
    #[cfg(not(feature = "cuda"))]
    None
}

impl<R: Runner> Operation<R, 3, 2> for Linear {
    fn forward(&self, [x, weight, bias]: [&FloatTensor<R>; 3]) -> Computed<R, 2> {
        let size = weight.shape().dims::<2>();
        let mut shape: Vec<usize> = x.shape().to_vec();
        shape.pop();
        shape.push(size[1]);
        let [y] = R::run([x, weight, bias], [Shape::from(shape)], |[x, weight, bias], [y]| {
            linear::forward(x, weight, self.has_bias.then_some(bias), size, y);
        });
        (y, [x.clone(), weight.clone()])
    }

    fn gradients(
        &self,
        [x, weight]: [FloatTensor<R>; 2],
        grad: FloatTensor<R>,
        [of_x, of_weight, of_bias]: [bool; 3],
    ) -> [Option<FloatTensor<R>>; 3] {
        let size = weight.shape().dims::<2>();
        let bias = (self.has_bias && of_bias).then(|| {
            let [out] = R::run([&grad], [Shape::new([size[1]])], |[grad], [out]| linear::bias_grad(grad, out));
            out
        });
        let weight_grad = of_weight.then(|| {
            let [out] =
                R::run([&x, &grad], [weight.shape()], |[x, grad], [out]| linear::weight_grad(x, grad, size, out));
            out
        });
        let x_grad = of_x.then(|| {
            let [out] = R::run([&grad, &weight], [x.shape()], |[grad, weight], [out]| {
                linear::input_grad(grad, weight, size, out);
            });
            out
        });
        [x_grad, weight_grad, bias]
    }
}
