//! GELU and SwiGLU.

use super::super::operation::{Computed, Operation};
use super::super::runner::Runner;
use super::{compute, primitive};
#[cfg(feature = "cuda")]
use crate::native::gpu::{self, FusedGelu};
#[cfg(feature = "cuda")]
use crate::params::with_rank;
use burn::tensor::{Tensor, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::activation::{self, Gelu};

/// Computes GELU.
pub fn gelu<B: Backend, const D: usize>(x: &Tensor<B, D>, kind: Gelu) -> Option<Tensor<B, D>> {
    let inputs = [primitive(x)];
    let found = compute(&kind, &inputs);
    #[cfg(feature = "cuda")]
    let found = found.or_else(|| gpu::apply::<B, _, 1, 1>(&FusedGelu(kind), inputs.each_ref()).map(with_rank));
    found
}

impl<R: Runner> Operation<R, 1, 1> for Gelu {
    fn forward(&self, [x]: [&FloatTensor<R>; 1]) -> Computed<R, 1> {
        let [y] = R::run([x], [x.shape()], |[x], [y]| activation::gelu(x, *self, y));
        (y, [x.clone()])
    }

    fn gradients(
        &self,
        [x]: [FloatTensor<R>; 1],
        mut grad: FloatTensor<R>,
        _wanted: [bool; 1],
    ) -> [Option<FloatTensor<R>>; 1] {
        R::run_in_place([&mut grad], [&x], |[x], [grad]| activation::gelu_grad(x, *self, grad));
        [Some(grad)]
    }
}

#[derive(Debug, Clone)]
struct SwiGlu;

/// Computes silu(gate) · up.
pub fn swiglu<B: Backend, const D: usize>(gate: &Tensor<B, D>, up: &Tensor<B, D>) -> Option<Tensor<B, D>> {
    compute(&SwiGlu, &[primitive(gate), primitive(up)])
}

impl<R: Runner> Operation<R, 2, 2> for SwiGlu {
    fn forward(&self, [gate, up]: [&FloatTensor<R>; 2]) -> Computed<R, 2> {
        let [y] = R::run([gate, up], [gate.shape()], |inputs, [y]| activation::swiglu(inputs, y));
        (y, [gate.clone(), up.clone()])
    }

    fn gradients(
        &self,
        [gate, up]: [FloatTensor<R>; 2],
        grad: FloatTensor<R>,
        _wanted: [bool; 2],
    ) -> [Option<FloatTensor<R>>; 2] {
        R::run([&gate, &up, &grad], [gate.shape(), up.shape()], activation::swiglu_grad).map(Some)
    }
}
