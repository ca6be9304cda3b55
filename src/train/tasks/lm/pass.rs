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
//! values both times, and the same as without recomputing. Gradients are summed by path on the way and handed
//! to the loss by [`carry`]. A nested backward pass would be shorter to write, but deadlocks in Burn 0.21.

use super::attend;
use super::carry::{carry, is_tracked};
use super::loss::mean_loss;
use super::model::{Sight, Transformer, Way};
use crate::recipe::seed::{Purpose, derive};
use crate::train::params::{self, Tensors, Trail, follow_trail, ranked};
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
        let noise = |part: usize| {
            if self.draws() {
                Graph::<I, C>::seed(pass.device, derive(pass.seed, Purpose::Device, [part as u64, 0, 0]));
            }
        };
        let way = Way { noise: &noise, attend: attend::sparingly };
        if pass.gradient_checkpointing {
            let (found, scale) = (Tensors::<I>::new(), pass.loss_scale.max(1.0));
            Recompute { model: self, found, scale, way: &way }.loss(inputs, &targets)
        } else {
            mean_loss(&self.terms(self.hidden(inputs, &way), &way), &targets)
        }
    }
}

/// A pass that recomputes activations.
struct Recompute<'a, I: Backend, C: CheckpointStrategy> {
    model: &'a Transformer<Graph<I, C>>,
    /// Gradients of parameters by path.
    found: Tensors<I>,
    /// The factor on gradients during the pass.
    scale: f64,
    way: &'a Way<'a, Graph<I, C>>,
}

impl<I: Backend, C: CheckpointStrategy> Recompute<'_, I, C> {
    fn loss(mut self, tokens: Tensor<Graph<I, C>, 2, Int>, targets: &Tensor<I, 1, Int>) -> Tensor<Graph<I, C>, 1> {
        let Self { model, way, .. } = self;
        let sight = model.sight(tokens.dims()[1], way);
        let lowest = model.lowest_trained();
        let still = model.clone().no_grad();
        let mut entered = Vec::new();
        let mut x = still.embed(tokens.clone(), way);
        for (number, block) in still.blocks.iter().enumerate() {
            if number >= lowest {
                entered.push(x.clone().inner());
            }
            (way.noise)(number + 1);
            x = block.forward(x, &sight);
        }
        let last = leaf(x.inner());
        let loss = mean_loss(&model.terms(last.clone(), way), targets);
        let slope = self.backward(&loss.clone().mul_scalar(self.scale), &last);
        self.blocks(entered, slope, &sight, tokens);
        self.deliver(loss.inner())
    }

    /// Goes from the last block down to the first with trained parameters in or below it.
    fn blocks(
        &mut self,
        mut entered: Vec<Tensor<I, 3>>,
        slope: Option<Tensor<I, 3>>,
        sight: &Sight<Graph<I, C>>,
        tokens: Tensor<Graph<I, C>, 2, Int>,
    ) {
        let Some(mut slope) = slope else { return };
        for (number, block) in self.model.blocks.iter().enumerate().rev() {
            let Some(x) = entered.pop() else { return };
            let x = leaf(x);
            (self.way.noise)(number + 1);
            let left = seeded(&block.forward(x.clone(), sight), slope);
            match self.backward(&left, &x) {
                Some(next) => slope = next,
                None => return,
            }
        }
        let embedded = self.model.embed(tokens, self.way);
        if is_tracked(&embedded) {
            self.backward(&seeded(&embedded, slope), &embedded);
        }
    }

    /// Runs a graph backward, collects the gradients of parameters, and returns the gradient of `start`.
    fn backward(&mut self, end: &Tensor<Graph<I, C>, 1>, start: &Tensor<Graph<I, C>, 3>) -> Option<Tensor<I, 3>> {
        let mut gradients = end.backward();
        params::add_gradients::<Graph<I, C>, _>(self.model, &mut gradients, 1.0 / self.scale, &mut self.found);
        start.grad_remove(&mut gradients)
    }

    /// Returns the loss as a separate graph that delivers every parameter's gradient.
    fn deliver(self, loss: Tensor<I, 1>) -> Tensor<Graph<I, C>, 1> {
        struct Visitor<I: Backend, C: CheckpointStrategy> {
            trail: Trail,
            found: Tensors<I>,
            loss: Tensor<Graph<I, C>, 1>,
        }
        impl<I: Backend, C: CheckpointStrategy> ModuleVisitor<Graph<I, C>> for Visitor<I, C> {
            follow_trail!();
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Graph<I, C>, D>>) {
                if let Some(gradient) = self.found.remove(&self.trail.path()) {
                    self.loss = carry(self.loss.clone(), &param.val(), ranked::<I, D>(gradient));
                }
            }
        }
        let mut visitor =
            Visitor::<I, C> { trail: Trail::default(), found: self.found, loss: Tensor::from_inner(loss) };
        self.model.visit(&mut visitor);
        visitor.loss
    }
}

/// Returns a leaf tensor that starts a graph.
fn leaf<I: Backend, C: CheckpointStrategy>(x: Tensor<I, 3>) -> Tensor<Graph<I, C>, 3> {
    Tensor::from_inner(x).require_grad()
}

/// Returns a scalar whose backward pass gives `end` the gradient `slope`.
fn seeded<I: Backend, C: CheckpointStrategy>(
    end: &Tensor<Graph<I, C>, 3>,
    slope: Tensor<I, 3>,
) -> Tensor<Graph<I, C>, 1> {
    let nothing = slope.clone().slice([0..1, 0..1, 0..1]).reshape([1]).zeros_like();
    carry(Tensor::from_inner(nothing), end, slope)
}
