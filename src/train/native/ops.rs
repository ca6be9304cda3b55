//! Operations on tensors. Each returns `None` if native operations do not apply.

mod activation;
mod attention;
mod convolution;
mod linear;
mod norm;
mod sums;

pub use super::kernels::activation::Gelu;
pub use super::kernels::adamw::Factors;
pub use activation::{gelu, swiglu};
pub use attention::{AttentionShape, attention};
pub use convolution::{depthwise, mean_pixels, patches};
pub use linear::linear;
pub use norm::{NormOptions, norm};
pub use sums::{cross_entropy, scale, sum_of_squares, update};

use super::operation::{Operation, apply};
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor};

/// Reports whether native operations apply to a tensor.
pub fn applies<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    super::applies::<B>(&[&primitive(tensor)])
}

/// Returns the tensor without its rank.
fn primitive<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> FloatTensor<B> {
    tensor.clone().into_primitive().tensor()
}

/// Computes an operation on tensors without rank.
fn compute<B: Backend, O: Operation<N, K>, const N: usize, const K: usize, const D: usize>(
    operation: &O,
    inputs: &[FloatTensor<B>; N],
) -> Option<Tensor<B, D>> {
    let output = apply::<B, O, N, K>(operation, inputs.each_ref())?;
    Some(Tensor::from_primitive(TensorPrimitive::Float(output)))
}
