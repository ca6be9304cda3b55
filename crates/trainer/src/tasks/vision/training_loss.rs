//! A training pass over a micro-batch of images: the loss, and the gradients that its backward pass delivers.
//!
//! Dropout noise is seeded for each block, so that a block draws the same values when it is recomputed, and the
//! same as when activations are kept.

use super::cell_network::cells_loss;
use super::model::Classifier;
use crate::params;
use crate::recompute::{Graph, RecomputingPass, graph_leaf};
use crate::task::Pass;
use crate::tasks::in_f32;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::Module;
use burn::tensor::{Int, Tensor, activation, backend::Backend};
use downshift_core::recipe::seed::{Purpose, derive_seed};

impl<I: Backend, C: CheckpointStrategy> Classifier<Graph<I, C>> {
    /// Returns the mean cross-entropy `[1]` of images `[batch, channels, height, width]` and labels `[batch, 1]`.
    pub fn loss(
        &self,
        images: Tensor<I, 4>,
        labels: Tensor<I, 2, Int>,
        pass: &Pass<'_, Graph<I, C>>,
    ) -> Tensor<Graph<I, C>, 1> {
        if !self.cells.is_empty() {
            return cells_loss(self, self, (images, labels), || None, pass);
        }
        let (images, labels) = (Tensor::from_inner(images), Tensor::from_inner(labels));
        let seed_block = |number: usize| {
            if self.has_dropout() {
                Graph::<I, C>::seed(pass.device, derive_seed(pass.seed, Purpose::Device, [number as u64, 0, 0]));
            }
        };
        let block = |number: usize, x| {
            seed_block(number);
            self.blocks[number].forward(x)
        };
        let count = self.blocks.len();
        if !pass.gradient_checkpointing {
            let features = (0..count).fold(self.first_features(images), |x, number| block(number, x));
            return cross_entropy(self.classify(features), labels);
        }
        let (lowest, frozen) = (self.lowest_trained_block(), self.clone().no_grad());
        let mut inputs = Vec::new();
        let mut x = frozen.first_features(images.clone());
        for (number, frozen_block) in frozen.blocks.iter().enumerate() {
            if number >= lowest {
                inputs.push(x.clone().inner());
            }
            seed_block(number);
            x = frozen_block.forward(x);
        }
        let last = graph_leaf(x.inner());
        let loss = cross_entropy(self.classify(last.clone()), labels);
        let mut backward = RecomputingPass::new(self, pass.loss_scale);
        let grad = backward.backward_loss(&loss, &last);
        if let Some(grad) = grad.and_then(|grad| backward.backward_blocks(count, inputs, grad, block)) {
            backward.backward_input(&self.first_features(images), grad);
        }
        backward.inject_grads(loss.inner())
    }

    /// Returns the lowest block that gradients have to pass through: 0 if the stem is trained, else the lowest
    /// block with trained parameters, or the number of blocks if there is none.
    fn lowest_trained_block(&self) -> usize {
        if params::has_trained(&self.stem) {
            return 0;
        }
        self.blocks.iter().position(params::has_trained).unwrap_or(self.blocks.len())
    }
}

/// Returns the mean cross-entropy `[1]` of logits `[batch, classes]`.
pub(super) fn cross_entropy<I: Backend, C: CheckpointStrategy>(
    logits: Tensor<Graph<I, C>, 2>,
    labels: Tensor<Graph<I, C>, 2, Int>,
) -> Tensor<Graph<I, C>, 1> {
    activation::log_softmax(in_f32(logits), 1).gather(1, labels).mean().neg()
}
