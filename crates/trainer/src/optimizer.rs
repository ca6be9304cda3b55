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
//! own parameter's update. A search has two phases (`recipe/phases.rs`), each with its own t, rates and decays.

mod blockwise;
mod moments;

use super::layers::UpdateObserver;
use super::native::ops::{self, Factors};
use super::param_rules::{ParamRule, ParamRules};
use super::params::{TensorReader, Tensors, Trail, erase_rank, follow_trail, with_rank};
use super::stored_tensor::{Masters, StoredTensor, as_f32};
use blockwise::Kind;
use burn::module::{AutodiffModule, ModuleMapper, Param};
use burn::tensor::{
    DType, FloatDType, Tensor,
    backend::{AutodiffBackend, Backend, ExecutionError},
};
use downshift_core::config::knobs;
use downshift_core::format::counted;
use downshift_core::recipe::phases::SearchPhase;
use moments::{Moment, Moments};
use safetensors::SafeTensors;
use std::collections::BTreeMap;

/// The optimizer's state on the inner backend `B`.
pub struct AdamW<B: Backend> {
    knobs: knobs::Optimizer,
    /// The trained parameters and their rules.
    pub rules: ParamRules,
    /// t of each phase.
    times: [u64; 2],
    moments: BTreeMap<String, Moments<B>>,
    /// The weights in f32, if the module holds them in fewer bits; checkpoints are written from them. Frozen
    /// ones stay in host memory.
    pub masters: Masters<B>,
    /// Observes the next update, if there is one.
    pub observer: Option<UpdateObserver<B>>,
}

impl<B: Backend> AdamW<B> {
    /// Returns an optimizer without history.
    pub fn new(knobs: knobs::Optimizer, rules: ParamRules) -> Self {
        Self { knobs, rules, times: [0; 2], moments: BTreeMap::new(), masters: BTreeMap::new(), observer: None }
    }

    /// Returns the number of updates made in each phase: t.
    pub fn update_counts(&self) -> [u64; 2] {
        self.times
    }

    /// Applies one update to the parameters with a gradient, which belong to this phase. `scales` are the clipping factors
    /// of the gradients, 1 = unclipped, one for each norm of the plan.
    ///
    /// # Errors
    /// Returns the device's error when state cannot be read back to host memory.
    pub fn update<A, M>(
        &mut self,
        module: M,
        gradients: Tensors<B>,
        phase: SearchPhase,
        lr: f64,
        scales: &[f64],
    ) -> Result<M, ExecutionError>
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        self.times[phase.index()] += 1;
        let mut update = Update { trail: Trail::default(), optimizer: self, gradients, lr, scales, error: None };
        let module = module.map(&mut update);
        update.error.map_or(Ok(module), Err)
    }

    fn update_weights<const D: usize>(
        &mut self,
        path: String,
        weights: Tensor<B, D>,
        gradient: Tensor<B, D>,
        [lr, scale]: [f64; 2],
        rule: ParamRule,
        rounded: Option<FloatDType>,
    ) -> (UpdatedWeights<B, D>, Result<(), ExecutionError>) {
        let (betas, time) = (self.betas(rule.phase), self.times[rule.phase.index()]);
        let [beta_1, beta_2] = betas;
        let (shape, device) = (gradient.dims(), gradient.device());
        let (first, second, since) = if let Some(Moments { first, second, since }) = self.moments.remove(&path) {
            let first = with_rank::<B, D>(first.values(Kind::First, &shape, &device));
            (first, with_rank::<B, D>(second.values(Kind::Second, &shape, &device)), since)
        } else {
            let zeros = || gradient.zeros_like().cast(FloatDType::F32);
            (zeros(), zeros(), time - 1)
        };
        let lr = lr * rule.lr_factor;
        let factors = Factors {
            scale,
            betas,
            rate: lr / bias_correction(beta_1, time - since),
            correction: bias_correction(beta_2, time - since),
            epsilon: self.knobs.epsilon,
            keep: if D >= 2 { 1.0 - lr * rule.weight_decay } else { 1.0 },
        };
        let before = self.observer.is_some().then(|| weights.clone());
        let ([weights, first, second], rounded) = apply_update([weights, first, second], gradient, factors, rounded);
        if let (Some(observer), Some(before)) = (&mut self.observer, before) {
            observer.observe_change(before, weights.clone());
        }
        let coded = self.knobs.moments.is_coded(&shape);
        let first = Moment::store(Kind::First, first, coded, time);
        let second = Moment::store(Kind::Second, second, coded, time);
        let moments = Moments { first, second, since };
        let moments = if self.knobs.offload { moments.into_host() } else { Ok(moments) };
        (UpdatedWeights { weights, rounded }, moments.map(|moments| drop(self.moments.insert(path, moments))))
    }

    /// Updates weights that the module holds in fewer bits, through their f32 master.
    fn update_master<const D: usize>(
        &mut self,
        path: String,
        rounded: Tensor<B, D>,
        gradient: Tensor<B, D>,
        factors: [f64; 2],
        rule: ParamRule,
    ) -> (Tensor<B, D>, Result<(), ExecutionError>) {
        let dtype = rounded.dtype();
        let master = match self.masters.remove(&path) {
            Some(kept) => with_rank(kept.into_float(&gradient.device())),
            None => rounded.cast(FloatDType::F32),
        };
        let dtype = FloatDType::from(dtype);
        let (moved, kept) = self.update_weights(path.clone(), master, gradient, factors, rule, Some(dtype));
        let rounded = moved.rounded.unwrap_or_else(|| moved.weights.clone().cast(dtype));
        let master = StoredTensor::Float(erase_rank(moved.weights));
        let master = if self.knobs.offload { master.into_host() } else { Ok(master) };
        let kept = kept.and(master.map(|master| drop(self.masters.insert(path, master))));
        (rounded, kept)
    }

    fn betas(&self, phase: SearchPhase) -> [f64; 2] {
        match phase {
            SearchPhase::Weights => self.knobs.betas,
            SearchPhase::Architecture => self.knobs.architecture.unwrap_or_default().betas,
        }
    }

    /// Adds the moments to a reader.
    pub fn collect_state(&self, reader: &mut TensorReader<B>) {
        for (path, moments) in &self.moments {
            moments.collect(path, reader);
        }
    }

    /// Loads the moments of the parameters in `shapes` from a file; missing ones start at zero. Returns
    /// messages about everything that differs from the file.
    ///
    /// # Errors
    /// Returns the device's error when state cannot be read back to host memory.
    pub fn restore(
        &mut self,
        times: [u64; 2],
        file: &SafeTensors<'_>,
        shapes: &BTreeMap<String, Vec<usize>>,
        device: &B::Device,
    ) -> Result<Vec<String>, ExecutionError> {
        self.times = times;
        let (mut missing, mut recoded, mut begun) = (Vec::new(), 0, 0);
        for (path, shape) in shapes {
            let Some(rule) = self.rules.rules.get(path) else { continue };
            let time = times[rule.phase.index()];
            if time == 0 {
                continue;
            }
            begun += 1;
            let Some(mut moments) = Moments::find(path, shape, file, time) else {
                missing.push(path.as_str());
                continue;
            };
            let coded = self.knobs.moments.is_coded(shape);
            if moments.are_coded() != coded {
                recoded += 1;
                moments = moments.recoded(shape, coded, time, device);
                if self.knobs.offload {
                    moments = moments.into_host()?;
                }
            }
            self.moments.insert(path.clone(), moments);
        }
        let mut notes = Vec::new();
        if recoded > 0 {
            let to = if self.knobs.moments == knobs::MomentBits::Eight { "stored in 8 bits" } else { "stored in f32" };
            notes.push(format!("the moments of {} are now {to}", counted(recoded, "parameter")));
        }
        if !missing.is_empty() {
            notes.push(describe_missing(&missing, begun));
        }
        Ok(notes)
    }
}

fn bias_correction(beta: f64, updates: u64) -> f64 {
    1.0 - beta.powf(updates as f64)
}

/// Describes the parameters that have no moments in a checkpoint.
fn describe_missing(missing: &[&str], trained: usize) -> String {
    let named = missing.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    let more = match missing.len().saturating_sub(3) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = missing.len();
    format!(
        "the checkpoint lacks the moments of {count} out of {}, which start at zero: {named}{more}",
        counted(trained as u64, "trained parameter")
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
        let Some(rule) = self.optimizer.rules.rules.get(&path).copied() else { return param };
        if self.error.is_some() {
            return param;
        }
        let scale = self.scales.get(rule.clip).copied().unwrap_or(1.0);
        let (id, tensor, mapper) = param.consume();
        let gradient = with_rank::<B, D>(gradient);
        if let Some(observer) = &mut self.optimizer.observer {
            observer.observe_gradient(&path, &gradient);
        }
        // Nothing else holds the weights now, so they can be changed in place.
        let (inner, factors) = (tensor.inner(), [self.lr, scale.min(1.0)]);
        let (moved, kept) = if inner.dtype() == DType::F32 {
            let (moved, kept) = self.optimizer.update_weights(path, inner, gradient, factors, rule, None);
            (moved.weights, kept)
        } else {
            self.optimizer.update_master(path, inner, gradient, factors, rule)
        };
        self.error = kept.err();
        Param::from_mapped_value(id, Tensor::from_inner(moved).require_grad(), mapper)
    }
}

/// Weights after an update.
struct UpdatedWeights<B: Backend, const D: usize> {
    weights: Tensor<B, D>,
    /// The same in the module's number format, if that came with the update.
    rounded: Option<Tensor<B, D>>,
}

/// Updates weights, first and second moments. Returns the weights in the format `rounded` too, if that costs no pass of its
/// own.
fn apply_update<B: Backend, const D: usize>(
    state: [Tensor<B, D>; 3],
    gradient: Tensor<B, D>,
    factors: Factors,
    rounded: Option<FloatDType>,
) -> ([Tensor<B, D>; 3], Option<Tensor<B, D>>) {
    let [weights, first, second] = state;
    let inputs = [weights, first, second, gradient].map(erase_rank);
    let [weights, first, second, gradient] = match ops::update_on_gpu::<B>(inputs, factors, rounded) {
        Ok((state, rounded)) => return (state.map(with_rank::<B, D>), rounded.map(with_rank::<B, D>)),
        Err(inputs) => inputs,
    };
    let (mut state, gradient) = ([weights, first, second], as_f32::<B>(gradient));
    let updated = ops::update::<B>(state.each_mut(), &gradient, factors);
    let [weights, first, second] = state.map(with_rank::<B, D>);
    if updated {
        return ([weights, first, second], None);
    }
    let Factors { scale, betas: [beta_1, beta_2], rate, correction, epsilon, keep } = factors;
    let gradient = with_rank::<B, D>(gradient);
    let gradient = if scale < 1.0 { gradient.mul_scalar(scale) } else { gradient };
    let first = first.mul_scalar(beta_1) + gradient.clone().mul_scalar(1.0 - beta_1);
    let second = second.mul_scalar(beta_2) + gradient.square().mul_scalar(1.0 - beta_2);
    let denominator = second.clone().div_scalar(correction).sqrt().add_scalar(epsilon);
    let direction = first.clone().div(denominator).mul_scalar(rate);
    let kept = if keep < 1.0 { weights.mul_scalar(keep) } else { weights };
    ([kept - direction, first, second], None)
}

#[cfg(test)]
mod tests {
    use super::AdamW;
    use crate::param_rules::{ParamRule, ParamRules};
    use crate::params::{TensorReader, collect_parameters, erase_rank};
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::{AutodiffModule, Module, Param};
    use burn::tensor::{Tensor, backend::Backend};
    use downshift_core::config::{
        groups::Groups,
        knobs::{self, MomentBits},
    };
    use downshift_core::recipe::{phases::SearchPhase, schedule::Schedule};
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
    fn updates_match_the_paper_and_only_matrices_decay() {
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
            plateau: None,
            architecture: None,
            groups: Groups::default(),
        };
        let phase = SearchPhase::Weights;
        let rule = ParamRule { lr_factor: 1.0, weight_decay: 0.2, clip: 0, phase };
        let rules = ["matrix", "bias"].map(|path| (path.to_owned(), rule)).into();
        let mut optimizer = AdamW::<Flex>::new(knobs, ParamRules { rules, max_norms: vec![None] });
        let mut paper = [1.0, -2.0, 0.5, 3.0].map(|weight| Paper { weight, first: 0.0, second: 0.0 });
        for time in 1..=20_i32 {
            let gradient = |index: i32| ((time * 7 + index * 3) % 11 - 5) as f32 / 4.0;
            let lr = 0.1 / f64::from(time);
            let (matrix, bias) = values([gradient(0), gradient(1)], [gradient(2), gradient(3)]);
            let gradients =
                BTreeMap::from([("matrix".to_owned(), erase_rank(matrix)), ("bias".to_owned(), erase_rank(bias))]);
            // A scale of one half halves the gradient before it enters the moments.
            module = optimizer.update::<Autodiff<Flex>, _>(module, gradients, phase, lr, &[0.5]).unwrap();
            for (index, number) in (0..).zip(&mut paper) {
                let decay = if index < 2 { 0.2 } else { 0.0 };
                number.update(f64::from(gradient(index)) * 0.5, lr, decay, time);
            }
        }
        let mut reader = TensorReader::<Flex>::default();
        collect_parameters(&module.valid(), &optimizer.masters, &mut reader);
        let read = reader.read_all().unwrap();
        let found: Vec<f64> = read.iter().flat_map(|(_, data)| data.iter::<f64>().collect::<Vec<_>>()).collect();
        for (found, wanted) in found.into_iter().zip(&paper) {
            assert!((found - wanted.weight).abs() < 1e-5, "{found} and {}", wanted.weight);
        }
        assert_eq!(optimizer.update_counts(), [20, 0]);
    }
}
