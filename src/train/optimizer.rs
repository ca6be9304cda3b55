//! `AdamW` (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017):
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
//! w ← (1 − lr·λ) w − lr/(1 − β₁ᵗ) · m / (√(v/(1 − β₂ᵗ)) + ε)
//! ```
//! Moments are f32 and keyed by parameter path. Weight decay leaves out tensors of one dimension:
//! biases and norms. Where the module computes in 16 bits, the weights proper are kept here in f32
//! and the module gets a rounded copy after each update, so that small updates are not lost.

use super::groups::{Plan, Rule};
use super::params::{Reading, Tensors, Trail, erase, follow_trail, from_safetensors, ranked};
use crate::config::knobs;
use burn::module::{AutodiffModule, ModuleMapper, Param};
use burn::tensor::{
    DType, FloatDType, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
    ops::FloatTensor,
};
use safetensors::SafeTensors;
use std::collections::BTreeMap;

const FIRST: &str = ".exp_avg";
const SECOND: &str = ".exp_avg_sq";
const SINCE: &str = ".since";

/// The two moments of one parameter.
struct Moments<B: Backend> {
    first: FloatTensor<B>,
    second: FloatTensor<B>,
    /// The updates made before these moments began: theirs is t − since.
    since: u64,
}

/// The optimizer's state on the inner backend `B`.
pub struct AdamW<B: Backend> {
    knobs: knobs::Optimizer,
    /// What is trained, and how.
    pub plan: Plan,
    time: u64,
    moments: BTreeMap<String, Moments<B>>,
    /// The weights in f32, where the module holds fewer bits.
    pub masters: Tensors<B>,
    /// The same for weights that are not trained, on the host: checkpoints are written from them.
    pub frozen: BTreeMap<String, TensorData>,
}

impl<B: Backend> AdamW<B> {
    /// An optimizer without history.
    pub fn new(knobs: knobs::Optimizer, plan: Plan) -> Self {
        Self { knobs, plan, time: 0, moments: BTreeMap::new(), masters: BTreeMap::new(), frozen: BTreeMap::new() }
    }

    /// Updates made: t.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Moves the weights by one update. `scales` is what clipping leaves of the gradients, 1 = all, one
    /// factor for each norm of the plan.
    pub fn update<A, M>(&mut self, module: M, gradients: Tensors<B>, lr: f64, scales: &[f64]) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        self.time += 1;
        module.map(&mut Update { trail: Trail::default(), optimizer: self, gradients, lr, scales })
    }

    fn move_weights<const D: usize>(
        &mut self,
        path: String,
        weights: Tensor<B, D>,
        gradient: Tensor<B, D>,
        lr: f64,
        rule: Rule,
    ) -> Tensor<B, D> {
        let [beta_1, beta_2] = self.knobs.betas;
        let (first, second, since) = match self.moments.remove(&path) {
            Some(moments) => (ranked::<B, D>(moments.first), ranked::<B, D>(moments.second), moments.since),
            None => (gradient.zeros_like(), gradient.zeros_like(), self.time - 1),
        };
        let lr = lr * rule.lr_factor;
        let first = first.mul_scalar(beta_1) + gradient.clone().mul_scalar(1.0 - beta_1);
        let second = second.mul_scalar(beta_2) + gradient.square().mul_scalar(1.0 - beta_2);
        let denominator =
            second.clone().div_scalar(self.correction(beta_2, since)).sqrt().add_scalar(self.knobs.epsilon);
        let direction = first.clone().div(denominator).mul_scalar(lr / self.correction(beta_1, since));
        self.moments.insert(path, Moments { first: erase(first), second: erase(second), since });
        let decay = if D >= 2 { lr * rule.weight_decay } else { 0.0 };
        let kept = if decay > 0.0 { weights.mul_scalar(1.0 - decay) } else { weights };
        kept - direction
    }

    fn correction(&self, beta: f64, since: u64) -> f64 {
        1.0 - beta.powf((self.time - since) as f64)
    }

    /// Adds the moments to a reading: `<path>.exp_avg` and `<path>.exp_avg_sq`, and `<path>.since`
    /// for those that began later than the run.
    pub fn read_into(&self, reading: &mut Reading<B>) {
        for (path, moments) in &self.moments {
            reading.add(format!("{path}{FIRST}"), moments.first.clone());
            reading.add(format!("{path}{SECOND}"), moments.second.clone());
            if moments.since > 0 {
                let device = B::float_device(&moments.second);
                let since = Tensor::<B, 1>::from_data(TensorData::from([moments.since as f32]), &device);
                reading.add(format!("{path}{SINCE}"), erase(since.cast(FloatDType::F32)));
            }
        }
    }

    /// Takes the moments of the parameters in `kept` from a file; others start at zero.
    pub fn restore<'a>(
        &mut self,
        time: u64,
        file: &SafeTensors<'_>,
        kept: impl Iterator<Item = &'a String>,
        device: &B::Device,
    ) {
        self.time = time;
        for path in kept.filter(|path| self.plan.trains(path)) {
            let of = |suffix: &str| file.tensor(&format!("{path}{suffix}")).ok();
            if let (Some(first), Some(second)) = (of(FIRST), of(SECOND)) {
                let [first, second] = [first, second].map(|view| from_safetensors::<B>(&view, device));
                let since = of(SINCE).and_then(|view| view.data().first_chunk().copied());
                let since = since.map_or(0, |bytes| f32::from_le_bytes(bytes) as u64).min(time);
                self.moments.insert(path.clone(), Moments { first, second, since });
            }
        }
    }
}

/// One update on its way through the module.
struct Update<'a, B: Backend> {
    trail: Trail,
    optimizer: &'a mut AdamW<B>,
    gradients: Tensors<B>,
    lr: f64,
    scales: &'a [f64],
}

impl<A, B> ModuleMapper<A> for Update<'_, B>
where
    A: AutodiffBackend<InnerBackend = B>,
    B: Backend,
{
    follow_trail!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
        let path = self.trail.path();
        let Some(gradient) = self.gradients.remove(&path) else { return param };
        let Some(rule) = self.optimizer.plan.rules.get(&path).copied() else { return param };
        let scale = self.scales.get(rule.clip).copied().unwrap_or(1.0);
        let (id, tensor, mapper) = param.consume();
        let mut gradient = ranked::<B, D>(gradient);
        if scale < 1.0 {
            gradient = gradient.mul_scalar(scale);
        }
        let dtype = tensor.dtype();
        let inner = tensor.inner();
        let moved = if dtype == DType::F32 {
            self.optimizer.move_weights(path, inner, gradient, self.lr, rule)
        } else {
            let master = self.optimizer.masters.remove(&path);
            let master = master.map_or_else(|| inner.cast(FloatDType::F32), ranked);
            let moved = self.optimizer.move_weights(path.clone(), master, gradient, self.lr, rule);
            self.optimizer.masters.insert(path, erase(moved.clone()));
            moved.cast(FloatDType::from(dtype))
        };
        Param::from_mapped_value(id, Tensor::from_inner(moved).require_grad(), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::AdamW;
    use crate::config::{
        groups::Groups,
        knobs::{self, MomentBits},
    };
    use crate::recipe::schedule::Schedule;
    use crate::train::groups::{Plan, Rule};
    use crate::train::params::{Reading, erase, read_into};
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::{AutodiffModule, Module, Param};
    use burn::tensor::{Tensor, backend::Backend};
    use std::collections::BTreeMap;

    #[derive(Module, Debug)]
    struct Pair<B: Backend> {
        matrix: Param<Tensor<B, 2>>,
        bias: Param<Tensor<B, 1>>,
    }

    /// One number, updated as the paper writes it.
    struct Paper {
        weight: f64,
        first: f64,
        second: f64,
    }

    impl Paper {
        fn update(&mut self, gradient: f64, lr: f64, decay: f64, time: i32) {
            self.first = 0.9 * self.first + 0.1 * gradient;
            self.second = 0.99 * self.second + 0.01 * gradient * gradient;
            let first = self.first / (1.0 - 0.9_f64.powi(time));
            let second = self.second / (1.0 - 0.99_f64.powi(time));
            self.weight -= lr * (first / (second.sqrt() + 1e-8) + decay * self.weight);
        }
    }

    #[test]
    fn it_moves_weights_as_the_paper_says_and_decays_matrices_alone() {
        let device = FlexDevice;
        let values = |matrix: [f32; 2], bias: [f32; 2]| {
            (Tensor::<Flex, 2>::from_data([matrix], &device), Tensor::<Flex, 1>::from_data(bias, &device))
        };
        let (matrix, bias) = values([1.0, -2.0], [0.5, 3.0]);
        let mut module = Pair::<Autodiff<Flex>> {
            matrix: Param::from_tensor(Tensor::from_inner(matrix)),
            bias: Param::from_tensor(Tensor::from_inner(bias)),
        };
        let knobs = knobs::Optimizer {
            lr: 0.1,
            weight_decay: 0.2,
            max_norm: None,
            betas: [0.9, 0.99],
            epsilon: 1e-8,
            moments: MomentBits::F32,
            offload: false,
            schedule: Schedule::default(),
            groups: Groups::default(),
        };
        let rule = Rule { lr_factor: 1.0, weight_decay: 0.2, clip: 0 };
        let rules = ["matrix", "bias"].map(|path| (path.to_owned(), rule)).into();
        let mut optimizer = AdamW::<Flex>::new(knobs, Plan { rules, max_norms: vec![None] });
        let mut paper = [1.0, -2.0, 0.5, 3.0].map(|weight| Paper { weight, first: 0.0, second: 0.0 });
        for time in 1..=20_i32 {
            let gradient = |index: i32| ((time * 7 + index * 3) % 11 - 5) as f32 / 4.0;
            let lr = 0.1 / f64::from(time);
            let (matrix, bias) = values([gradient(0), gradient(1)], [gradient(2), gradient(3)]);
            let gradients = BTreeMap::from([("matrix".to_owned(), erase(matrix)), ("bias".to_owned(), erase(bias))]);
            // A scale of a half halves the gradient before the moments see it.
            module = optimizer.update::<Autodiff<Flex>, _>(module, gradients, lr, &[0.5]);
            for (index, number) in (0..).zip(&mut paper) {
                let decay = if index < 2 { 0.2 } else { 0.0 };
                number.update(f64::from(gradient(index)) * 0.5, lr, decay, time);
            }
        }
        let mut reading = Reading::<Flex>::default();
        read_into(&module.valid(), &optimizer.masters, &mut reading);
        let read = reading.finish().unwrap();
        let found: Vec<f64> = read.iter().flat_map(|(_, data)| data.iter::<f64>().collect::<Vec<_>>()).collect();
        for (found, wanted) in found.into_iter().zip(&paper) {
            assert!((found - wanted.weight).abs() < 1e-5, "{found} and {}", wanted.weight);
        }
        assert_eq!(optimizer.time(), 20);
    }
}
