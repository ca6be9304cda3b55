//! A micro-batch of images: its tensors, and the scores of a classifier on it.

use super::cell_network::Labelled;
use super::model::Classifier;
use crate::samples::{Answer, Answers};
use crate::task::Tally;
use crate::tasks::cells::cell::Mixture;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use downshift_core::protocol::metrics::ACCURACY;
use std::collections::BTreeMap;

/// A micro-batch on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionBatch {
    /// `[sample, channel, row, column]`, normalized per channel.
    pub pixels: Vec<f32>,
    /// One class per sample.
    pub labels: Vec<i32>,
    /// The samples' numbers in their part of the data.
    pub indices: Vec<u32>,
    /// `[channels, height, width]`.
    pub shape: [usize; 3],
}

impl VisionBatch {
    /// Converts the images to a tensor `[batch, channels, height, width]`.
    pub(super) fn take_images<B: Backend>(&mut self, device: &B::Device) -> Tensor<B, 4> {
        let [channels, height, width] = self.shape;
        let pixels = std::mem::take(&mut self.pixels);
        Tensor::from_data(TensorData::new(pixels, [self.labels.len(), channels, height, width]), device)
    }

    /// Converts images and labels to tensors.
    pub(in crate::tasks) fn take_labelled<I: Backend>(&mut self, device: &I::Device) -> Labelled<I> {
        let images = self.take_images(device);
        let count = self.labels.len();
        let labels = TensorData::new(std::mem::take(&mut self.labels), [count, 1]);
        (images, Tensor::<I, 2, Int>::from_data(labels, device))
    }

    /// Scores the logits `[batch, classes]` of these images.
    fn score<I: Backend>(&self, logits: Tensor<I, 2>) -> Tally {
        let [count, classes] = logits.dims();
        let scores: Vec<f32> = logits.into_data().iter().collect();
        let (mut loss_sum, mut correct, mut answers) = (0.0, 0u32, Answers::new(classes));
        for ((scores, label), sample) in scores.chunks_exact(classes).zip(&self.labels).zip(&self.indices) {
            let answer = score_sample(scores, label.cast_unsigned() as usize, *sample);
            loss_sum += answer.loss;
            correct += u32::from(answer.answer == answer.label);
            answers.record(answer);
        }
        Tally { loss_sum, count: count as u64, sums: BTreeMap::from([(ACCURACY, f64::from(correct))]), answers }
    }

    /// Evaluates a classifier with strengths that mix its operations, if it is searched.
    pub(in crate::tasks) fn evaluate<I: Backend>(
        mut self,
        model: &Classifier<I>,
        mixture: Option<&Mixture<I>>,
        device: &I::Device,
    ) -> Tally {
        let images = self.take_images(device);
        let logits = match mixture {
            Some(_) => model.forward_cells(images, mixture),
            None => model.forward(images),
        };
        self.score(logits)
    }
}

/// Returns the answer to one sample: the first class with the highest score.
pub(super) fn score_sample(scores: &[f32], label: usize, sample: u32) -> Answer {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = scores.iter().map(|score| f64::from(score - highest).exp()).sum();
    let loss = sum.ln() - f64::from(scores[label] - highest);
    let answer = scores.iter().position(|score| *score >= highest).unwrap_or(scores.len());
    Answer { sample, label, answer, confidence: (1.0 / sum) as f32, loss }
}
