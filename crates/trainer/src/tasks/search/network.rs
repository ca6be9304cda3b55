//! The searched network: weights, and the strengths of the operations on every edge.

use super::config::SearchModel;
use crate::recompute::Graph;
use crate::task::Pass;
use crate::tasks::cells::cell::{Cell, CellShape, Mixture};
use crate::tasks::cells::genotype::{Operation, edge_count};
use crate::tasks::cells::operation::Build;
use crate::tasks::vision::VisionSet;
use crate::tasks::vision::cell_network::{Labelled, cells_loss};
use crate::tasks::vision::model::Classifier;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, activation, backend::Backend};
use downshift_core::recipe::phases::SearchPhase;

/// The field of the architecture's parameters.
pub const ARCHITECTURE: &str = "architecture";
/// Standard deviation of fresh logits: all operations start almost equally strong.
const INIT_STD: f64 = 1e-3;

/// The logits of the strengths, `[edges, operations]`, shared by all cells of a kind.
#[derive(Debug, Module)]
pub struct Architecture<B: Backend> {
    normal: Param<Tensor<B, 2>>,
    reduce: Param<Tensor<B, 2>>,
}

/// Architecture and weights.
#[derive(Debug, Module)]
pub struct SearchNetwork<B: Backend> {
    /// The strengths of operations.
    pub architecture: Architecture<B>,
    /// The network with all operations.
    pub network: Classifier<B>,
}

impl<B: Backend> SearchNetwork<B> {
    /// Returns a fresh network.
    pub fn new(model: &SearchModel, images: &VisionSet, device: &B::Device) -> Self {
        let logits = || {
            let shape = [edge_count(model.nodes), Operation::ALL.len()];
            Initializer::Normal { mean: 0.0, std: INIT_STD }.init(shape, device)
        };
        let build = Build { scaled_norms: false, fused_separable: model.fused_separable };
        let cell = |shape: CellShape| Cell::searched(model.nodes, shape, build, device);
        let sizes = images.network_shape(model.channels, model.layers, [model.nodes; 2]);
        Self {
            architecture: Architecture { normal: logits(), reduce: logits() },
            network: Classifier::of_cells(sizes, images.stem_and_classes(), cell, device),
        }
    }

    /// Returns the strengths that mix the operations: a softmax over each edge.
    pub fn mixture(&self, auxiliary: f64) -> Mixture<B> {
        let Architecture { normal, reduce } = &self.architecture;
        Mixture { strengths: [normal, reduce].map(|logits| activation::softmax(logits.val(), 1)), auxiliary }
    }

    /// Returns the strengths of both kinds of cell on the host.
    pub fn strengths(&self) -> [Vec<Vec<f64>>; 2] {
        let Architecture { normal, reduce } = &self.architecture;
        [normal, reduce].map(|logits| softmax_rows(&logits.val().into_data().iter::<f64>().collect::<Vec<_>>()))
    }
}

impl<I: Backend, C: CheckpointStrategy> SearchNetwork<Graph<I, C>> {
    /// Returns the mean cross-entropy `[1]`, with gradients for the parameters of this phase alone.
    pub fn loss(
        &self,
        labelled: Labelled<I>,
        phase: SearchPhase,
        auxiliary: f64,
        pass: &Pass<'_, Graph<I, C>>,
    ) -> Tensor<Graph<I, C>, 1> {
        match phase {
            SearchPhase::Weights => {
                let fixed = || {
                    let Mixture { strengths, auxiliary } = self.mixture(auxiliary);
                    Some(Mixture { strengths: strengths.map(Tensor::detach), auxiliary })
                };
                cells_loss(self, &self.network, labelled, fixed, pass)
            }
            SearchPhase::Architecture => {
                let network = self.network.clone().no_grad();
                cells_loss(self, &network, labelled, || Some(self.mixture(auxiliary)), pass)
            }
        }
    }
}

/// Returns the softmax of each row of logits.
pub fn softmax_rows(logits: &[f64]) -> Vec<Vec<f64>> {
    let row = |row: &[f64]| {
        let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = row.iter().map(|logit| (logit - highest).exp()).collect();
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect()
    };
    logits.chunks(Operation::ALL.len()).map(row).collect()
}
