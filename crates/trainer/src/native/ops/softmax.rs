//! Softmax of attention scores, on a GPU alone. Each returns its inputs if kernels do not apply, or the scores are not square.

#[cfg(feature = "cuda")]
use crate::native::gpu::{self, CausalSoftmax, CausalSoftmaxGrad};
#[cfg(feature = "cuda")]
use crate::params::{erase_rank, with_rank};
use burn::tensor::{Tensor, backend::Backend};

/// Turns scores `[.., length, length]` into weights: a position attends to itself and earlier ones.
///
/// # Errors
/// Returns the scores.
pub fn causal_softmax<B: Backend, const D: usize>(scores: Tensor<B, D>) -> Result<Tensor<B, D>, Tensor<B, D>> {
    #[cfg(feature = "cuda")]
    if !is_square(&scores) {
        return Err(scores);
    }
    #[cfg(feature = "cuda")]
    return match gpu::run::<B, _, 1, 1>(CausalSoftmax, [erase_rank(scores)]) {
        Ok([weights]) => Ok(with_rank(weights)),
        Err([scores]) => Err(with_rank(scores)),
    };
    #[cfg(not(feature = "cuda"))]
    Err(scores)
}

/// Returns the gradient of the scores from that of the weights, and the weights.
///
/// # Errors
/// Returns the gradient and the weights.
pub fn causal_softmax_grad<B: Backend, const D: usize>(
    grad: Tensor<B, D>,
    weights: Tensor<B, D>,
) -> Result<Tensor<B, D>, [Tensor<B, D>; 2]> {
    #[cfg(feature = "cuda")]
    if !is_square(&weights) || grad.dims() != weights.dims() || grad.dtype() != weights.dtype() {
        return Err([grad, weights]);
    }
    #[cfg(feature = "cuda")]
    return match gpu::run::<B, _, 2, 1>(CausalSoftmaxGrad, [grad, weights].map(erase_rank)) {
        Ok([grad]) => Ok(with_rank(grad)),
        Err(inputs) => Err(inputs.map(with_rank)),
    };
    #[cfg(not(feature = "cuda"))]
    Err([grad, weights])
}

/// Reports whether there are as many positions as those they attend to.
#[cfg(feature = "cuda")]
fn is_square<B: Backend, const D: usize>(scores: &Tensor<B, D>) -> bool {
    let dims = scores.dims();
    D >= 2 && dims[D - 1] == dims[D - 2]
}
