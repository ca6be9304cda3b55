//! `task: search`: a differentiable architecture search on images (DARTS: Liu, Simonyan, Yang, "DARTS: Differentiable
//! Architecture Search", ICLR 2019).
//!
//! ```text
//!                    ┌ train_portion ─▶ weight phases: weights, by `optimizer`
//! training images ───┤
//!                    └ the rest ─▶ architecture phases: strengths of the operations, by `optimizer.architecture`
//! ```
//! Phases are whole epochs (`recipe/phases.rs`). An epoch counts the images of the weights' part in every phase; in an
//! architecture phase it cycles through the other part.
//!
//! Against the collapse into skip connections, each edge has an auxiliary skip connection that fades out (Chu et al.,
//! "DARTS-: Robustly Stepping out of Performance Collapse Without Indicators", ICLR 2021). Evaluations leave it out.

pub mod config;
mod network;
mod unrolled;

use crate::samples::{Samples, TaskSample};
use crate::task::{BatchRequest, DataError, ExportError, Exported, Format, Pass, Split, Tally, Task, Train, Weights};
use crate::tasks::cells::drawing::{describe_cell, draw_genotype};
use crate::tasks::cells::genotype::{Genotype, Operation, edge_count, entropy, searched_edges};
use crate::tasks::files::data_error;
use crate::tasks::vision::{Vision, VisionBatch, VisionSet};
use burn::backend::{Autodiff, autodiff::checkpoint::strategy::CheckpointStrategy};
use burn::tensor::{Tensor, backend::Backend};
use config::{Order, SearchData, SearchKnobs, SearchModel};
use downshift_core::config::knobs::Training;
use downshift_core::config::problem::Problem;
use downshift_core::protocol::metrics::ACCURACY;
use downshift_core::protocol::samples::Sample;
use downshift_core::recipe::order::{shuffle, stratified_split};
use downshift_core::recipe::phases::{Phases, SearchPhase, cycled_place};
use downshift_core::recipe::seed::{Purpose, Stream, derive_seed};
use downshift_core::store::checkpoint::classes::PictureClasses;
use network::{ARCHITECTURE, SearchNetwork, softmax_rows};
use std::path::Path;

/// The metric of how undecided the strengths are: 1 at the start, 0 with one operation on each edge.
const ENTROPY: &str = "entropy";
/// The metrics of the mean strength of each operation, in the order of [`Operation::ALL`].
const STRENGTHS: [&str; 7] = [
    "strength_none",
    "strength_max_pool_3x3",
    "strength_avg_pool_3x3",
    "strength_skip_connect",
    "strength_sep_conv_3x3",
    "strength_sep_conv_5x5",
    "strength_dil_conv_3x3",
];

/// The task.
#[derive(Debug, Clone, Copy)]
pub struct Search;

/// The loaded images, divided between the phases.
#[derive(Debug)]
pub struct SearchSet {
    images: VisionSet,
    /// Training images of the weight phases.
    weights: Vec<u32>,
    /// Training images of the architecture phases.
    architecture: Vec<u32>,
    knobs: SearchKnobs,
}

/// A micro-batch on the host.
#[derive(Debug, Clone)]
pub struct SearchBatch {
    images: VisionBatch,
    phase: SearchPhase,
    /// The strength of the auxiliary skip connections.
    auxiliary: f64,
    /// In an architecture phase of second order, images of the weights' part, and the rate of the step on them.
    unrolled: Option<(VisionBatch, f64)>,
}

impl Task for Search {
    const NAME: &'static str = "search";
    const METRICS: &'static [&'static str] = &[
        ACCURACY,
        ENTROPY,
        STRENGTHS[0],
        STRENGTHS[1],
        STRENGTHS[2],
        STRENGTHS[3],
        STRENGTHS[4],
        STRENGTHS[5],
        STRENGTHS[6],
    ];
    const HEAD: &'static [&'static str] = &["network.head", "network.norm"];
    const ARCHITECTURE: &'static [&'static str] = &[ARCHITECTURE];
    const RECOMPUTES: bool = true;
    type DataConfig = SearchData;
    type ModelConfig = SearchModel;
    type Data = SearchSet;
    type Batch = SearchBatch;

    fn phases(data: &SearchSet) -> Option<Phases> {
        Some(data.knobs.phases)
    }

    fn check_training(model: &SearchModel, training: &Training) -> Vec<Problem> {
        config::check_training(&model.search, training)
    }

    fn check(data: &SearchData, model: &SearchModel) -> Vec<Problem> {
        config::check(data, model)
    }

    fn resolve_paths(data: &mut SearchData, absolute: &dyn Fn(&str) -> String) {
        let mut images = data.images();
        Vision::resolve_paths(&mut images, absolute);
        data.source = images.source;
    }

    fn load(data: &SearchData, model: &SearchModel, seed: u64) -> Result<SearchSet, DataError> {
        let images = Vision::load(&data.images(), &model.classifier(), seed)?;
        let labels = images.training_labels();
        let seed = derive_seed(seed, Purpose::Split, [u64::MAX; 3]);
        let (weights, mut architecture) = stratified_split(&labels, 1.0 - data.train_portion, seed);
        // An epoch may take a part of it only, which must not be that of some classes.
        shuffle(&mut architecture, &mut Stream::new(seed));
        if weights.is_empty() || architecture.is_empty() {
            let message = format!(
                "data.train_portion {} leaves {} of its training images for the weights and {} for the architecture; \
                 0.5 is usual",
                data.train_portion,
                weights.len(),
                architecture.len()
            );
            return Err(data_error(Path::new(&data.source), message));
        }
        let sizes = images.network_shape(model.channels, model.layers, [model.nodes; 2]);
        if let Some(why) = sizes.missing_cells() {
            return Err(data_error(Path::new(&data.source), why));
        }
        Ok(SearchSet { images, weights, architecture, knobs: model.search })
    }

    fn parameters(model: &SearchModel, data: &SearchSet) -> Option<u128> {
        let sizes = data.images.network_shape(model.channels, model.layers, [model.nodes; 2]);
        let [colours, _, classes] = data.images.stem_and_classes();
        let network = sizes.parameter_count(|_| searched_edges(model.nodes), false, [colours, classes]);
        Some(network + 2 * (edge_count(model.nodes) * Operation::ALL.len()) as u128)
    }

    fn len(data: &SearchSet, split: Split) -> usize {
        match split {
            Split::Training => data.weights.len(),
            Split::Validation => Vision::len(&data.images, split),
        }
    }

    fn fingerprint(data: &SearchSet) -> Option<String> {
        Vision::fingerprint(&data.images)
    }

    fn notes(data: &SearchSet) -> Vec<String> {
        Vision::notes(&data.images)
    }

    fn classes(data: &SearchSet) -> Option<PictureClasses> {
        Vision::classes(&data.images)
    }

    fn num_classes(_model: &SearchModel, data: &SearchSet) -> Option<usize> {
        Some(data.images.stem_and_classes()[2])
    }

    fn export(_data: &SearchData, model: &SearchModel, weights: Weights, format: Format) -> Exported {
        if format != Format::Genotype {
            return Err(ExportError::Unsupported { task: Self::NAME, format });
        }
        let genotype = genotype_of(model, &weights)?;
        Ok(vec![
            ("genotype.json".to_owned(), genotype.to_json().into_bytes()),
            ("genotype.svg".to_owned(), draw_genotype(&genotype).into_bytes()),
        ])
    }

    fn batch(data: &SearchSet, request: BatchRequest<'_>) -> SearchBatch {
        let phase = data.knobs.phases.at(request.epoch);
        let of_weights = || data.prepare(request, request.indices.iter().map(|index| data.weights[*index as usize]));
        let (images, unrolled) = match (request.split, phase) {
            (Split::Validation, _) => (Vision::batch(&data.images, request), None),
            (Split::Training, SearchPhase::Weights) => (of_weights(), None),
            (Split::Training, SearchPhase::Architecture) => {
                let earlier = data.knobs.phases.arch_epochs_before(request.epoch);
                let (samples, part) = (data.weights.len(), &data.architecture);
                let place = |index: &u32| part[cycled_place(earlier, samples, *index, part.len())];
                let rate = data.knobs.unrolled_lr;
                let unrolled = (data.knobs.order == Order::Second).then(|| (of_weights(), rate));
                (data.prepare(request, request.indices.iter().map(place)), unrolled)
            }
        };
        SearchBatch { images, phase, auxiliary: data.knobs.auxiliary_skip(request.epoch), unrolled }
    }
}

impl SearchSet {
    /// Prepares these training images for a request.
    fn prepare(&self, request: BatchRequest<'_>, images: impl Iterator<Item = u32>) -> VisionBatch {
        let indices: Vec<u32> = images.collect();
        Vision::batch(&self.images, BatchRequest { indices: &indices, ..request })
    }
}

/// Derives the genotype from the weights of a checkpoint.
fn genotype_of(model: &SearchModel, weights: &Weights) -> Result<Genotype, ExportError> {
    let strengths = |cell: &str| -> Result<Vec<Vec<f64>>, ExportError> {
        let path = format!("{ARCHITECTURE}.{cell}");
        let values = weights.get(&path).filter(|data| data.shape[0] == edge_count(model.nodes));
        let values = values.ok_or_else(|| ExportError::MissingTensors(vec![path]))?;
        Ok(softmax_rows(&values.iter::<f64>().collect::<Vec<_>>()))
    };
    Ok(Genotype::derive(&strengths("normal")?, &strengths("reduce")?))
}

impl<I: Backend, C: CheckpointStrategy> Train<Autodiff<I, C>> for Search {
    type Model = SearchNetwork<Autodiff<I, C>>;

    fn init(model: &SearchModel, data: &SearchSet, device: &I::Device) -> Self::Model {
        SearchNetwork::new(model, &data.images, device)
    }

    fn loss(model: &Self::Model, batch: SearchBatch, pass: &Pass<'_, Autodiff<I, C>>) -> Tensor<Autodiff<I, C>, 1> {
        let SearchBatch { mut images, phase, auxiliary, unrolled } = batch;
        let labelled = images.take_labelled(pass.device);
        match (phase, unrolled) {
            (SearchPhase::Architecture, Some((mut training, rate))) => {
                let training = training.take_labelled(pass.device);
                unrolled::loss(model, labelled, &training, (auxiliary, rate), pass)
            }
            _ => model.loss(labelled, phase, auxiliary, pass),
        }
    }

    fn evaluate(model: &SearchNetwork<I>, batch: SearchBatch, device: &I::Device) -> Tally {
        let mut tally = batch.images.evaluate(&model.network, Some(&model.mixture(0.0)), device);
        let [normal, reduce] = model.strengths();
        let rows = [normal, reduce].concat();
        let mut add = |name, mean: f64| _ = tally.sums.insert(name, mean * tally.count as f64);
        add(ENTROPY, entropy(&rows));
        for (column, name) in STRENGTHS.into_iter().enumerate() {
            add(name, rows.iter().filter_map(|row| row.get(column)).sum::<f64>() / rows.len().max(1) as f64);
        }
        tally
    }

    /// Both cells, as they would be derived now.
    fn samples(model: &SearchNetwork<I>, data: &SearchSet, total: &Tally, _device: &I::Device) -> Samples {
        let cells = ["normal cell", "reduction cell"].into_iter().zip(model.strengths());
        let list = cells.map(|(name, strengths)| {
            let text = Some(describe_cell(&strengths));
            let sample = Sample { prompt: Some(name.to_owned()), text, ..Sample::default() };
            TaskSample { sample, picture: None }
        });
        Samples { list: list.collect(), confusion: data.images.classifier_samples(total).confusion }
    }
}

#[cfg(test)]
mod known_best;
#[cfg(test)]
mod tests;
