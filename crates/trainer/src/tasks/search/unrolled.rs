//! The architecture's gradient of second order (Liu, Simonyan, Yang, 2019, equations 7 and 8), with a finite difference
//! in place of the product with the Hessian:
//!
//! ```text
//! w' = w − ξ ∇w L_train(w, α)          v = ∇w' L_val(w', α)          w± = w ± ε v,  ε = 0.001 / ‖v‖
//! gradient = ∇α L_val(w', α) − ξ (∇α L_train(w+, α) − ∇α L_train(w−, α)) / 2ε
//! ```

use super::network::{ARCHITECTURE, SearchNetwork};
use crate::params::{self, Tensors, Trail, follow_trail, with_rank};
use crate::recompute::{Graph, RecomputingPass};
use crate::task::Pass;
use crate::tasks::vision::cell_network::{Labelled, cells_loss};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{FloatDType, Tensor, backend::Backend};
use downshift_core::recipe::phases::SearchPhase;

/// The length of the step of the finite difference: a tenth of the paper's, whose step crosses ReLUs and misses the derivative of
/// a small network.
const STEP: f64 = 0.001;
/// Keeps a gradient of zero from dividing by zero.
const SMALLEST_NORM: f64 = 1e-12;

/// Returns the loss `[1]` on validation images after a step of this rate on training images; its backward pass delivers
/// the gradient of the architecture alone.
pub fn loss<I: Backend, C: CheckpointStrategy>(
    model: &SearchNetwork<Graph<I, C>>,
    validation: Labelled<I>,
    training: &Labelled<I>,
    (auxiliary, rate): (f64, f64),
    pass: &Pass<'_, Graph<I, C>>,
) -> Tensor<Graph<I, C>, 1> {
    // Every pass within this one is complete, so the loss scale applies at the end alone.
    let inner = Pass { loss_scale: 1.0, ..*pass };
    let grads = |model: &SearchNetwork<Graph<I, C>>, phase| {
        let loss = model.loss(training.clone(), phase, auxiliary, &inner);
        collect(model, &loss)
    };
    let descent = grads(model, SearchPhase::Weights);
    let stepped = shift(model.clone(), &descent, &Tensor::full([1], -rate, pass.device));
    let mix = || Some(stepped.mixture(auxiliary));
    let loss = cells_loss(&stepped, &stepped.network, validation, mix, &inner);
    let mut all = collect(&stepped, &loss);
    let mut direct = all.split_off(ARCHITECTURE);
    // Paths are sorted: those of the network lie behind those of the architecture.
    let direction = direct.split_off("network");
    let norm = norm_of::<I>(&direction, pass.device);
    let step = norm.clone().recip().mul_scalar(STEP);
    let at = |sign: f64| {
        let shifted = shift(model.clone(), &direction, &step.clone().mul_scalar(sign));
        grads(&shifted, SearchPhase::Architecture)
    };
    let (ahead, behind) = (at(1.0), at(-1.0));
    let factor = norm.mul_scalar(rate / (2.0 * STEP));
    for (path, grad) in &mut direct {
        let (Some(ahead), Some(behind)) = (ahead.get(path), behind.get(path)) else { continue };
        let [direct, ahead, behind] = [&*grad, ahead, behind].map(|tensor| with_rank::<I, 2>(tensor.clone()));
        *grad = params::erase_rank(direct - (ahead - behind) * factor.clone().reshape([1, 1]));
    }
    RecomputingPass::of_grads(model, direct).inject_grads(loss.inner())
}

/// Runs a loss backward and returns the gradients by path.
fn collect<I: Backend, C: CheckpointStrategy>(
    model: &SearchNetwork<Graph<I, C>>,
    loss: &Tensor<Graph<I, C>, 1>,
) -> Tensors<I> {
    let (mut raw, mut grads) = (loss.backward(), Tensors::<I>::new());
    params::add_gradients::<Graph<I, C>, _>(model, &mut raw, 1.0, true, &mut grads);
    grads
}

/// Returns the norm `[1]` of all these tensors together.
fn norm_of<I: Backend>(tensors: &Tensors<I>, device: &I::Device) -> Tensor<I, 1> {
    let square = |tensor: &I::FloatTensorPrimitive| {
        with_rank::<I, 1>(I::float_sum(I::float_mul(tensor.clone(), tensor.clone())))
    };
    let zero = Tensor::zeros([1], device);
    tensors.values().map(square).fold(zero, |sum, square| sum + square).sqrt().clamp_min(SMALLEST_NORM)
}

/// Adds `direction`, by path, times a factor `[1]` to the parameters.
fn shift<I: Backend, C: CheckpointStrategy>(
    model: SearchNetwork<Graph<I, C>>,
    direction: &Tensors<I>,
    factor: &Tensor<I, 1>,
) -> SearchNetwork<Graph<I, C>> {
    struct Shift<'a, I: Backend> {
        trail: Trail,
        direction: &'a Tensors<I>,
        factor: &'a Tensor<I, 1>,
    }
    impl<I: Backend, C: CheckpointStrategy> ModuleMapper<Graph<I, C>> for Shift<'_, I> {
        follow_trail!();
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<Graph<I, C>, D>>) -> Param<Tensor<Graph<I, C>, D>> {
            let Some(direction) = self.direction.get(&self.trail.path()) else { return param };
            let (id, tensor, mapper) = param.consume();
            let step = with_rank::<I, D>(direction.clone()) * self.factor.clone().reshape([1; D]);
            let weights = tensor.inner();
            let moved = weights.clone() + step.cast(FloatDType::from(weights.dtype()));
            Param::from_mapped_value(id, Tensor::from_inner(moved).require_grad(), mapper)
        }
    }
    model.map(&mut Shift { trail: Trail::default(), direction, factor })
}
