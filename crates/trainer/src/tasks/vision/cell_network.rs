//! A classifier made of cells: the same stem and head, with cells where the plain one has blocks. A search and
//! `model.genotype` build it.

use super::model::Classifier;
use super::training_loss::cross_entropy;
use crate::lora::projection::affine;
use crate::native::ops;
use crate::recompute::{Graph, RecomputingPass, graph_leaf};
use crate::task::Pass;
use crate::tasks::cells::cell::{Cell, CellShape, Mixture, NetworkShape};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{AutodiffModule, Module};
use burn::tensor::{Int, Tensor, backend::Backend};

impl<B: Backend> Classifier<B> {
    /// Returns a fresh classifier of cells for images of `colours` channels.
    pub fn of_cells(
        sizes: NetworkShape,
        [colours, stem_stride, classes]: [usize; 3],
        build: impl Fn(CellShape) -> Cell<B>,
        device: &B::Device,
    ) -> Self {
        let cells = sizes.cells().into_iter().map(build).collect();
        Self::with_cells(cells, [colours, sizes.channels, sizes.features(), classes], stem_stride, device)
    }

    /// Maps images `[batch, channels, height, width]` through all cells to logits `[batch, classes]`.
    pub fn forward_cells(&self, images: Tensor<B, 4>, mixture: Option<&Mixture<B>>) -> Tensor<B, 2> {
        let input = self.first_pixels(images);
        let (mut older, mut newer) = (input.clone(), input);
        for cell in &self.cells {
            let output = cell.forward([older, newer.clone()], mixture);
            (older, newer) = (newer, output);
        }
        self.classify_pixels(newer)
    }

    /// Maps images `[batch, channels, height, width]` to the input of the first cell, `[batch, height, width,
    /// channels]`.
    fn first_pixels(&self, images: Tensor<B, 4>) -> Tensor<B, 4> {
        self.native_features(&images).unwrap_or_else(|| self.stem.forward(images).permute([0, 2, 3, 1]))
    }

    fn classify_pixels(&self, features: Tensor<B, 4>) -> Tensor<B, 2> {
        let pooled = ops::mean_pixels(&features).unwrap_or_else(|| {
            let [batch, height, width, channels] = features.dims();
            features.reshape([batch, height * width, channels]).mean_dim(1).reshape([batch, channels])
        });
        let normed = self.norm.forward(pooled);
        affine(normed, self.head.weight.val(), self.head.bias.as_ref().map(burn::module::Param::val))
    }
}

/// Images `[batch, channels, height, width]` and their classes `[batch, 1]`.
pub type Labelled<I> = (Tensor<I, 4>, Tensor<I, 2, Int>);

/// Returns the mean cross-entropy `[1]` of a network of cells that is all of `owner` or a part of it. `mix` returns the
/// strengths of a search, within the graph that they are to get gradients from.
pub fn cells_loss<I: Backend, C: CheckpointStrategy, M: AutodiffModule<Graph<I, C>>>(
    owner: &M,
    network: &Classifier<Graph<I, C>>,
    (images, labels): Labelled<I>,
    mix: impl Fn() -> Option<Mixture<Graph<I, C>>>,
    pass: &Pass<'_, Graph<I, C>>,
) -> Tensor<Graph<I, C>, 1> {
    let (images, labels) = (Tensor::from_inner(images), Tensor::from_inner(labels));
    if !pass.gradient_checkpointing {
        return cross_entropy(network.forward_cells(images, mix().as_ref()), labels);
    }
    let frozen = network.clone().no_grad();
    let mixture =
        mix().map(|Mixture { strengths, auxiliary }| Mixture { strengths: strengths.map(Tensor::detach), auxiliary });
    let stem = frozen.first_pixels(images.clone()).inner();
    let states = frozen.cells.iter().fold(vec![stem.clone(), stem], |mut states, cell| {
        let inputs = [2, 1].map(|back| Tensor::from_inner(states[states.len() - back].clone()));
        states.push(cell.forward(inputs, mixture.as_ref()).inner());
        states
    });
    let last = graph_leaf(states[states.len() - 1].clone());
    let loss = cross_entropy(network.classify_pixels(last.clone()), labels);
    let mut backward = RecomputingPass::new(owner, pass.loss_scale);
    let cell = |number: usize, inputs| network.cells[number].forward(inputs, mix().as_ref());
    let grad = backward.backward_loss(&loss, &last);
    if let Some(grad) = grad.and_then(|grad| backward.backward_cells(states, grad, cell)) {
        backward.backward_input(&network.first_pixels(images), grad);
    }
    backward.inject_grads(loss.inner())
}
