//! `task: vision`: a convolutional image classifier.
//!
//! ```text
//! data.source ─ read ─▶ Images ─ split ─▶ training | validation ─ batch (augment, normalise) ─▶ model
//! ```

pub mod augment;
pub mod batch;
pub mod cell_network;
pub mod images;
pub mod model;
pub mod read;
mod training_loss;

use crate::quality::{QualityError, QualityRequest};
use crate::samples::{Answer, Picture, Samples, TaskSample};
use crate::task::{BatchRequest, DataError, MOST_LAYERS, Pass, Split, Tally, Task, Train};
use crate::tasks::cells::cell::{Cell, CellShape, NetworkShape};
use crate::tasks::cells::genotype::{Genotype, GenotypeSource};
use crate::tasks::cells::operation::Build;
use crate::tasks::files;
use augment::{Augment, Transform};
pub use batch::VisionBatch;
use burn::backend::{Autodiff, autodiff::checkpoint::strategy::CheckpointStrategy};
use burn::tensor::{Tensor, backend::Backend};
use downshift_core::config::problem::Problem;
use downshift_core::config::quality::{ACCURACY_BY_CLASS, CALIBRATION};
use downshift_core::protocol::metrics::{ACCURACY, Metrics};
use downshift_core::protocol::samples::Sample;
use downshift_core::recipe::order::stratified_split;
use downshift_core::store::checkpoint::classes::PictureClasses;
use images::{Images, channel_statistics};
use model::Classifier;
pub use model::VisionModel;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The held-out share if neither the run file nor the data set defines one.
const VALIDATION: f64 = 0.2;
/// The largest side, in pixels, that pictures are resized to.
const MOST_PIXELS: usize = 4_096;
/// The most channels allowed in the first block.
const MOST_CHANNELS: usize = 65_536;

/// The task.
#[derive(Debug, Clone, Copy)]
pub struct Vision;

/// The section `data:` of a vision run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VisionData {
    /// `embedded:digits`, or a folder: MNIST-style, CIFAR binary, or one folder of pictures per class.
    pub source: String,
    /// The share of the training images held out, the same for each class. Default: the data set's own test
    /// part if it has one, else 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// The side in pixels that pictures in folders are resized to. Default: they must already be of one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Random augmentation of the training images.
    #[serde(default)]
    pub augment: Augment,
}

/// A loaded image set.
#[derive(Debug)]
pub struct VisionSet {
    images: Images,
    training: Vec<u32>,
    validation: Vec<u32>,
    /// Mean and 1 / standard deviation of each channel of the training images.
    statistics: Vec<[f32; 2]>,
    /// The brightest byte of all images.
    white: u8,
    augment: Augment,
    /// The cells of the model, read from `model.genotype`.
    genotype: Option<Genotype>,
    /// Notes for the user.
    notes: Vec<String>,
}

impl Task for Vision {
    const NAME: &'static str = "vision";
    const METRICS: &'static [&'static str] = &[ACCURACY];
    const QUALITY: &'static [&'static str] = &[ACCURACY_BY_CLASS, CALIBRATION];
    const RECOMPUTES: bool = true;
    type DataConfig = VisionData;
    type ModelConfig = VisionModel;
    type Data = VisionSet;
    type Batch = VisionBatch;

    fn check(data: &VisionData, model: &VisionModel) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, path: &str, wrong: String, fix: &str| {
            if !holds {
                problems.push(Problem::at(path, wrong, fix));
            }
        };
        let source = data.source.as_str();
        let known = !source.is_empty() && (!source.starts_with(read::EMBEDDED) || source == read::DIGITS);
        need(
            known,
            "data.source",
            format!("unknown source `{source}`"),
            "use embedded:digits, or the path of a folder",
        );
        let share = data.validation.unwrap_or(VALIDATION);
        let in_between = share > 0.0 && share < 1.0;
        need(in_between, "data.validation", format!("{share} is not between 0 and 1"), "0.2 holds out a fifth");
        need(data.size != Some(0), "data.size", "it must be at least 1".into(), "32 works");
        let side = data.size.is_none_or(|side| side <= MOST_PIXELS);
        need(side, "data.size", format!("at most {MOST_PIXELS} pixels are allowed"), "32 works");
        need(model.channels > 0, "model.channels", "it must be at least 1".into(), "32 works");
        let channels = model.channels <= MOST_CHANNELS;
        need(channels, "model.channels", format!("at most {MOST_CHANNELS} channels are allowed"), "32 works");
        need(model.layers > 0, "model.layers", "it must be at least 1".into(), "4 works");
        let layers = model.layers <= MOST_LAYERS;
        need(layers, "model.layers", format!("at most {MOST_LAYERS} blocks are allowed"), "4 works");
        let dropout = model.dropout;
        let droppable = (0.0..1.0).contains(&dropout);
        need(
            droppable,
            "model.dropout",
            format!("{dropout} is not in 0 ≤ x < 1"),
            "0.0 disables dropout, 0.1 is usual",
        );
        let without = model.genotype.is_none() || dropout == 0.0;
        need(without, "model.dropout", "cells of a genotype have no dropout".into(), "leave it out");
        problems
    }

    fn complete_config(data: &mut VisionData, model: &mut VisionModel, absolute: &dyn Fn(&str) -> String) {
        Self::resolve_paths(data, absolute);
        model.genotype = model.genotype.take().map(|source| source.resolved(absolute));
    }

    fn resolve_paths(data: &mut VisionData, absolute: &dyn Fn(&str) -> String) {
        if !data.source.starts_with(read::EMBEDDED) {
            data.source = absolute(&data.source);
        }
    }

    fn load(data: &VisionData, model: &VisionModel, seed: u64) -> Result<VisionSet, DataError> {
        let genotype = model.genotype.as_ref().map(GenotypeSource::read).transpose()?;
        let set = read::read_image_set(&data.source, data.size)?;
        let (mut images, mut notes) = (set.training, set.notes);
        if let Some(share) = data.validation.filter(|_| set.test.is_some()) {
            notes.push(format!(
                "its test part is not used, since data.validation holds out {share} of the training part; without that \
                 line, the test part is the validation set"
            ));
        }
        let given = images.labels.len();
        let (training, validation) = match (data.validation, set.test) {
            (None, Some(test)) => {
                images.append(test);
                (index_range(0..given), index_range(given..images.labels.len()))
            }
            (share, _) => stratified_split(&images.labels, share.unwrap_or(VALIDATION), seed),
        };
        let refuse = |message: String| Err(files::data_error(Path::new(&data.source), message));
        if training.is_empty() || validation.is_empty() {
            let (kept, held_out) = (training.len(), validation.len());
            return refuse(format!(
                "its {} images leave {kept} for training and {held_out} for validation; change data.validation or use a larger set",
                images.labels.len()
            ));
        }
        if images.classes.len() < 2 {
            return refuse("all its images are of one class; a classifier needs at least two".into());
        }
        let [_, height, width] = images.shape;
        if data.augment.shift >= height.min(width) {
            let shift = data.augment.shift;
            return refuse(format!(
                "data.augment.shift is {shift}, but its images are {width}×{height} pixels; choose a shift below their size"
            ));
        }
        notes.extend(images.describe_classes());
        let statistics = channel_statistics(&images, &training);
        let white = images.pixels.iter().copied().max().unwrap_or(u8::MAX);
        Ok(VisionSet { images, training, validation, statistics, white, augment: data.augment, genotype, notes })
    }

    fn fingerprint(data: &VisionSet) -> Option<String> {
        let mut hash = blake3::Hasher::new();
        hash.update(&data.images.pixels);
        for label in &data.images.labels {
            hash.update(&label.to_le_bytes());
        }
        Some(hash.finalize().to_string())
    }

    fn notes(data: &VisionSet) -> Vec<String> {
        data.notes.clone()
    }

    fn classes(data: &VisionSet) -> Option<PictureClasses> {
        Some(PictureClasses {
            names: data.images.classes.clone(),
            shape: data.images.shape,
            mean: data.statistics.iter().map(|[mean, _]| *mean).collect(),
            std: data.statistics.iter().map(|[_, scale]| scale.recip()).collect(),
        })
    }

    fn parameters(model: &VisionModel, data: &VisionSet) -> Option<u128> {
        let (shape, classes) = (data.images.shape, data.images.classes.len());
        Some(match &data.genotype {
            None => model::parameter_count(model, shape, classes),
            Some(genotype) => {
                let sizes = data.network_shape(model.channels, model.layers, genotype.node_counts());
                let edges = |halves: bool| genotype.edges(halves);
                sizes.parameter_count(edges, true, [shape[0], classes])
            }
        })
    }

    fn len(data: &VisionSet, split: Split) -> usize {
        data.samples(split).len()
    }

    fn num_classes(_model: &VisionModel, data: &VisionSet) -> Option<usize> {
        Some(data.images.classes.len())
    }

    fn batch(data: &VisionSet, request: BatchRequest<'_>) -> VisionBatch {
        let part = data.samples(request.split);
        let mut batch = VisionBatch {
            pixels: Vec::with_capacity(request.indices.len() * data.images.stride()),
            labels: Vec::with_capacity(request.indices.len()),
            indices: request.indices.to_vec(),
            shape: data.images.shape,
        };
        for index in request.indices {
            let sample = part[*index as usize];
            let transform = match request.split {
                Split::Training => data.augment.draw(request.seed, request.epoch, sample),
                Split::Validation => Transform::NONE,
            };
            data.render_image(sample, transform, &mut batch.pixels);
            batch.labels.push(data.images.labels[sample as usize].cast_signed());
        }
        batch
    }
}

impl VisionSet {
    /// Returns the sizes of a network of cells for these images.
    pub(super) fn network_shape(&self, channels: usize, layers: usize, nodes: [usize; 2]) -> NetworkShape {
        let [_, height, width] = self.images.shape;
        let side = height.min(width);
        NetworkShape { channels, layers, nodes, side: side / model::stem_stride(side) }
    }

    /// Returns the colours of an image, the stride of the stem, and the number of classes.
    pub(super) fn stem_and_classes(&self) -> [usize; 3] {
        let [colours, height, width] = self.images.shape;
        [colours, model::stem_stride(height.min(width)), self.images.classes.len()]
    }

    /// Returns the class of each training sample.
    pub(super) fn training_labels(&self) -> Vec<u32> {
        self.training.iter().map(|image| self.images.labels[*image as usize]).collect()
    }

    /// Returns the worst answers and the confusion matrix of an evaluation.
    pub(super) fn classifier_samples(&self, total: &Tally) -> Samples {
        let list = total.answers.worst().iter().map(|answer| self.show(answer)).collect();
        Samples { list, confusion: total.answers.confusion(&self.images.classes) }
    }

    fn samples(&self, split: Split) -> &[u32] {
        match split {
            Split::Training => &self.training,
            Split::Validation => &self.validation,
        }
    }

    /// Returns the name of a validation sample: its file in the folder of its class, or its number.
    fn name_sample(&self, sample: u32) -> String {
        let image = self.validation.get(sample as usize);
        let name = image.and_then(|image| self.images.names.get(*image as usize));
        name.cloned().unwrap_or_else(|| format!("validation {sample}"))
    }

    /// Returns a sample of the validation set with the answer to it.
    fn show(&self, answer: &Answer) -> TaskSample {
        let class = |class: usize| self.images.classes.get(class).cloned();
        let sample = Sample {
            name: Some(self.name_sample(answer.sample)),
            label: class(answer.label),
            answer: class(answer.answer),
            confidence: Some(answer.confidence).filter(|confidence| confidence.is_finite()),
            loss: Some(answer.loss as f32).filter(|loss| loss.is_finite()),
            ..Sample::default()
        };
        let image = self.validation.get(answer.sample as usize).map(|image| self.images.image(*image as usize));
        TaskSample { sample, picture: image.and_then(|image| Picture::new(self.images.shape, image, self.white)) }
    }

    /// Appends one augmented, normalized image.
    fn render_image(&self, sample: u32, transform: Transform, pixels: &mut Vec<f32>) {
        let [_, height, width] = self.images.shape;
        let bytes = self.images.image(sample as usize);
        for (channel, [mean, scale]) in bytes.chunks_exact(height * width).zip(&self.statistics) {
            for row in 0..height {
                for column in 0..width {
                    let source = transform.source_pixel([height, width], row, column);
                    let byte = source.map_or(0, |(row, column)| channel[row * width + column]);
                    pixels.push((f32::from(byte) - mean) * scale);
                }
            }
        }
    }
}

fn index_range(range: std::ops::Range<usize>) -> Vec<u32> {
    range.filter_map(|index| u32::try_from(index).ok()).collect()
}

impl<I: Backend, C: CheckpointStrategy> Train<Autodiff<I, C>> for Vision {
    type Model = Classifier<Autodiff<I, C>>;

    fn init(model: &VisionModel, data: &VisionSet, device: &I::Device) -> Classifier<Autodiff<I, C>> {
        let Some(genotype) = &data.genotype else {
            return Classifier::new(model, data.images.shape, data.images.classes.len(), device);
        };
        let sizes = data.network_shape(model.channels, model.layers, genotype.node_counts());
        let build = Build { scaled_norms: true, fused_separable: true };
        let cell = |shape: CellShape| Cell::of_genotype(genotype.cell(shape.halves), shape, build, device);
        Classifier::of_cells(sizes, data.stem_and_classes(), cell, device)
    }

    fn loss(
        model: &Classifier<Autodiff<I, C>>,
        mut batch: VisionBatch,
        pass: &Pass<'_, Autodiff<I, C>>,
    ) -> Tensor<Autodiff<I, C>, 1> {
        let (images, labels) = batch.take_labelled(pass.device);
        model.loss(images, labels, pass)
    }

    fn evaluate(model: &Classifier<I>, batch: VisionBatch, device: &I::Device) -> Tally {
        batch.evaluate(model, None, device)
    }

    fn samples(_model: &Classifier<I>, data: &VisionSet, total: &Tally, _device: &I::Device) -> Samples {
        data.classifier_samples(total)
    }

    fn quality(
        _model: &Classifier<I>,
        data: &VisionSet,
        request: &QualityRequest<'_>,
        _device: &I::Device,
    ) -> Result<Metrics, QualityError> {
        let answers = (request.validation)()?.answers;
        let mut metrics = Metrics::new();
        if request.wants(ACCURACY_BY_CLASS) {
            metrics.extend(answers.accuracy_by_class(&data.images.classes));
        }
        if request.wants(CALIBRATION) {
            metrics.extend(answers.calibration_error().map(|error| (CALIBRATION.to_owned(), error)));
        }
        Ok(metrics)
    }
}

#[cfg(test)]
mod tests;
