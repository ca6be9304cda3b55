//! Builds the layers of a decoder from its specification.

use super::shape::{Family, Shape};
use crate::lora::{Lora, projection::Projection};
use crate::tasks::norm::Norm;
use burn::module::Initializer;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::backend::Backend;

/// The sizes and options of a decoder to build.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// Its sizes.
    pub shape: Shape,
    /// The context length in tokens.
    pub sequence: usize,
    /// Share of the activations that a training step drops.
    pub dropout: f64,
    /// Its adapters.
    pub lora: Option<Lora>,
}

/// Builds the layers of a model, each with its adapter if it is to have one.
pub struct LayerBuilder<'a, B: Backend> {
    spec: &'a ModelSpec,
    device: &'a B::Device,
}

impl<'a, B: Backend> LayerBuilder<'a, B> {
    /// Returns a builder for a model of this specification.
    pub fn new(spec: &'a ModelSpec, device: &'a B::Device) -> Self {
        Self { spec, device }
    }

    /// Returns a layer of this name.
    pub fn layer(&self, name: &str, from: usize, to: usize, bias: bool, init_std: f64) -> Projection<B> {
        let initializer = Initializer::Normal { mean: 0.0, std: init_std };
        let layer = Projection::new(from, to, bias, &initializer, self.device);
        match &self.spec.lora {
            Some(lora) if lora.targets.iter().any(|target| target == name) => layer.with_adapter(lora, self.device),
            _ => layer,
        }
    }

    /// Returns a fresh norm.
    pub fn norm(&self) -> Norm<B> {
        let Shape { width, family, epsilon, .. } = self.spec.shape;
        Norm::new(width, family == Family::Gpt2, epsilon, self.device)
    }

    /// Returns the shape of the model.
    pub fn shape(&self) -> &Shape {
        &self.spec.shape
    }

    /// Returns the dropout layer.
    pub fn dropout(&self) -> Dropout {
        DropoutConfig::new(self.spec.dropout).init()
    }

    /// Returns the standard deviation of fresh weights: √(2 / 5 width) (Nguyen and Salazar, 2019).
    pub fn init_std(&self) -> f64 {
        (0.4 / self.spec.shape.width as f64).sqrt()
    }

    /// Returns the standard deviation of layers that add to the residual path. It decreases with their
    /// number, two per block (Radford et al., 2019).
    pub fn residual_init_std(&self) -> f64 {
        self.init_std() / (2.0 * self.spec.shape.layers as f64).sqrt()
    }
}
