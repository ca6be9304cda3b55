//! Cross-entropy over a large vocabulary, one chunk of tokens at a time: the full logits never exist.
//!
//! ```text
//! for each chunk of tokens:   logits = Σ x·W        losses = log Σ exp(logits) − logits[target]
//!                             d = softmax(logits) − onehot(target)
//!                             gradient of x = d·Wᵀ  gradient of W += xᵀ·d
//! ```
//! The head is a sum of terms x·W: the layer itself, its adapter's low-rank part, its bias as ones·b.
//! Gradients are computed in the forward pass, where d is available, and [`inject_grad`] delivers them. They are
//! gradients of the sum of the losses, which fit f16, and are divided at the end, in f32.

use crate::train::inject_grad::{inject_grad, is_tracked};
use crate::train::tasks::in_f32;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{DType, FloatDType, IndexingUpdateOp, Int, Tensor, backend::Backend};
use std::ops::Range;

/// The most logits in a chunk: 32 MB in f32.
const MAX_LOGITS: usize = 8 << 20;
/// The fewest tokens in a chunk.
const MIN_TOKENS: usize = 16;

/// The terms that sum to the logits: each x `[tokens, size]` times its W `[size, vocabulary]`. At least one.
pub type Terms<B> = Vec<[Tensor<B, 2>; 2]>;

/// Returns the mean cross-entropy `[1]` in f32, for targets `[tokens]`.
pub fn mean_loss<I: Backend, C: CheckpointStrategy>(
    terms: &Terms<Autodiff<I, C>>,
    targets: &Tensor<I, 1, Int>,
) -> Tensor<Autodiff<I, C>, 1> {
    mean_loss_by(MAX_LOGITS, terms, targets)
}

/// Returns the cross-entropy of each token, `[tokens]` in f32, for targets `[tokens]`.
pub fn token_losses<B: Backend>(terms: &Terms<B>, targets: &Tensor<B, 1, Int>) -> Tensor<B, 1> {
    let losses = token_ranges(MAX_LOGITS, terms, targets).map(|range| Chunk::new(terms, targets, range).losses);
    Tensor::cat(losses.collect(), 0)
}

fn mean_loss_by<I: Backend, C: CheckpointStrategy>(
    most: usize,
    terms: &Terms<Autodiff<I, C>>,
    targets: &Tensor<I, 1, Int>,
) -> Tensor<Autodiff<I, C>, 1> {
    let inner: Terms<I> = terms.iter().map(|term| term.clone().map(Tensor::inner)).collect();
    let mut grads: Vec<TermGrads<I>> =
        terms.iter().map(|term| TermGrads::new(term.each_ref().map(is_tracked))).collect();
    let mut losses = Vec::new();
    for range in token_ranges(most, &inner, targets) {
        let chunk = Chunk::new(&inner, targets, range);
        losses.push(chunk.losses.clone());
        if grads.iter().any(|term| term.wanted != [false; 2]) {
            let (inputs, logit_grads) = chunk.logit_grads();
            for ((term, x), [_, w]) in grads.iter_mut().zip(inputs).zip(&inner) {
                term.add_chunk(&logit_grads, x, w);
            }
        }
    }
    let mut loss = Tensor::from_inner(Tensor::cat(losses, 0).sum());
    for (term, [x, w]) in grads.into_iter().zip(terms) {
        if term.wanted[0] {
            loss = inject_grad(loss, x, Tensor::cat(term.x, 0));
        }
        if let Some(grad) = term.w {
            loss = inject_grad(loss, w, grad);
        }
    }
    loss.div_scalar(targets.dims()[0] as f64)
}

/// Returns the token range of each chunk.
fn token_ranges<B: Backend>(
    most: usize,
    terms: &Terms<B>,
    targets: &Tensor<B, 1, Int>,
) -> impl Iterator<Item = Range<usize>> + use<B> {
    let vocabulary = terms.first().map_or(1, |[_, w]| w.dims()[1]);
    let [tokens] = targets.dims();
    let rows = (most / vocabulary.max(1)).max(MIN_TOKENS);
    (0..tokens).step_by(rows).map(move |first| first..(first + rows).min(tokens))
}

/// A chunk of tokens between logits and gradients.
struct Chunk<B: Backend> {
    inputs: Vec<Tensor<B, 2>>,
    targets: Tensor<B, 2, Int>,
    losses: Tensor<B, 1>,
    /// exp(logits − max), `[tokens, vocabulary]` in f32.
    exponentials: Tensor<B, 2>,
    /// Their sums, `[tokens, 1]`.
    totals: Tensor<B, 2>,
}

impl<B: Backend> Chunk<B> {
    fn new(terms: &Terms<B>, targets: &Tensor<B, 1, Int>, range: Range<usize>) -> Self {
        let rows = range.len();
        let targets = targets.clone().slice([range.clone()]).reshape([rows, 1]);
        let inputs: Vec<Tensor<B, 2>> = terms.iter().map(|[x, _]| x.clone().slice([range.clone()])).collect();
        let products = inputs.iter().zip(terms).map(|(x, [_, w])| x.clone().matmul(w.clone()));
        let logits = in_f32(products.reduce(|sum, product| sum + product).unwrap_or_else(|| targets.clone().float()));
        let highest = logits.clone().max_dim(1);
        let shifted = logits - highest;
        let target = shifted.clone().gather(1, targets.clone());
        let exponentials = shifted.exp();
        let totals = exponentials.clone().sum_dim(1);
        let losses = (totals.clone().log() - target).reshape([rows]);
        Self { inputs, targets, losses, exponentials, totals }
    }

    /// Returns the inputs, and the gradient of the summed losses with respect to the logits: softmax −
    /// onehot, in the inputs' number format.
    fn logit_grads(self) -> (Vec<Tensor<B, 2>>, Tensor<B, 2>) {
        let minus_one = self.totals.zeros_like().sub_scalar(1.0);
        let probabilities = self.exponentials / self.totals;
        let logit_grads = probabilities.scatter(1, self.targets, minus_one, IndexingUpdateOp::Add);
        let dtype = self.inputs.first().map_or(DType::F32, Tensor::dtype);
        let logit_grads = if dtype == DType::F32 { logit_grads } else { logit_grads.cast(FloatDType::from(dtype)) };
        (self.inputs, logit_grads)
    }
}

/// The requested gradients of one term.
struct TermGrads<B: Backend> {
    /// Whether the gradients of x and of W are requested.
    wanted: [bool; 2],
    /// Gradients of x, one per chunk.
    x: Vec<Tensor<B, 2>>,
    /// Gradient of W, summed over the chunks so far, in f32.
    w: Option<Tensor<B, 2>>,
}

impl<B: Backend> TermGrads<B> {
    fn new(wanted: [bool; 2]) -> Self {
        Self { wanted, x: Vec::new(), w: None }
    }

    fn add_chunk(&mut self, logit_grads: &Tensor<B, 2>, x: Tensor<B, 2>, w: &Tensor<B, 2>) {
        if self.wanted[0] {
            self.x.push(logit_grads.clone().matmul(w.clone().transpose()));
        }
        if self.wanted[1] {
            let more = in_f32(x.transpose().matmul(logit_grads.clone()));
            self.w = Some(match self.w.take() {
                Some(sum) => sum + more,
                None => more,
            });
        }
    }
}

#[cfg(test)]
mod tests;
