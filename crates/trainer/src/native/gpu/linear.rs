//! A linear layer of GELU, as one operation that keeps only its input.
//!
//! ```text
//! forward    y = gelu(x) W + b                    gelu(x) is discarded
//! backward   gelu(x) recomputed                   grad of W = gelu(x)ᵀ g
//!            grad of x = (g Wᵀ) ∘ gelu′(x)        grad of b = Σ g
//! ```
//! The hidden layer of a transformer is its widest tensor: without this, each block keeps it twice.

use super::super::operation::{Computed, Operation};
use super::Runner;
use super::activation::{GeluGrad, GeluOf};
use burn::tensor::ops::FloatTensor;
use downshift_kernels::activation::Gelu;

/// A linear layer of GELU.
#[derive(Debug, Clone, Copy)]
pub struct GeluLinear {
    /// The kind of GELU.
    pub gelu: Gelu,
    /// Whether there is a bias.
    pub has_bias: bool,
}

/// Of x, W and b. Without a bias, W takes its place and is not read.
impl<R: Runner> Operation<R, 3, 2> for GeluLinear {
    fn forward(&self, [x, weight, bias]: [&FloatTensor<R>; 3]) -> Computed<R, 2> {
        let [activated] = R::run(GeluOf(self.gelu), [x.clone()]);
        let y = R::linear(activated, weight.clone(), self.has_bias.then(|| bias.clone()));
        (y, [x.clone(), weight.clone()])
    }

    fn gradients(
        &self,
        [x, weight]: [FloatTensor<R>; 2],
        grad: FloatTensor<R>,
        [of_x, of_weight, of_bias]: [bool; 3],
    ) -> [Option<FloatTensor<R>>; 3] {
        let x_grad = of_x.then(|| {
            let of_activated = R::linear_x_backward(weight, grad.clone());
            let [of_x] = R::run(GeluGrad(self.gelu), [of_activated, x.clone()]);
            of_x
        });
        let weight_grad = of_weight.then(|| {
            let [activated] = R::run(GeluOf(self.gelu), [x]);
            R::linear_weight_backward(activated, grad.clone())
        });
        let bias_grad = (self.has_bias && of_bias).then(|| R::linear_bias_backward(grad));
        [x_grad, weight_grad, bias_grad]
    }
}
