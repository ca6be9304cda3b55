//! A training pass over a micro-batch: the loss, and the gradients that its backward pass delivers.
//!
//! ```text
//! keeping activations    one graph from the tokens to the loss
//! recomputing them       forward without a graph, keeping the input of each block;
//!                        the loss and its gradient g with respect to the output of the last block;
//!                        from the last block to the first: the block again, with its own graph,
//!                        backward from g: gradients of its parameters, and g of its input
//! ```
//! Only one block's activations exist at a time. Noise is seeded for each part, so a block draws the same
//! values both times, and the same as without recomputing. Gradients are summed by path on the options and handed
//! to the loss by [`inject_grad`]. A nested backward pass would be shorter to write, but deadlocks in Burn 0.21.

use super::attention::AttentionContext;
use super::attention_op::recomputing_attention;
use super::inject_grad::{inject_grad, is_tracked};
use super::loss::mean_loss;
use super::model::{ForwardOptions, Transformer};
use crate::recipe::seed::{Purpose, derive_seed};
use crate::train::params::{self, Tensors, Trail, follow_trail, with_rank};
use crate::train::task::Pass;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Int, Tensor, backend::Backend};

type Graph<I, C> = Autodiff<I, C>;

impl<I: Backend, C: CheckpointStrategy> Transformer<Graph<I, C>> {
    /// Returns the mean cross-entropy `[1]` of inputs and targets `[batch, length]`.
    pub fn loss(
        &self,
        inputs: Tensor<I, 2, Int>,
        targets: Tensor<I, 2, Int>,
        pass: &Pass<'_, Graph<I, C>>,
    ) -> Tensor<Graph<I, C>, 1> {
        let inputs = Tensor::from_inner(inputs);
        let targets = targets.flatten::<1>(0, 1);
        let seed_part = |part: usize| {
            if self.has_dropout() {
                Graph::<I, C>::seed(pass.device, derive_seed(pass.seed, Purpose::Device, [part as u64, 0, 0]));
            }
        };
        let options = ForwardOptions { seed_part: &seed_part, attention: recomputing_attention };
        if pass.gradient_checkpointing {
            let (grads, scale) = (Tensors::<I>::new(), pass.loss_scale.max(1.0));
            RecomputingPass { model: self, grads, scale, options: &options }.loss(inputs, &targets)
        } else {
            mean_loss(&self.logit_terms(self.hidden_states(inputs, &options), &options), &targets)
        }
    }
}

/// A pass that recomputes activations.
struct RecomputingPass<'a, I: Backend, C: CheckpointStrategy> {
    model: &'a Transformer<Graph<I, C>>,
    /// Gradients of parameters by path.
    grads: Tensors<I>,
    /// The factor on gradients during the pass.
    scale: f64,
    options: &'a ForwardOptions<'a, Graph<I, C>>,
}

impl<I: Backend, C: CheckpointStrategy> RecomputingPass<'_, I, C> {
    fn loss(mut self, tokens: Tensor<Graph<I, C>, 2, Int>, targets: &Tensor<I, 1, Int>) -> Tensor<Graph<I, C>, 1> {
        let Self { model, options, .. } = self;
        let context = model.attention_context(tokens.dims()[1], options);
        let lowest = model.lowest_trained_block();
        let frozen = model.clone().no_grad();
        let mut block_inputs = Vec::new();
        let mut x = frozen.embed(tokens.clone(), options);
        for (number, block) in frozen.blocks.iter().enumerate() {
            if number >= lowest {
                block_inputs.push(x.clone().inner());
            }
            (options.seed_part)(number + 1);
            x = block.forward(x, &context);
        }
        let last = graph_leaf(x.inner());
        let loss = mean_loss(&model.logit_terms(last.clone(), options), targets);
        let grad = self.backward(&loss.clone().mul_scalar(self.scale), &last);
        self.backward_blocks(block_inputs, grad, &context, tokens);
        self.inject_grads(loss.inner())
    }

    /// Goes from the last block down to the first with trained parameters in or below it.
    fn backward_blocks(
        &mut self,
        mut block_inputs: Vec<Tensor<I, 3>>,
        grad: Option<Tensor<I, 3>>,
        context: &AttentionContext<Graph<I, C>>,
        tokens: Tensor<Graph<I, C>, 2, Int>,
    ) {
        let Some(mut grad) = grad else { return };
        for (number, block) in self.model.blocks.iter().enumerate().rev() {
            let Some(x) = block_inputs.pop() else { return };
            let x = graph_leaf(x);
            (self.options.seed_part)(number + 1);
            let loss = loss_with_grad(&block.forward(x.clone(), context), grad);
            match self.backward(&loss, &x) {
                Some(next) => grad = next,
                None => return,
            }
        }
        let embedded = self.model.embed(tokens, self.options);
        if is_tracked(&embedded) {
            self.backward(&loss_with_grad(&embedded, grad), &embedded);
        }
    }

    /// Runs a graph backward, collects the gradients of parameters, and returns the gradient of `start`.
    fn backward(&mut self, end: &Tensor<Graph<I, C>, 1>, start: &Tensor<Graph<I, C>, 3>) -> Option<Tensor<I, 3>> {
        let mut raw = end.backward();
        params::add_gradients::<Graph<I, C>, _>(self.model, &mut raw, 1.0 / self.scale, &mut self.grads);
        start.grad_remove(&mut raw)
    }

    /// Returns the loss as a separate graph that delivers every parameter's gradient.
    fn inject_grads(self, loss: Tensor<I, 1>) -> Tensor<Graph<I, C>, 1> {
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
}

/// Returns a leaf tensor that starts a graph.
fn graph_leaf<I: Backend, C: CheckpointStrategy>(x: Tensor<I, 3>) -> Tensor<Graph<I, C>, 3> {
    Tensor::from_inner(x).require_grad()
}

/// Returns a scalar whose backward pass gives `end` the gradient `grad`.
fn loss_with_grad<I: Backend, C: CheckpointStrategy>(
    end: &Tensor<Graph<I, C>, 3>,
    grad: Tensor<I, 3>,
) -> Tensor<Graph<I, C>, 1> {
    let zero = grad.clone().slice([0..1, 0..1, 0..1]).reshape([1]).zeros_like();
    inject_grad(Tensor::from_inner(zero), end, grad)
}
