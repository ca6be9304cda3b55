//! A training pass over a micro-batch: the loss, and the gradients that its backward pass delivers.
//!
//! Dropout noise is seeded for each part, so that a block draws the same values when it is recomputed, and the
//! same as when activations are kept.

use super::attention_op::recomputing_attention;
use super::loss::mean_loss;
use super::model::{ForwardOptions, Transformer};
use crate::recompute::{Graph, RecomputingPass, graph_leaf};
use crate::task::Pass;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::Module;
use burn::tensor::{Int, Tensor, backend::Backend};
use downshift_core::recipe::seed::{Purpose, derive_seed};

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
            self.recomputing_loss(inputs, &targets, &options, pass.loss_scale)
        } else {
            mean_loss(&self.logit_terms(self.hidden_states(inputs, &options), &options), &targets)
        }
    }
}

impl<I: Backend, C: CheckpointStrategy> Transformer<Graph<I, C>> {
    /// Returns the same loss, but keeps only the input of each block.
    fn recomputing_loss(
        &self,
        tokens: Tensor<Graph<I, C>, 2, Int>,
        targets: &Tensor<I, 1, Int>,
        options: &ForwardOptions<'_, Graph<I, C>>,
        loss_scale: f64,
    ) -> Tensor<Graph<I, C>, 1> {
        let context = self.attention_context(tokens.dims()[1], options);
        let (lowest, frozen) = (self.lowest_trained_block(), self.clone().no_grad());
        let mut inputs = Vec::new();
        let mut x = frozen.embed(tokens.clone(), options);
        for (number, block) in frozen.blocks.iter().enumerate() {
            if number >= lowest {
                inputs.push(x.clone().inner());
            }
            (options.seed_part)(number + 1);
            x = block.forward(x, &context);
        }
        let last = graph_leaf(x.inner());
        let loss = mean_loss(&self.logit_terms(last.clone(), options), targets);
        let mut backward = RecomputingPass::new(self, loss_scale);
        let block = |number: usize, x| {
            (options.seed_part)(number + 1);
            self.blocks[number].forward(x, &context)
        };
        let grad = backward.backward_loss(&loss, &last);
        if let Some(grad) = grad.and_then(|grad| backward.backward_blocks(self.blocks.len(), inputs, grad, block)) {
            backward.backward_input(&self.embed(tokens, options), grad);
        }
        backward.inject_grads(loss.inner())
    }
}
