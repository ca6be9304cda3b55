//! Operations on tensors. Each returns `None`, or its inputs, if native operations do not apply.

mod activation;
mod attention;
mod convolution;
mod linear;
mod norm;
mod softmax;
mod sums;

pub use activation::{gelu, swiglu};
pub use attention::{AttentionShape, attention, tiled_attention};
pub use convolution::{depthwise, mean_pixels, patches};
pub use downshift_kernels::activation::Gelu;
pub use downshift_kernels::adamw::Factors;
pub use linear::{gelu_linear, linear};
pub use norm::{NormOptions, norm};
pub use softmax::{causal_softmax, causal_softmax_grad};
pub use sums::{
    Updated, add_to_sum, cross_entropy, scale, sum_of_squares, sum_of_squares_on_gpu, update, update_on_gpu,
};

use super::operation::{Operation, apply};
use super::runner::Shapes;
use burn::backend::flex::Flex;
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor};

/// Reports whether native operations apply to a tensor.
pub fn applies<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    super::applies::<B>(&[&primitive(tensor)])
}

/// Reports whether kernels of a GPU apply to a tensor.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is no GPU"))]
pub fn has_gpu_kernels<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    #[cfg(feature = "cuda")]
    return super::gpu::applies::<B>(&[&primitive(tensor)]);
    #[cfg(not(feature = "cuda"))]
    false
}

/// Returns the tensor without its rank.
fn primitive<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> FloatTensor<B> {
    tensor.clone().into_primitive().tensor()
}

/// Computes an operation on tensors without rank.
fn compute<B: Backend, O, const N: usize, const K: usize, const D: usize>(
    operation: &O,
    inputs: &[FloatTensor<B>; N],
) -> Option<Tensor<B, D>>
where
    O: Operation<Flex, N, K> + Operation<Shapes, N, K>,
{
    let output = apply::<B, O, N, K>(operation, inputs.each_ref())?;
    Some(Tensor::from_primitive(TensorPrimitive::Float(output)))
}
