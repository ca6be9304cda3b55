//! Gradient checkpointing by block, for tasks that recompute activations themselves: a training pass keeps only
//! the input of each block, and runs the block again in the backward pass.
//!
//! ```text
//! forward without a graph, keeping the input of each block
//! the loss, and its gradient with respect to the output of the last block
//! from the last block to the first: the block again, with its own graph,
//!                                   backward: gradients of its parameters, and of its input
//! ```
//! Only one block's activations exist at a time. Gradients are summed by path on the way and handed to the loss
//! by [`inject_grad`]. A nested backward pass would be shorter to write, but deadlocks in Burn 0.21.

use super::inject_grad::{inject_grad, is_tracked};
use super::params::{self, Tensors, Trail, follow_trail, with_rank};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::tensor::{
    Tensor,
    backend::{AutodiffBackend, Backend},
};
use std::marker::PhantomData;

/// The backend of a training pass with inner backend `I` and the checkpointing strategy `C` of Burn.
pub type Graph<I, C> = Autodiff<I, C>;

/// The backward half of a pass that recomputes blocks.
pub struct RecomputingPass<'a, M, I: Backend, C> {
    model: &'a M,
    /// Gradients of parameters by path.
    grads: Tensors<I>,
    /// The factor on gradients during the pass.
    scale: f64,
    strategy: PhantomData<C>,
}

impl<'a, I: Backend, C: CheckpointStrategy, M: AutodiffModule<Graph<I, C>>> RecomputingPass<'a, M, I, C> {
    /// Begins the backward half, in which gradients are `loss_scale` times as large as they are in the end.
    pub fn new(model: &'a M, loss_scale: f64) -> Self {
        Self { model, grads: Tensors::<I>::new(), scale: loss_scale.max(1.0), strategy: PhantomData }
    }

    /// Returns a pass that is over, with these gradients by path.
    pub fn of_grads(model: &'a M, grads: Tensors<I>) -> Self {
        Self { grads, ..Self::new(model, 1.0) }
    }

    /// Runs the loss backward; returns its gradient with respect to `output`, a [`graph_leaf`].
    pub fn backward_loss<const D: usize>(
        &mut self,
        loss: &Tensor<Graph<I, C>, 1>,
        output: &Tensor<Graph<I, C>, D>,
    ) -> Option<Tensor<I, D>> {
        self.backward(&loss.clone().mul_scalar(self.scale), output)
    }

    /// Runs blocks backward from the last of `count`, given the gradient of its output. `inputs` are the inputs
    /// of the last blocks; the blocks before them hold nothing to train. Returns the gradient of the first
    /// block's input, if the pass reaches it.
    pub fn backward_blocks<const D: usize>(
        &mut self,
        count: usize,
        mut inputs: Vec<Tensor<I, D>>,
        mut grad: Tensor<I, D>,
        forward: impl Fn(usize, Tensor<Graph<I, C>, D>) -> Tensor<Graph<I, C>, D>,
    ) -> Option<Tensor<I, D>> {
        for number in (0..count).rev() {
            let x = graph_leaf(inputs.pop()?);
            let loss = loss_with_grad(&forward(number, x.clone()), grad);
            grad = self.backward(&loss, &x)?;
        }
        Some(grad)
    }

    /// Runs cells backward from the last to the first, given the gradient of the last state. `states` are the input of
    /// the network twice, then each cell's output: cell n reads the states n and n + 1, and writes n + 2. Returns the
    /// gradient of the network's input.
    pub fn backward_cells<const D: usize>(
        &mut self,
        mut states: Vec<Tensor<I, D>>,
        grad: Tensor<I, D>,
        forward: impl Fn(usize, [Tensor<Graph<I, C>, D>; 2]) -> Tensor<Graph<I, C>, D>,
    ) -> Option<Tensor<I, D>> {
        let add = |sum: Option<Tensor<I, D>>, grad: Tensor<I, D>| {
            Some(sum.map_or_else(|| grad.clone(), |sum| sum + grad.clone()))
        };
        // The gradients of the last state, and of the one before it.
        let (mut last, mut before) = (Some(grad), None);
        while states.len() > 2 {
            states.pop();
            let number = states.len() - 2;
            let [older, newer] = [number, number + 1].map(|state| graph_leaf(states[state].clone()));
            let Some(grad) = last.take() else {
                // Nothing behind this cell reads its output.
                last = before.take();
                continue;
            };
            let loss = loss_with_grad(&forward(number, [older.clone(), newer.clone()]), grad);
            let mut raw = self.run_backward(&loss);
            if let Some(grad) = newer.grad_remove(&mut raw) {
                before = add(before, grad);
            }
            (last, before) = (before, older.grad_remove(&mut raw));
        }
        // Both states left are the input.
        match (last, before) {
            (Some(last), Some(before)) => Some(last + before),
            (last, before) => last.or(before),
        }
    }

    /// Runs the layers before the first block backward, if they hold anything to train.
    pub fn backward_input<const D: usize>(&mut self, output: &Tensor<Graph<I, C>, D>, grad: Tensor<I, D>) {
        if is_tracked(output) {
            self.backward(&loss_with_grad(output, grad), output);
        }
    }

    /// Returns the loss as a separate graph that delivers every parameter's gradient.
    pub fn inject_grads(self, loss: Tensor<I, 1>) -> Tensor<Graph<I, C>, 1> {
        struct Visitor<I: Backend, C: CheckpointStrategy> {
            trail: Trail,
            grads: Tensors<I>,
            loss: Tensor<Graph<I, C>, 1>,
        }
        impl<I: Backend, C: CheckpointStrategy> ModuleVisitor<Graph<I, C>> for Visitor<I, C> {
            follow_trail!();
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Graph<I, C>, D>>) {
                if let Some(grad) = self.grads.remove(&self.trail.path()) {
                    self.loss = inject_grad(self.loss.clone(), &param.val(), with_rank::<I, D>(grad));
                }
            }
        }
        let mut visitor =
            Visitor::<I, C> { trail: Trail::default(), grads: self.grads, loss: Tensor::from_inner(loss) };
        self.model.visit(&mut visitor);
        visitor.loss
    }

    /// Runs a graph backward, collects the gradients of parameters, and returns the gradient of `start`.
    fn backward<const D: usize>(
        &mut self,
        end: &Tensor<Graph<I, C>, 1>,
        start: &Tensor<Graph<I, C>, D>,
    ) -> Option<Tensor<I, D>> {
        start.grad_remove(&mut self.run_backward(end))
    }

    /// Runs a graph backward and collects the gradients of parameters.
    fn run_backward(&mut self, end: &Tensor<Graph<I, C>, 1>) -> <Graph<I, C> as AutodiffBackend>::Gradients {
        let mut raw = end.backward();
        params::add_gradients::<Graph<I, C>, _>(self.model, &mut raw, 1.0 / self.scale, true, &mut self.grads);
        raw
    }
}

/// Returns a leaf tensor that starts a graph.
pub fn graph_leaf<I: Backend, C: CheckpointStrategy, const D: usize>(x: Tensor<I, D>) -> Tensor<Graph<I, C>, D> {
    Tensor::from_inner(x).require_grad()
}

/// Returns a scalar whose backward pass gives `end` the gradient `grad`.
fn loss_with_grad<I: Backend, C: CheckpointStrategy, const D: usize>(
    end: &Tensor<Graph<I, C>, D>,
    grad: Tensor<I, D>,
) -> Tensor<Graph<I, C>, 1> {
    let zero = grad.clone().slice(std::array::from_fn::<_, D, _>(|_| 0..1)).reshape([1]).zeros_like();
    inject_grad(Tensor::from_inner(zero), end, grad)
}
