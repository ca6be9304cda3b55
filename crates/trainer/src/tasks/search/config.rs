//! The sections `data:` and `model:` of a search.

use crate::task::Task;
use crate::tasks::cells::genotype::MOST_NODES;
use crate::tasks::vision::augment::Augment;
use crate::tasks::vision::{Vision, VisionData, VisionModel};
use downshift_core::config::knobs::{Precision, Training};
use downshift_core::config::problem::Problem;
use downshift_core::recipe::phases::Phases;
use serde::{Deserialize, Serialize};

/// The section `data:`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchData {
    /// The images, as in `task: vision`.
    pub source: String,
    /// The share of the images held out from both phases, as in `task: vision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// The side in pixels that pictures in folders are resized to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Random augmentation of the training images.
    #[serde(default)]
    pub augment: Augment,
    /// The share of the training images that weights are trained on; the rest trains the architecture.
    #[serde(default = "default_train_portion")]
    pub train_portion: f64,
}

fn default_train_portion() -> f64 {
    0.5
}

impl SearchData {
    /// Returns the section of `task: vision` for the same images.
    #[must_use]
    pub fn images(&self) -> VisionData {
        let (source, validation, size) = (self.source.clone(), self.validation, self.size);
        VisionData { source, validation, size, augment: self.augment }
    }
}

/// The section `model:`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchModel {
    /// Channels of a node in the first cells; they double wherever the image is halved.
    pub channels: usize,
    /// Cells.
    pub layers: usize,
    /// Nodes of a cell.
    pub nodes: usize,
    /// Compute 3×3 separable convolutions by the native operation, where there is one.
    pub fused_separable: bool,
    /// The course of the search.
    pub search: SearchKnobs,
}

impl Default for SearchModel {
    fn default() -> Self {
        Self { channels: 8, layers: 4, nodes: 3, fused_separable: true, search: SearchKnobs::default() }
    }
}

impl SearchModel {
    /// Returns the section of `task: vision` for a model of this size.
    #[must_use]
    pub fn classifier(&self) -> VisionModel {
        VisionModel { channels: self.channels, layers: self.layers, ..VisionModel::default() }
    }
}

/// The order of the architecture's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// At the weights as they are.
    First,
    /// At the weights after one step on training data, and through that step.
    Second,
}

/// The section `model.search`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, from = "FlatKnobs", into = "FlatKnobs")]
pub struct SearchKnobs {
    /// The lengths of phases.
    pub phases: Phases,
    /// The order of the architecture's gradient.
    pub order: Order,
    /// The rate of the weights' step in a gradient of second order.
    pub unrolled_lr: f64,
    /// Epochs in which the auxiliary skip connections fade out; 0 = none.
    pub skip_epochs: u64,
}

/// The section as written.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FlatKnobs {
    warmup_epochs: u64,
    weight_epochs: u64,
    arch_epochs: u64,
    order: Order,
    unrolled_lr: f64,
    skip_epochs: u64,
}

impl Default for FlatKnobs {
    fn default() -> Self {
        SearchKnobs::default().into()
    }
}

impl From<FlatKnobs> for SearchKnobs {
    fn from(flat: FlatKnobs) -> Self {
        let FlatKnobs { warmup_epochs, weight_epochs, arch_epochs, order, unrolled_lr, skip_epochs } = flat;
        Self { phases: Phases { warmup_epochs, weight_epochs, arch_epochs }, order, unrolled_lr, skip_epochs }
    }
}

impl From<SearchKnobs> for FlatKnobs {
    fn from(knobs: SearchKnobs) -> Self {
        let SearchKnobs { phases, order, unrolled_lr, skip_epochs } = knobs;
        let Phases { warmup_epochs, weight_epochs, arch_epochs } = phases;
        Self { warmup_epochs, weight_epochs, arch_epochs, order, unrolled_lr, skip_epochs }
    }
}

impl Default for SearchKnobs {
    fn default() -> Self {
        let phases = Phases { warmup_epochs: 2, weight_epochs: 2, arch_epochs: 1 };
        Self { phases, order: Order::First, unrolled_lr: 0.025, skip_epochs: 20 }
    }
}

impl SearchKnobs {
    /// Returns the strength of the auxiliary skip connections in an epoch: from 1 down to 0.
    #[must_use]
    pub fn auxiliary_skip(&self, epoch: u64) -> f64 {
        let left = self.skip_epochs.saturating_sub(epoch);
        left as f64 / self.skip_epochs.max(1) as f64
    }
}

/// Returns the mistakes in `training:` that these knobs make.
pub fn check_training(knobs: &SearchKnobs, training: &Training) -> Vec<Problem> {
    let mut problems = Vec::new();
    let first = knobs.phases.first_arch_epoch().saturating_add(1);
    if training.epochs.is_some_and(|epochs| epochs < first) {
        let wrong = format!(
            "the run ends before epoch {first}, the first one that trains the architecture: model.search has {} epochs of \
             warm-up and {} of weights before it",
            knobs.phases.warmup_epochs, knobs.phases.weight_epochs
        );
        problems.push(Problem::at("training.epochs", wrong, format!("write {first} or more")));
    }
    if knobs.order == Order::Second && training.precision != Precision::F32 {
        let wrong = format!("{} rounds the difference away that the second order takes", training.precision);
        problems.push(Problem::at("training.precision", wrong, "write f32, or `order: first` in model.search"));
    }
    problems
}

/// The longest phase in epochs.
const MOST_EPOCHS: u64 = 1_000_000_000;

/// Returns the mistakes in both sections.
pub fn check(data: &SearchData, model: &SearchModel) -> Vec<Problem> {
    let mut problems = Vision::check(&data.images(), &model.classifier());
    let mut need = |holds: bool, path: &str, wrong: &str, fix: &str| {
        if !holds {
            problems.push(Problem::at(path, wrong, fix));
        }
    };
    let portion = data.train_portion > 0.0 && data.train_portion < 1.0;
    need(portion, "data.train_portion", "it must be between 0 and 1", "0.5 is usual");
    let nodes = (1..=MOST_NODES).contains(&model.nodes);
    need(nodes, "model.nodes", &format!("a cell has 1 to {MOST_NODES} nodes"), "4 is usual");
    let SearchKnobs { phases, unrolled_lr, skip_epochs, .. } = model.search;
    for (name, epochs, least, fix) in [
        ("weight_epochs", phases.weight_epochs, 1, "write 2"),
        ("arch_epochs", phases.arch_epochs, 1, "write 1"),
        ("warmup_epochs", phases.warmup_epochs, 0, "write 2, or 0 for none"),
        ("skip_epochs", skip_epochs, 0, "write 20, or 0 for none"),
    ] {
        let fits = (least..=MOST_EPOCHS).contains(&epochs);
        let wrong = format!("it must be at least {least}, up to {MOST_EPOCHS}");
        need(fits, &format!("model.search.{name}"), &wrong, fix);
    }
    let rate = unrolled_lr > 0.0 && unrolled_lr <= 100.0;
    need(rate, "model.search.unrolled_lr", "it must be above 0, up to 100", "write 0.025");
    problems
}
