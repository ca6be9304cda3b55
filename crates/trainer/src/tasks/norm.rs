//! Layer norm and RMS norm, for all tasks.

use crate::native::ops::{self, NormOptions};
use burn::module::{Initializer, Module, Param};
use burn::tensor::{FloatDType, Tensor, activation, backend::Backend};

/// A layer norm, or an RMS norm if there is no `beta`.
#[derive(Module, Debug)]
pub struct Norm<B: Backend> {
    gamma: Param<Tensor<B, 1>>,
    beta: Option<Param<Tensor<B, 1>>>,
    epsilon: f64,
}

impl<B: Backend> Norm<B> {
    /// Returns a fresh norm of this width; `centered` makes it a layer norm.
    pub fn new(width: usize, centered: bool, epsilon: f64, device: &B::Device) -> Self {
        Self {
            gamma: Initializer::Ones.init([width], device),
            beta: centered.then(|| Initializer::Zeros.init([width], device)),
            epsilon,
        }
    }

    /// Computes (x − mean(x)) / √(var(x) + ε) · γ + β, or x / √(mean(x²) + ε) · γ, over the last dimension. Uses f32
    /// up to the division: activations of pretrained models reach thousands, and their squares overflow f16.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.native(&x, false).unwrap_or_else(|| self.compose(x))
    }

    /// Computes the norm, followed by ReLU; needs `beta`.
    pub fn forward_relu<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.native(&x, true).unwrap_or_else(|| activation::relu(self.compose(x)))
    }

    fn native<const D: usize>(&self, x: &Tensor<B, D>, relu: bool) -> Option<Tensor<B, D>> {
        let options = NormOptions { epsilon: self.epsilon, relu };
        ops::norm(x, &self.gamma.val(), self.beta.as_ref().map(Param::val).as_ref(), options)
    }

    fn compose<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let dtype = FloatDType::from(x.dtype());
        let x = x.cast(FloatDType::F32);
        let x = if self.beta.is_some() { x.clone() - x.mean_dim(D - 1) } else { x };
        let size = x.clone().square().mean_dim(D - 1).add_scalar(self.epsilon).sqrt();
        let x = (x / size).cast(dtype) * self.gamma.val().unsqueeze();
        match &self.beta {
            Some(beta) => x + beta.val().unsqueeze(),
            None => x,
        }
    }
}

/// Computes (x − mean(x)) / √(var(x) + ε) over the last dimension: a layer norm without parameters.
pub fn normalize<B: Backend, const D: usize>(x: Tensor<B, D>, epsilon: f64) -> Tensor<B, D> {
    let native = ops::applies(&x).then(|| {
        let width = x.dims()[D - 1];
        let [gamma, beta] = [Tensor::ones([width], &x.device()), Tensor::zeros([width], &x.device())];
        ops::norm(&x, &gamma, Some(&beta), NormOptions { epsilon, relu: false })
    });
    native.flatten().unwrap_or_else(|| {
        let dtype = FloatDType::from(x.dtype());
        let x = x.cast(FloatDType::F32);
        let x = x.clone() - x.mean_dim(D - 1);
        let size = x.clone().square().mean_dim(D - 1).add_scalar(epsilon).sqrt();
        (x / size).cast(dtype)
    })
}

#[cfg(test)]
mod tests {
    use super::Norm;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::Param;
    use burn::tensor::{FloatDType, Tensor, TensorData, Tolerance};

    type Cpu = Autodiff<Flex>;

    /// Returns a norm's output for large activations in a number format, and their gradient.
    fn norm_of_large_activations(dtype: FloatDType, has_beta: bool) -> [TensorData; 2] {
        let values: Vec<f32> = (0..24).map(|at| 100.0 + 3000.0 * (at as f32 * 1.7).sin()).collect();
        let numbers = |data: TensorData| Tensor::<Flex, 3>::from_data(data, &FlexDevice).cast(dtype);
        let x = Tensor::<Cpu, 3>::from_inner(numbers(TensorData::new(values.clone(), [1, 3, 8]))).require_grad();
        let vector = |value: f32| {
            let tensor = Tensor::<Cpu, 1>::full([8], value, &FlexDevice).cast(dtype);
            Param::from_tensor(tensor.detach())
        };
        let norm = Norm { gamma: vector(1.5), beta: has_beta.then(|| vector(0.25)), epsilon: 1e-5 };
        let y = norm.forward(x.clone());
        let grad = Tensor::<Cpu, 3>::from_inner(numbers(TensorData::new(values, [1, 3, 8])).flip([2]));
        let gradients = (y.clone() * grad).sum().backward();
        let read = |tensor: Tensor<Flex, 3>| tensor.cast(FloatDType::F32).into_data();
        [read(y.inner()), read(x.grad(&gradients).unwrap())]
    }

    #[test]
    fn norms_of_large_activations_are_the_same_in_16_bits() {
        for has_beta in [true, false] {
            let wanted = norm_of_large_activations(FloatDType::F32, has_beta);
            for (dtype, apart) in [(FloatDType::F16, 2e-3), (FloatDType::BF16, 2e-2)] {
                let found = norm_of_large_activations(dtype, has_beta);
                for (found, wanted) in found.iter().zip(&wanted) {
                    found.assert_approx_eq::<f32>(wanted, Tolerance::rel_abs(apart, apart));
                }
            }
        }
    }
}
