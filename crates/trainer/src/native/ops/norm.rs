//! Layer norm and RMS norm.

use super::super::operation::{Computed, Operation};
use super::super::runner::Runner;
use super::{compute, primitive};
#[cfg(feature = "cuda")]
use crate::native::gpu::{self, FusedNorm};
#[cfg(feature = "cuda")]
use crate::params::with_rank;
use burn::tensor::{Shape, Tensor, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::norm::{self, Norm, NormGrads};

/// Options of a norm beyond its parameters.
#[derive(Debug, Clone, Copy)]
pub struct NormOptions {
    /// ε.
    pub epsilon: f64,
    /// Whether ReLU follows; needs β.
    pub relu: bool,
}

#[derive(Debug, Clone)]
struct NormOperation {
    options: NormOptions,
    has_beta: bool,
}

/// Normalizes the last dimension of x: layer norm, or RMS norm without β.
pub fn norm<B: Backend, const D: usize>(
    x: &Tensor<B, D>,
    gamma: &Tensor<B, 1>,
    beta: Option<&Tensor<B, 1>>,
    options: NormOptions,
) -> Option<Tensor<B, D>> {
    let gamma = primitive(gamma);
    // Without β, γ takes its place and is not read.
    let third = beta.map_or_else(|| gamma.clone(), primitive);
    let inputs = [primitive(x), gamma, third];
    let found = compute(&NormOperation { options, has_beta: beta.is_some() }, &inputs);
    #[cfg(feature = "cuda")]
    let found = found.or_else(|| norm_on_gpu(&inputs, beta.is_some(), options));
    found
}

#[cfg(feature = "cuda")]
fn norm_on_gpu<B: Backend, const D: usize>(
    inputs: &[FloatTensor<B>; 3],
    centered: bool,
    options: NormOptions,
) -> Option<Tensor<B, D>> {
    let [x, gamma, beta] = inputs;
    let width = gamma.shape().num_elements();
    let same_dtype = gamma.dtype() == x.dtype() && beta.dtype() == x.dtype();
    if options.relu || !same_dtype || !FusedNorm::fits(width) {
        return None;
    }
    let norm = FusedNorm { epsilon: options.epsilon as f32, centered };
    gpu::apply::<B, _, 3, 3>(&norm, inputs.each_ref()).map(with_rank)
}

impl NormOperation {
    fn kernel<'a>(&self, gamma: &'a [f32], beta: &'a [f32]) -> Norm<'a> {
        let NormOptions { epsilon, relu } = self.options;
        Norm { gamma, beta: self.has_beta.then_some(beta), epsilon: epsilon as f32, relu }
    }
}

impl<R: Runner> Operation<R, 3, 4> for NormOperation {
    fn forward(&self, [x, gamma, beta]: [&FloatTensor<R>; 3]) -> Computed<R, 4> {
        let shape = x.shape();
        let rows = shape.num_elements() / gamma.shape().num_elements().max(1);
        let [y, stats] = R::run([x, gamma, beta], [shape, Shape::new([rows, 2])], |[x, gamma, beta], [y, stats]| {
            norm::forward(x, self.kernel(gamma, beta), y, stats);
        });
        (y, [x.clone(), gamma.clone(), beta.clone(), stats])
    }

    fn gradients(
        &self,
        [x, gamma, beta, stats]: [FloatTensor<R>; 4],
        grad: FloatTensor<R>,
        [of_x, of_gamma, of_beta]: [bool; 3],
    ) -> [Option<FloatTensor<R>>; 3] {
        let of_beta = of_beta && self.has_beta;
        let size = |wanted: bool, shape: Shape| if wanted { shape } else { Shape::new([0]) };
        let shapes = [size(of_x, x.shape()), size(of_gamma, gamma.shape()), size(of_beta, gamma.shape())];
        let found = R::run([&x, &stats, &grad, &gamma, &beta], shapes, |[x, stats, grad, gamma, beta], outputs| {
            let wanted = outputs.map(|out| (!out.is_empty()).then_some(out));
            let [of_x, of_gamma, of_beta] = wanted;
            let wanted = NormGrads { x: of_x, gamma: of_gamma, beta: of_beta };
            norm::backward([x, stats, grad], self.kernel(gamma, beta), wanted);
        });
        let [x, gamma, beta] = found;
        [of_x.then_some(x), of_gamma.then_some(gamma), of_beta.then_some(beta)]
    }
}
