//! A linear layer that can have an adapter.

use super::Lora;
use crate::native::ops::{self, Gelu};
use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{DType, FloatDType, Tensor, backend::Backend, module::linear};

/// A linear layer: `y = x·W + b`, and with an adapter `+ s·(dropout(x)·A)·B`.
#[derive(Module, Debug)]
pub struct Projection<B: Backend> {
    /// W, `[from, to]`.
    pub weight: Param<Tensor<B, 2>>,
    /// b, `[to]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// A, `[from, rank]`.
    pub lora_a: Option<Param<Tensor<B, 2>>>,
    /// B, `[rank, to]`.
    pub lora_b: Option<Param<Tensor<B, 2>>>,
    /// s, `[1]`; never trained, and in f32 under every precision, since rounding would change it.
    pub lora_scale: Option<Param<Tensor<B, 1>>>,
    dropout: Dropout,
}

impl<B: Backend> Projection<B> {
    /// Returns a fresh layer without an adapter; the bias starts at zero.
    pub fn new(from: usize, to: usize, bias: bool, initializer: &Initializer, device: &B::Device) -> Self {
        Self {
            weight: initializer.init_with([from, to], Some(from), Some(to), device),
            bias: bias.then(|| Initializer::Zeros.init([to], device)),
            lora_a: None,
            lora_b: None,
            lora_scale: None,
            dropout: DropoutConfig::new(0.0).init(),
        }
    }

    /// Returns the layer with a fresh adapter, which changes nothing yet.
    pub fn with_adapter(mut self, lora: &Lora, device: &B::Device) -> Self {
        let [from, to] = self.weight.lazy_shape().dims();
        let bound = (from as f64).powf(-0.5);
        self.lora_a = Some(Initializer::Uniform { min: -bound, max: bound }.init([from, lora.rank], device));
        self.lora_b = Some(Initializer::Zeros.init([lora.rank, to], device));
        self.lora_scale = Some(Param::from_tensor(Tensor::full([1], lora.scale(), (device, DType::F32))));
        self.dropout = DropoutConfig::new(lora.dropout).init();
        self
    }

    /// Maps `[.., from]` to `[.., to]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let plain = affine(x.clone(), self.weight.val(), self.bias.as_ref().map(Param::val));
        let (Some(a), Some(b), Some(scale)) = (&self.lora_a, &self.lora_b, &self.lora_scale) else { return plain };
        let low = affine(self.dropout.forward(x), a.val(), None);
        let scale = scale.val().cast(FloatDType::from(low.dtype()));
        // The scale goes to the factor with the fewest values.
        plain + affine(low * scale.unsqueeze(), b.val(), None)
    }

    /// Maps GELU of x as one operation, which keeps only x for the gradients. Returns `None` if there is none for this layer.
    pub fn forward_gelu<const D: usize>(&self, x: &Tensor<B, D>, kind: Gelu) -> Option<Tensor<B, D>> {
        let bias = self.bias.as_ref().map(Param::val);
        let plain = self.lora_a.is_none();
        plain.then(|| ops::gelu_linear(x, kind, &self.weight.val(), bias.as_ref())).flatten()
    }

    /// Returns inputs and matrices whose products sum to [`Self::forward`] of x `[tokens, from]`.
    pub fn product_terms(&self, x: Tensor<B, 2>) -> Vec<[Tensor<B, 2>; 2]> {
        let mut terms = vec![[x.clone(), self.weight.val()]];
        if let Some(bias) = &self.bias {
            terms.push([x.clone().narrow(1, 0, 1).ones_like(), bias.val().unsqueeze()]);
        }
        if let (Some(a), Some(b), Some(scale)) = (&self.lora_a, &self.lora_b, &self.lora_scale) {
            let low = affine(self.dropout.forward(x), a.val(), None);
            let scale = scale.val().cast(FloatDType::from(low.dtype()));
            terms.push([low * scale.unsqueeze(), b.val()]);
        }
        terms
    }

    /// Reports whether a training pass draws random numbers for it.
    pub fn has_dropout(&self) -> bool {
        self.dropout.prob > 0.0
    }
}

/// Computes x·W + b, over the last dimension of x.
pub fn affine<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    weight: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, D> {
    ops::linear(&x, &weight, bias.as_ref()).unwrap_or_else(|| linear(x, weight, bias))
}

#[cfg(test)]
mod tests {
    use super::Projection;
    use crate::lora::Lora;
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::module::{Initializer, Param};
    use burn::tensor::Tensor;

    #[test]
    fn an_adapter_adds_its_scaled_product_and_a_fresh_one_changes_nothing() {
        let device = FlexDevice;
        let lora = Lora { rank: 1, alpha: Some(3.0), dropout: 0.5, targets: vec![], init_from: None };
        let mut layer = Projection::<Flex>::new(2, 2, false, &Initializer::Ones, &device);
        let x = Tensor::<Flex, 2>::from_floats([[1.0, 2.0]], &device);
        let plain: Vec<f32> = layer.forward(x.clone()).into_data().to_vec().unwrap();
        layer = layer.with_adapter(&lora, &device);
        let fresh: Vec<f32> = layer.forward(x.clone()).into_data().to_vec().unwrap();
        assert_eq!(plain, fresh);
        layer.lora_a = Some(Param::from_tensor(Tensor::from_floats([[1.0], [10.0]], &device)));
        layer.lora_b = Some(Param::from_tensor(Tensor::from_floats([[2.0, -1.0]], &device)));
        let learned: Vec<f32> = layer.forward(x).into_data().to_vec().unwrap();
        // x·A = 21, times B, times 3.
        assert_eq!(learned, [3.0 + 126.0, 3.0 - 63.0]);
    }
}
