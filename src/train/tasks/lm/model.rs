//! A decoder-only transformer, with the options in which GPT-2 (Radford et al., 2019) and Llama (Touvron et
//! al., 2023) differ.
//!
//! ```text
//! tokens ─ embed (+ position) ─ dropout ─ block × layers ─ norm ─ head ─ logits
//!
//! block:  x ─ norm ─ causal attention ─ dropout ─(+ x)─ norm ─ hidden layer ─ dropout ─(+)
//! hidden: narrow(gelu(widen(x)))   or   narrow(silu(gate(x)) · widen(x))
//! ```
//! Norms come before the layers they feed (pre-norm). Positions are learned and added to the embedding, or
//! rotate queries and keys. A tied head multiplies by the transpose of the embedding matrix: one parameter, used twice.

use super::attend::{self, Attend};
use super::attention::{Attention, Rotary};
use super::loss::Terms;
use super::shape::{Activation, Family, Shape};
use crate::train::lora::{Lora, projection::Projection};
use crate::train::params;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig};
use burn::tensor::{FloatDType, Int, Tensor, activation, backend::Backend};

/// The construction plan of a decoder.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its sizes.
    pub shape: Shape,
    /// The context length in tokens.
    pub sequence: usize,
    /// Share of the activations that a training step drops.
    pub dropout: f64,
    /// Its adapters.
    pub lora: Option<Lora>,
}

/// The model.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    tokens: Embedding<B>,
    /// Position embeddings; `None` if positions rotate queries and keys.
    positions: Option<Param<Tensor<B, 2>>>,
    dropout: Dropout,
    pub(super) blocks: Vec<Block<B>>,
    norm: Norm<B>,
    /// The output layer; `None` if the head is tied to `tokens`.
    head: Option<Projection<B>>,
    /// The attention mask, `[1, sequence, sequence]`: 0 where a position may attend, minus infinity at later
    /// positions. Not a parameter.
    mask: Tensor<B, 3>,
    rotary: Option<Rotary<B>>,
}

/// One transformer block.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    attention_norm: Norm<B>,
    attention: Attention<B>,
    widen_norm: Norm<B>,
    /// The gate of the hidden layer, if it has one.
    gate: Option<Projection<B>>,
    widen: Projection<B>,
    narrow: Projection<B>,
    dropout: Dropout,
    tanh: bool,
}

/// A layer norm, or an RMS norm if there is no `beta`.
#[derive(Module, Debug)]
pub struct Norm<B: Backend> {
    gamma: Param<Tensor<B, 1>>,
    beta: Option<Param<Tensor<B, 1>>>,
    epsilon: f64,
}

/// The attention mask and the rotation of each position.
pub struct Sight<B: Backend> {
    /// The mask of the model, `[1, length, length]`.
    pub mask: Tensor<B, 3>,
    /// Rotary positions, if the model uses them.
    pub rotary: Option<Rotary<B>>,
    /// The attention function.
    pub attend: Attend<B>,
}

/// Options of a pass through the model.
pub struct Way<'a, B: Backend> {
    /// Called before each part begins: 0 is the embedding, followed by the blocks and the head.
    pub noise: &'a dyn Fn(usize),
    /// The attention function: separate operations or a single one.
    pub attend: Attend<B>,
}

impl<B: Backend> Way<'_, B> {
    /// Returns options without noise and with attention as separate operations.
    pub fn plain() -> Self {
        Self { noise: &|_| {}, attend: attend::plainly }
    }
}

/// Builds the layers of a model, each with its adapter if it is to have one.
pub struct Maker<'a, B: Backend> {
    plan: &'a Plan,
    device: &'a B::Device,
}

impl<B: Backend> Maker<'_, B> {
    /// Returns a layer of this name.
    pub fn layer(&self, name: &str, from: usize, to: usize, bias: bool, spread: f64) -> Projection<B> {
        let initializer = Initializer::Normal { mean: 0.0, std: spread };
        let layer = Projection::new(from, to, bias, &initializer, self.device);
        match &self.plan.lora {
            Some(lora) if lora.targets.iter().any(|target| target == name) => layer.with_adapter(lora, self.device),
            _ => layer,
        }
    }

    /// Returns a fresh norm.
    fn norm(&self) -> Norm<B> {
        let Shape { width, family, epsilon, .. } = self.plan.shape;
        Norm {
            gamma: Initializer::Ones.init([width], self.device),
            beta: (family == Family::Gpt2).then(|| Initializer::Zeros.init([width], self.device)),
            epsilon,
        }
    }

    /// Returns the shape of the model.
    pub fn shape(&self) -> &Shape {
        &self.plan.shape
    }

    /// Returns the dropout layer.
    pub fn dropout(&self) -> Dropout {
        DropoutConfig::new(self.plan.dropout).init()
    }

    /// Returns the standard deviation of fresh weights: √(2 / 5 width) (Nguyen and Salazar, 2019).
    pub fn spread(&self) -> f64 {
        (0.4 / self.plan.shape.width as f64).sqrt()
    }

    /// Returns the standard deviation of layers that add to the residual path. It decreases with their
    /// number, two per block (Radford et al., 2019).
    pub fn onto_the_residual(&self) -> f64 {
        self.spread() / (2.0 * self.plan.shape.layers as f64).sqrt()
    }
}

impl<B: Backend> Transformer<B> {
    /// Returns a fresh model.
    pub fn new(plan: &Plan, device: &B::Device) -> Self {
        let make = Maker { plan, device };
        let Shape { layers, width, vocabulary, positions, family, tied, .. } = plan.shape;
        let normal = Initializer::Normal { mean: 0.0, std: make.spread() };
        Self {
            tokens: EmbeddingConfig::new(vocabulary, width).with_initializer(normal.clone()).init(device),
            positions: (family == Family::Gpt2).then(|| normal.init([positions, width], device)),
            dropout: make.dropout(),
            blocks: (0..layers).map(|_| Block::new(&make)).collect(),
            norm: make.norm(),
            head: (!tied).then(|| make.layer("head", width, vocabulary, false, make.spread())),
            mask: causal_mask(plan.sequence, device),
            rotary: (family == Family::Llama).then(|| Rotary::new(&plan.shape, plan.sequence, device)),
        }
    }

    /// Maps tokens `[batch, length]` to logits `[batch, length, vocabulary]`, for lengths up to `sequence`.
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let x = self.norm.forward(self.hidden(tokens, &Way::plain()));
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.tokens.weight.val().transpose().unsqueeze()),
        }
    }

    /// Maps tokens `[batch, length]` to the output of the last block, `[batch, length, width]`.
    pub fn hidden(&self, tokens: Tensor<B, 2, Int>, way: &Way<'_, B>) -> Tensor<B, 3> {
        let sight = self.sight(tokens.dims()[1], way);
        let blocks = self.blocks.iter().enumerate();
        blocks.fold(self.embed(tokens, way), |x, (number, block)| {
            (way.noise)(number + 1);
            block.forward(x, &sight)
        })
    }

    /// Maps the output of the last block, `[batch, length, width]`, to the terms that sum to the logits.
    pub fn terms(&self, x: Tensor<B, 3>, way: &Way<'_, B>) -> Terms<B> {
        let x = self.norm.forward(x).flatten::<2>(0, 1);
        (way.noise)(self.blocks.len() + 1);
        match &self.head {
            Some(head) => head.terms(x),
            None => vec![[x, self.tokens.weight.val().transpose()]],
        }
    }

    /// Maps tokens `[batch, length]` to the input of the first block, `[batch, length, width]`.
    pub fn embed(&self, tokens: Tensor<B, 2, Int>, way: &Way<'_, B>) -> Tensor<B, 3> {
        let [_, length] = tokens.dims();
        (way.noise)(0);
        let mut x = self.tokens.forward(tokens);
        if let Some(positions) = &self.positions {
            x = x + positions.val().narrow(0, 0, length).unsqueeze::<3>();
        }
        self.dropout.forward(x)
    }

    /// Returns the mask and rotations that all blocks need for a sequence of this length.
    pub fn sight(&self, length: usize, way: &Way<'_, B>) -> Sight<B> {
        Sight {
            mask: self.mask.clone().slice([0..1, 0..length, 0..length]),
            rotary: self.rotary.as_ref().map(|rotary| rotary.of(length)),
            attend: way.attend,
        }
    }

    /// Reports whether a training pass draws random numbers.
    pub fn draws(&self) -> bool {
        self.dropout.prob > 0.0
            || self.head.as_ref().is_some_and(Projection::draws)
            || self.blocks.iter().any(Block::draws)
    }

    /// Returns the lowest block that gradients have to pass through: 0 if an embedding is trained, else the
    /// lowest block with trained parameters, or the number of blocks if there is none.
    pub fn lowest_trained(&self) -> usize {
        let trains = |param: &Param<Tensor<B, 2>>| param.val().is_require_grad();
        if trains(&self.tokens.weight) || self.positions.as_ref().is_some_and(trains) {
            return 0;
        }
        self.blocks.iter().position(params::trains_any).unwrap_or(self.blocks.len())
    }
}

impl<B: Backend> Block<B> {
    fn new(make: &Maker<'_, B>) -> Self {
        let Shape { width, hidden, hidden_bias: bias, activation, .. } = *make.shape();
        Self {
            attention_norm: make.norm(),
            attention: Attention::new(make),
            widen_norm: make.norm(),
            gate: (activation == Activation::Silu).then(|| make.layer("gate", width, hidden, bias, make.spread())),
            widen: make.layer("widen", width, hidden, bias, make.spread()),
            narrow: make.layer("narrow", hidden, width, bias, make.onto_the_residual()),
            dropout: make.dropout(),
            tanh: activation == Activation::GeluTanh,
        }
    }

    /// Maps `[batch, length, width]` to the same shape.
    pub fn forward(&self, x: Tensor<B, 3>, sight: &Sight<B>) -> Tensor<B, 3> {
        let attended = self.attention.forward(self.attention_norm.forward(x.clone()), sight);
        let x = x + self.dropout.forward(attended);
        let read = self.widen_norm.forward(x.clone());
        let hidden = match &self.gate {
            Some(gate) => activation::silu(gate.forward(read.clone())) * self.widen.forward(read),
            None if self.tanh => gelu_by_tanh(self.widen.forward(read)),
            None => activation::gelu(self.widen.forward(read)),
        };
        x + self.dropout.forward(self.narrow.forward(hidden))
    }

    fn draws(&self) -> bool {
        let layers = [&self.widen, &self.narrow].into_iter().chain(&self.gate).chain(self.attention.layers());
        self.dropout.prob > 0.0 || layers.into_iter().any(Projection::draws)
    }
}

impl<B: Backend> Norm<B> {
    /// Computes (x − mean(x)) / √(var(x) + ε) · γ + β, or x / √(mean(x²) + ε) · γ, from `[batch, length,
    /// width]` to the same shape. Uses f32 up to the division: activations of pretrained models reach
    /// thousands, and their squares overflow f16.
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let dtype = FloatDType::from(x.dtype());
        let x = x.cast(FloatDType::F32);
        let x = if self.beta.is_some() { x.clone() - x.mean_dim(2) } else { x };
        let size = x.clone().square().mean_dim(2).add_scalar(self.epsilon).sqrt();
        let x = (x / size).cast(dtype) * self.gamma.val().unsqueeze();
        match &self.beta {
            Some(beta) => x + beta.val().unsqueeze(),
            None => x,
        }
    }
}

/// Computes ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks and Gimpel, 2016).
fn gelu_by_tanh<B: Backend>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    let cube = x.clone().powi_scalar(3).mul_scalar(0.044_715);
    let inner = (x.clone() + cube).mul_scalar(std::f64::consts::FRAC_2_PI.sqrt());
    x.mul_scalar(0.5) * inner.tanh().add_scalar(1.0)
}

fn causal_mask<B: Backend>(sequence: usize, device: &B::Device) -> Tensor<B, 3> {
    let later = Tensor::<B, 2>::ones([sequence, sequence], device).triu(1).equal_elem(1.0);
    Tensor::<B, 2>::zeros([sequence, sequence], device).mask_fill(later, f32::NEG_INFINITY).unsqueeze()
}

#[cfg(test)]
mod tests {
    use super::Norm;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::Param;
    use burn::tensor::{FloatDType, Tensor, TensorData, Tolerance};

    type Cpu = Autodiff<Flex>;

    /// Returns a norm's output for large activations in a number format, and their gradient.
    fn of_large_activations(dtype: FloatDType, has_beta: bool) -> [TensorData; 2] {
        let values: Vec<f32> = (0..24).map(|at| 100.0 + 3000.0 * (at as f32 * 1.7).sin()).collect();
        let numbers = |data: TensorData| Tensor::<Flex, 3>::from_data(data, &FlexDevice).cast(dtype);
        let x = Tensor::<Cpu, 3>::from_inner(numbers(TensorData::new(values.clone(), [1, 3, 8]))).require_grad();
        let vector = |value: f32| {
            let tensor = Tensor::<Cpu, 1>::full([8], value, &FlexDevice).cast(dtype);
            Param::from_tensor(tensor.detach())
        };
        let norm = Norm { gamma: vector(1.5), beta: has_beta.then(|| vector(0.25)), epsilon: 1e-5 };
        let y = norm.forward(x.clone());
        let slope = Tensor::<Cpu, 3>::from_inner(numbers(TensorData::new(values, [1, 3, 8])).flip([2]));
        let gradients = (y.clone() * slope).sum().backward();
        let read = |tensor: Tensor<Flex, 3>| tensor.cast(FloatDType::F32).into_data();
        [read(y.inner()), read(x.grad(&gradients).unwrap())]
    }

    #[test]
    fn norms_of_large_activations_are_the_same_in_16_bits() {
        for has_beta in [true, false] {
            let wanted = of_large_activations(FloatDType::F32, has_beta);
            for (dtype, apart) in [(FloatDType::F16, 2e-3), (FloatDType::BF16, 2e-2)] {
                let found = of_large_activations(dtype, has_beta);
                for (found, wanted) in found.iter().zip(&wanted) {
                    found.assert_approx_eq::<f32>(wanted, Tolerance::rel_abs(apart, apart));
                }
            }
        }
    }
}
