//! A small convolutional classifier made of depthwise-separable blocks (Chollet, 2017; Howard et al., 2017),
//! normalized over the channels of each pixel, so that samples do not affect each other and the split into
//! micro-batches changes nothing.
//!
//! ```text
//! image ─ stem 3×3 ─ block ─ ... ─ block/2 ─ block ─ ... ─ mean over pixels ─ norm ─ linear ─ logits
//!
//! block:  x ─ depthwise 3×3 ─ norm ─ relu ─ pointwise 1×1 ─ dropout ─(+ x)     /2: stride 2, channels × 2, no + x
//! ```
//! Burn's convolutions need `[batch, channels, height, width]`; norm and pointwise use `[batch, height, width,
//! channels]`, where each is one matrix product. Native convolutions use the second layout too, so with them feature
//! maps are `[batch, height, width, channels]` throughout.

use crate::lora::projection::affine;
use crate::native::ops;
use crate::tasks::cells::{cell::Cell, genotype::GenotypeSource};
use crate::tasks::norm::Norm;
use burn::module::{Module, Param};
use burn::nn::{
    Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
};
use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

/// The smallest side of a feature map.
const SMALLEST: usize = 4;
/// The most blocks that halve the feature map.
const MOST_HALVINGS: usize = 3;
/// The epsilon of the norms.
const EPSILON: f64 = 1e-5;
/// The stem already shrinks images of more than twice this size.
const STEM_SIZE: usize = 32;

/// The section `model:` of a vision run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VisionModel {
    /// Channels of the first block; they double wherever the image is halved.
    pub channels: usize,
    /// Depthwise-separable blocks.
    pub layers: usize,
    /// Share of a block's outputs that a training step drops.
    pub dropout: f64,
    /// Cells found by a search, in place of the blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub genotype: Option<GenotypeSource>,
}

impl Default for VisionModel {
    fn default() -> Self {
        Self { channels: 32, layers: 4, dropout: 0.0, genotype: None }
    }
}

/// The classifier.
#[derive(Module, Debug)]
pub struct Classifier<B: Backend> {
    pub(super) stem: Conv2d<B>,
    pub(super) blocks: Vec<Block<B>>,
    /// Cells in place of blocks, in a search or with a genotype.
    pub(super) cells: Vec<Cell<B>>,
    pub(super) norm: Norm<B>,
    pub(super) head: Linear<B>,
}

/// One depthwise-separable block.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    depthwise: Conv2d<B>,
    norm: Norm<B>,
    pointwise: Linear<B>,
    dropout: Dropout,
    halves: bool,
}

impl<B: Backend> Classifier<B> {
    /// Returns a fresh classifier for images of `shape` `[channels, height, width]`.
    pub fn new(config: &VisionModel, shape: [usize; 3], classes: usize, device: &B::Device) -> Self {
        let [colours, height, width] = shape;
        let stem_stride = stem_stride(height.min(width));
        let halving_layers = halving_blocks(config.layers, height.min(width) / stem_stride);
        let mut channels = config.channels;
        let stem = conv_3x3([colours, channels], stem_stride, 1, true, device);
        let mut blocks = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let halves = halving_layers.contains(&layer);
            let out = if halves { 2 * channels } else { channels };
            blocks.push(Block::new([channels, out], halves, config.dropout, device));
            channels = out;
        }
        let norm = Norm::new(channels, true, EPSILON, device);
        let head = LinearConfig::new(channels, classes).init(device);
        Self { stem, blocks, cells: Vec::new(), norm, head }
    }

    /// Returns a fresh classifier of these cells.
    pub(super) fn with_cells(
        cells: Vec<Cell<B>>,
        [colours, channels, features, classes]: [usize; 4],
        stem_stride: usize,
        device: &B::Device,
    ) -> Self {
        Self {
            stem: conv_3x3([colours, channels], stem_stride, 1, true, device),
            blocks: Vec::new(),
            cells,
            norm: Norm::new(features, true, EPSILON, device),
            head: LinearConfig::new(features, classes).init(device),
        }
    }

    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        if !self.cells.is_empty() {
            return self.forward_cells(images, None);
        }
        self.classify(self.blocks.iter().fold(self.first_features(images), |x, block| block.forward(x)))
    }

    /// Maps images `[batch, channels, height, width]` to the input of the first block.
    pub(super) fn first_features(&self, images: Tensor<B, 4>) -> Tensor<B, 4> {
        self.native_features(&images).unwrap_or_else(|| self.stem.forward(images))
    }

    /// Does so with native operations: `[batch, height, width, channels]`.
    pub(super) fn native_features(&self, images: &Tensor<B, 4>) -> Option<Tensor<B, 4>> {
        let stride = self.stem.stride[0];
        let patches = ops::applies(images).then(|| ops::patches(&by_pixel(images.clone()), stride)).flatten()?;
        let weight = self.stem.weight.val();
        let [out, colours, ..] = weight.dims();
        let weight = weight.permute([2, 3, 1, 0]).reshape([9 * colours, out]);
        Some(affine(patches, weight, self.stem.bias.as_ref().map(Param::val)))
    }

    /// Maps the output of the last block to logits `[batch, classes]`.
    pub(super) fn classify(&self, features: Tensor<B, 4>) -> Tensor<B, 2> {
        let pooled = ops::mean_pixels(&features).unwrap_or_else(|| {
            let [batch, channels, height, width] = features.dims();
            features.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels])
        });
        let normed = self.norm.forward(pooled);
        affine(normed, self.head.weight.val(), self.head.bias.as_ref().map(Param::val))
    }

    /// Reports whether a training pass draws random numbers.
    pub(super) fn has_dropout(&self) -> bool {
        self.blocks.iter().any(|block| block.dropout.prob > 0.0)
    }
}

/// Returns the stride of the stem for images whose smaller side has this many pixels.
pub fn stem_stride(side: usize) -> usize {
    (side / STEM_SIZE).clamp(1, 4)
}

/// Returns the parameter count of a [`Classifier`], without building it.
pub fn parameter_count(config: &VisionModel, [colours, height, width]: [usize; 3], classes: usize) -> u128 {
    let side = height.min(width);
    let halving_layers = halving_blocks(config.layers, side / stem_stride(side));
    let mut channels = config.channels as u128;
    let mut sum = (9 * colours as u128 + 1) * channels;
    for layer in 0..config.layers {
        let out = if halving_layers.contains(&layer) { 2 * channels } else { channels };
        // Depthwise, norm, pointwise with its bias.
        sum += 9 * channels + 2 * channels + (channels + 1) * out;
        channels = out;
    }
    sum + 2 * channels + (channels + 1) * classes as u128
}

impl<B: Backend> Block<B> {
    fn new([from, to]: [usize; 2], halves: bool, dropout: f64, device: &B::Device) -> Self {
        Self {
            depthwise: conv_3x3([from, from], if halves { 2 } else { 1 }, from, false, device),
            norm: Norm::new(from, true, EPSILON, device),
            pointwise: LinearConfig::new(from, to).init(device),
            dropout: DropoutConfig::new(dropout).init(),
            halves,
        }
    }

    /// Maps features to the same shape, or for a halving block to twice the channels, ⌈height / 2⌉ and ⌈width / 2⌉.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let spatial = ops::applies(&x).then(|| self.native_depthwise(&x)).flatten();
        let is_native = spatial.is_some();
        let spatial = spatial.unwrap_or_else(|| by_pixel(self.depthwise.forward(x.clone())));
        let normed = self.norm.forward_relu(spatial);
        let mixed = affine(normed, self.pointwise.weight.val(), self.pointwise.bias.as_ref().map(Param::val));
        let mixed = self.dropout.forward(mixed);
        let out = if is_native { mixed } else { mixed.permute([0, 3, 1, 2]) };
        if self.halves { out } else { x + out }
    }

    fn native_depthwise(&self, x: &Tensor<B, 4>) -> Option<Tensor<B, 4>> {
        let weight = self.depthwise.weight.val();
        let channels = weight.dims()[0];
        ops::depthwise(x, &weight.reshape([channels, 9]).transpose(), self.depthwise.stride[0])
    }
}

/// Moves the channels of `[batch, channels, height, width]` to the end.
fn by_pixel<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    x.permute([0, 2, 3, 1])
}

/// Returns a 3×3 convolution that keeps the size, except for its stride.
fn conv_3x3<B: Backend>(
    channels: [usize; 2],
    stride: usize,
    groups: usize,
    bias: bool,
    device: &B::Device,
) -> Conv2d<B> {
    Conv2dConfig::new(channels, [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_groups(groups)
        .with_bias(bias)
        .init(device)
}

/// Returns the blocks that halve the feature map: evenly spread, as many as the image allows.
fn halving_blocks(layers: usize, size: usize) -> Vec<usize> {
    let possible = (size / SMALLEST).checked_ilog2().unwrap_or(0) as usize;
    let wanted = possible.min(MOST_HALVINGS).min(layers);
    (1..=wanted).map(|nth| (layers * nth / (wanted + 1)).max(nth - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Classifier, VisionModel, halving_blocks, parameter_count};
    use crate::params;
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::{Distribution, Tensor};

    #[test]
    fn the_parameter_count_matches_the_built_model() {
        for (channels, layers, shape, classes) in
            [(4, 1, [1, 8, 8], 2), (6, 5, [3, 64, 48], 10), (3, 9, [3, 200, 200], 7)]
        {
            let config = VisionModel { channels, layers, ..VisionModel::default() };
            let built = Classifier::<Flex>::new(&config, shape, classes, &FlexDevice);
            assert_eq!(
                parameter_count(&config, shape, classes),
                u128::from(params::parameter_count::<Flex, _>(&built))
            );
        }
    }

    #[test]
    fn maps_are_halved_evenly_and_never_below_four_pixels() {
        for (layers, size, wanted) in [
            (4, 8, vec![2]),
            (4, 7, vec![]),
            (6, 28, vec![2, 4]),
            (8, 32, vec![2, 4, 6]),
            (1, 32, vec![0]),
            (2, 32, vec![0, 1]),
            (3, 3, vec![]),
        ] {
            assert_eq!(halving_blocks(layers, size), wanted, "{layers} layers, {size} pixels");
        }
    }

    #[test]
    fn every_size_of_image_gives_logits_and_no_sample_sees_another() {
        let device = FlexDevice;
        for shape in [[1, 1, 1], [1, 8, 8], [3, 17, 9], [1, 28, 28], [3, 130, 66]] {
            let config = VisionModel { channels: 4, layers: 3, dropout: 0.5, ..VisionModel::default() };
            let model = Classifier::<Flex>::new(&config, shape, 5, &device);
            let [colours, height, width] = shape;
            let images = Tensor::<Flex, 4>::random([3, colours, height, width], Distribution::Default, &device);
            let together = model.forward(images.clone());
            assert_eq!(together.dims(), [3, 5]);
            let alone = model.forward(images.narrow(0, 1, 1));
            let difference = (together.narrow(0, 1, 1) - alone).abs().max().into_scalar();
            assert!(difference < 1e-5, "{shape:?}: {difference}");
        }
    }
}
