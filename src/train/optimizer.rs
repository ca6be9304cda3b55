//! `AdamW` (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017):
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
//! w ← (1 − lr·λ) w − lr/(1 − β₁ᵗ) · m / (√(v/(1 − β₂ᵗ)) + ε)
//! ```
//! Moments are keyed by parameter path and stored as f32 or as 8-bit blocks (`optimizer.moments`), which are
//! requantized after each update; the update itself uses the values it has just computed. Weight decay skips
//! one-dimensional tensors: biases and norms. If the module computes in 16 bits, the master weights are kept
//! here in f32 and the module gets a rounded copy after each update, so that small updates are not lost. With
//! `optimizer.offload`, moments and master weights rest in host memory and move to the device only for their
//! own parameter's update.

mod blockwise;
pub mod kept;
mod moments;

use super::groups::{Plan, Rule};
use super::params::{Reading, Tensors, Trail, erase, follow_trail, ranked};
use crate::config::knobs;
use blockwise::Kind;
use burn::module::{AutodiffModule, ModuleMapper, Param};
use burn::tensor::{
    DType, FloatDType, Tensor,
    backend::{AutodiffBackend, Backend, ExecutionError},
};
use kept::{Kept, Masters};
use moments::{Moment, Moments};
use safetensors::SafeTensors;
use std::collections::BTreeMap;

/// The optimizer's state on the inner backend `B`.
pub struct AdamW<B: Backend> {
    knobs: knobs::Optimizer,
    /// The trained parameters and their rules.
    pub plan: Plan,
    time: u64,
    moments: BTreeMap<String, Moments<B>>,
    /// The weights in f32, if the module holds them in fewer bits; checkpoints are written from them. Frozen
    /// ones stay in host memory.
    pub masters: Masters<B>,
}

impl<B: Backend> AdamW<B> {
    /// Returns an optimizer without history.
    pub fn new(knobs: knobs::Optimizer, plan: Plan) -> Self {
        Self { knobs, plan, time: 0, moments: BTreeMap::new(), masters: BTreeMap::new() }
    }

    /// Returns the number of updates made: t.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Applies one update to the weights. `scales` are the clipping factors of the gradients, 1 = unclipped,
    /// one for each norm of the plan.
    ///
    /// # Errors
    /// Returns the device's error when state cannot be read back to host memory.
    pub fn update<A, M>(
        &mut self,
        module: M,
        gradients: Tensors<B>,
        lr: f64,
        scales: &[f64],
    ) -> Result<M, ExecutionError>
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        self.time += 1;
        let mut update = Update { trail: Trail::default(), optimizer: self, gradients, lr, scales, error: None };
        let module = module.map(&mut update);
        update.error.map_or(Ok(module), Err)
    }

    fn move_weights<const D: usize>(
        &mut self,
        path: String,
        weights: Tensor<B, D>,
        gradient: Tensor<B, D>,
        lr: f64,
        rule: Rule,
    ) -> Result<Tensor<B, D>, ExecutionError> {
        let [beta_1, beta_2] = self.knobs.betas;
        let (shape, device) = (gradient.dims(), gradient.device());
        let (first, second, since) = match self.moments.remove(&path) {
            Some(Moments { first, second, since }) => {
                let first = ranked::<B, D>(first.values(Kind::First, &shape, &device));
                (first, ranked::<B, D>(second.values(Kind::Second, &shape, &device)), since)
            }
            None => (gradient.zeros_like(), gradient.zeros_like(), self.time - 1),
        };
        let lr = lr * rule.lr_factor;
        let first = first.mul_scalar(beta_1) + gradient.clone().mul_scalar(1.0 - beta_1);
        let second = second.mul_scalar(beta_2) + gradient.square().mul_scalar(1.0 - beta_2);
        let denominator =
            second.clone().div_scalar(self.correction(beta_2, since)).sqrt().add_scalar(self.knobs.epsilon);
        let direction = first.clone().div(denominator).mul_scalar(lr / self.correction(beta_1, since));
        let decay = if D >= 2 { lr * rule.weight_decay } else { 0.0 };
        let kept = if decay > 0.0 { weights.mul_scalar(1.0 - decay) } else { weights };
        let moved = kept - direction;
        let coded = self.knobs.moments.is_coded(&shape);
        let first = Moment::keep(Kind::First, first, coded, self.time);
        let second = Moment::keep(Kind::Second, second, coded, self.time);
        let moments = Moments { first, second, since };
        self.moments.insert(path, if self.knobs.offload { moments.into_host()? } else { moments });
        Ok(moved)
    }

    /// Updates weights that the module holds in fewer bits, through their f32 master.
    fn move_master<const D: usize>(
        &mut self,
        path: String,
        rounded: Tensor<B, D>,
        gradient: Tensor<B, D>,
        lr: f64,
        rule: Rule,
    ) -> Result<Tensor<B, D>, ExecutionError> {
        let dtype = rounded.dtype();
        let master = match self.masters.remove(&path) {
            Some(kept) => ranked(kept.float(&gradient.device())),
            None => rounded.cast(FloatDType::F32),
        };
        let moved = self.move_weights(path.clone(), master, gradient, lr, rule)?;
        let kept = Kept::Float(erase(moved.clone()));
        self.masters.insert(path, if self.knobs.offload { kept.into_host()? } else { kept });
        Ok(moved.cast(FloatDType::from(dtype)))
    }

    fn correction(&self, beta: f64, since: u64) -> f64 {
        1.0 - beta.powf((self.time - since) as f64)
    }

    /// Adds the moments to a reading.
    pub fn read_into(&self, reading: &mut Reading<B>) {
        for (path, moments) in &self.moments {
            moments.read_into(path, reading);
        }
    }

    /// Loads the moments of the parameters in `shapes` from a file; missing ones start at zero. Returns
    /// messages about everything that differs from the file.
    ///
    /// # Errors
    /// Returns the device's error when state cannot be read back to host memory.
    pub fn restore(
        &mut self,
        time: u64,
        file: &SafeTensors<'_>,
        shapes: &BTreeMap<String, Vec<usize>>,
        device: &B::Device,
    ) -> Result<Vec<String>, ExecutionError> {
        self.time = time;
        let (mut missing, mut turned) = (Vec::new(), 0);
        let trained: Vec<_> = shapes.iter().filter(|(path, _)| self.plan.trains(path)).collect();
        for (path, shape) in &trained {
            let Some(mut moments) = Moments::find(path, shape, file, time) else {
                missing.push(path.as_str());
                continue;
            };
            let coded = self.knobs.moments.is_coded(shape);
            if moments.are_coded() != coded {
                turned += 1;
                moments = moments.turned(shape, coded, time, device);
                if self.knobs.offload {
                    moments = moments.into_host()?;
                }
            }
            self.moments.insert((*path).clone(), moments);
        }
        let mut notes = Vec::new();
        if turned > 0 {
            let to =
                if self.knobs.moments == knobs::MomentBits::Eight { "rounded to 8 bits" } else { "widened to f32" };
            notes.push(format!("the moments of {turned} parameters are {to} from here on"));
        }
        if time > 0 && !missing.is_empty() {
            notes.push(begin_at_zero(&missing, trained.len()));
        }
        Ok(notes)
    }
}

/// Describes the parameters that have no moments in a checkpoint.
fn begin_at_zero(missing: &[&str], trained: usize) -> String {
    let named = missing.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    let more = match missing.len().saturating_sub(3) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = missing.len();
    format!(
        "the checkpoint holds no moments of {count} of {trained} trained parameters, theirs begin at zero: {named}{more}"
    )
}

/// An update while it visits the module.
struct Update<'a, B: Backend> {
    trail: Trail,
    optimizer: &'a mut AdamW<B>,
    gradients: Tensors<B>,
    lr: f64,
    scales: &'a [f64],
    /// The first error; parameters after it are not updated.
    error: Option<ExecutionError>,
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
        if self.error.is_some() {
            return param;
        }
        let scale = self.scales.get(rule.clip).copied().unwrap_or(1.0);
        let (id, tensor, mapper) = param.consume();
        let mut gradient = ranked::<B, D>(gradient);
        if scale < 1.0 {
            gradient = gradient.mul_scalar(scale);
        }
        let inner = tensor.clone().inner();
        let moved = if tensor.dtype() == DType::F32 {
            self.optimizer.move_weights(path, inner, gradient, self.lr, rule)
        } else {
            self.optimizer.move_master(path, inner, gradient, self.lr, rule)
        };
        let tensor = match moved {
            Ok(moved) => Tensor::from_inner(moved).require_grad(),
            Err(error) => {
                self.error = Some(error);
                tensor
            }
        };
        Param::from_mapped_value(id, tensor, mapper)
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

    /// A scalar parameter, updated exactly as in the paper.
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
            // A scale of one half halves the gradient before it enters the moments.
            module = optimizer.update::<Autodiff<Flex>, _>(module, gradients, lr, &[0.5]).unwrap();
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
