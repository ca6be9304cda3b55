//! Cross-entropy over a large vocabulary, one chunk of tokens at a time: the full logits never exist.
//!
//! ```text
//! for each chunk of tokens:   logits = Σ x·W        losses = log Σ exp(logits) − logits[target]
//!                             d = softmax(logits) − onehot(target)
//!                             gradient of x = d·Wᵀ  gradient of W += xᵀ·d
//! ```
//! The head is a sum of terms x·W: the layer itself, its adapter's low-rank part, its bias as ones·b.
//! Gradients are computed in the forward pass, where d is available, and [`inject_grad`] delivers them. They are
//! gradients of the sum of the losses, and are divided at the end, in f32. In f16 a chunk stays small, so that its sum fits.

use crate::inject_grad::{inject_grad, is_tracked};
use crate::native::ops;
use crate::params::{erase_rank, with_rank};
use crate::tasks::in_f32;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{DType, FloatDType, IndexingUpdateOp, Int, Tensor, backend::Backend};
use std::ops::Range;

/// The most logits in a chunk: 32 MB in f32. In f16 no chunk is larger: its gradient of W is a sum over all of its tokens, which
/// no scale of the loss keeps from overflowing.
const MAX_LOGITS: usize = 8 << 20;
/// The most bytes of a chunk's logits where their gradients are written over them, so that there are no copies. Each
/// chunk reads all of W twice and adds to its whole gradient, so fewer chunks move fewer bytes.
const MAX_LOGIT_BYTES: usize = 272 << 20;
/// The fewest tokens in a chunk.
const MIN_TOKENS: usize = 16;

/// The terms that sum to the logits. At least one.
pub type Terms<B> = Vec<Term<B>>;

/// A term of the logits: x `[tokens, size]` times W `[size, vocabulary]`.
#[derive(Debug, Clone)]
pub struct Term<B: Backend> {
    /// x.
    pub x: Tensor<B, 2>,
    /// W, or its transpose.
    pub weight: Tensor<B, 2>,
    /// Whether `weight` is the transpose, as the embedding of a tied head is. Its gradient is then computed in that
    /// layout, since adding two layouts is slow.
    pub transposed: bool,
}

impl<B: Backend> Term<B> {
    /// Returns the term of x and W.
    pub fn new([x, weight]: [Tensor<B, 2>; 2]) -> Self {
        Self { x, weight, transposed: false }
    }

    /// Returns x·W.
    pub fn product(&self) -> Tensor<B, 2> {
        self.x.clone().matmul(self.matrix())
    }

    /// Returns W.
    fn matrix(&self) -> Tensor<B, 2> {
        if self.transposed { self.weight.clone().transpose() } else { self.weight.clone() }
    }
}

impl<I: Backend, C: CheckpointStrategy> Term<Autodiff<I, C>> {
    /// Returns the term without its graph.
    fn inner(&self) -> Term<I> {
        Term { x: self.x.clone().inner(), weight: self.weight.clone().inner(), transposed: self.transposed }
    }
}

/// Returns the mean cross-entropy `[1]` in f32, for targets `[tokens]`.
pub fn mean_loss<I: Backend, C: CheckpointStrategy>(
    terms: &Terms<Autodiff<I, C>>,
    targets: &Tensor<I, 1, Int>,
) -> Tensor<Autodiff<I, C>, 1> {
    mean_loss_by(max_logits(terms), terms, targets)
}

fn max_logits<B: Backend>(terms: &Terms<B>) -> usize {
    let on_gpu = terms.first().filter(|term| ops::has_gpu_kernels(&term.x));
    on_gpu.map_or(MAX_LOGITS, |term| match term.x.dtype() {
        DType::F16 => MAX_LOGITS,
        dtype => MAX_LOGIT_BYTES / dtype.size(),
    })
}

/// Returns the cross-entropy of each token, `[tokens]` in f32, for targets `[tokens]`.
pub fn token_losses<B: Backend>(terms: &Terms<B>, targets: &Tensor<B, 1, Int>) -> Tensor<B, 1> {
    let losses = token_ranges(max_logits(terms), terms, targets).map(|range| Chunk::new(terms, targets, range).losses);
    Tensor::cat(losses.collect(), 0)
}

fn mean_loss_by<I: Backend, C: CheckpointStrategy>(
    most: usize,
    terms: &Terms<Autodiff<I, C>>,
    targets: &Tensor<I, 1, Int>,
) -> Tensor<Autodiff<I, C>, 1> {
    let inner: Terms<I> = terms.iter().map(Term::inner).collect();
    let mut grads: Vec<TermGrads<I>> =
        terms.iter().map(|Term { x, weight, .. }| TermGrads::new([x, weight].map(is_tracked))).collect();
    let mut losses = Vec::new();
    for range in token_ranges(most, &inner, targets) {
        let chunk = Chunk::new(&inner, targets, range);
        losses.push(chunk.losses.clone());
        if grads.iter().any(|term| term.wanted != [false; 2]) {
            let (inputs, logit_grads) = chunk.logit_grads();
            for ((grads, x), term) in grads.iter_mut().zip(inputs).zip(&inner) {
                grads.add_chunk(&logit_grads, x, term);
            }
        }
    }
    let mut loss = Tensor::from_inner(Tensor::cat(losses, 0).sum());
    for (grads, term) in grads.into_iter().zip(terms) {
        if grads.wanted[0] {
            loss = inject_grad(loss, &term.x, Tensor::cat(grads.x, 0));
        }
        if let Some(grad) = grads.weight {
            loss = inject_grad(loss, &term.weight, grad);
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
    let vocabulary = terms.first().map_or(1, |term| term.matrix().dims()[1]);
    let [tokens] = targets.dims();
    let at_most = (most / vocabulary.max(1)).max(MIN_TOKENS);
    // Chunks of one size, since the largest one decides the memory.
    let rows = tokens.div_ceil(tokens.div_ceil(at_most).max(1)).max(1);
    (0..tokens).step_by(rows).map(move |first| first..(first + rows).min(tokens))
}

/// A chunk of tokens between logits and gradients.
struct Chunk<B: Backend> {
    inputs: Vec<Tensor<B, 2>>,
    losses: Tensor<B, 1>,
    logit_grads: LogitGrads<B>,
}

/// The gradients of a chunk's logits.
enum LogitGrads<B: Backend> {
    /// As they are, from a native operation.
    Known(Tensor<B, 2>),
    /// Yet to be computed.
    Open {
        targets: Tensor<B, 2, Int>,
        /// exp(logits − max), `[tokens, vocabulary]`.
        exponentials: Tensor<B, 2>,
        /// Their sums, `[tokens, 1]`.
        totals: Tensor<B, 2>,
    },
}

impl<B: Backend> Chunk<B> {
    fn new(terms: &Terms<B>, targets: &Tensor<B, 1, Int>, range: Range<usize>) -> Self {
        let rows = range.len();
        let targets = targets.clone().slice([range.clone()]).reshape([rows, 1]);
        let inputs: Vec<Tensor<B, 2>> = terms.iter().map(|term| term.x.clone().slice([range.clone()])).collect();
        let products = inputs.iter().zip(terms).map(|(x, term)| x.clone().matmul(term.matrix()));
        let logits = products.reduce(|sum, product| sum + product).unwrap_or_else(|| targets.clone().float());
        let classes = || B::int_into_float(targets.clone().reshape([rows]).into_primitive(), FloatDType::F32);
        let logits = match ops::cross_entropy::<B>(erase_rank(logits), classes) {
            Ok([grads, losses]) => {
                return Self { inputs, losses: with_rank(losses), logit_grads: LogitGrads::Known(with_rank(grads)) };
            }
            Err(logits) => in_f32(with_rank::<B, 2>(logits)),
        };
        let highest = logits.clone().max_dim(1);
        let shifted = logits - highest;
        let target = shifted.clone().gather(1, targets.clone());
        let exponentials = shifted.exp();
        let totals = exponentials.clone().sum_dim(1);
        let losses = (totals.clone().log() - target).reshape([rows]);
        Self { inputs, losses, logit_grads: LogitGrads::Open { targets, exponentials, totals } }
    }

    /// Returns the inputs, and the gradient of the summed losses with respect to the logits: softmax −
    /// onehot, in the inputs' number format.
    fn logit_grads(self) -> (Vec<Tensor<B, 2>>, Tensor<B, 2>) {
        let logit_grads = match self.logit_grads {
            LogitGrads::Known(grads) => grads,
            LogitGrads::Open { targets, exponentials, totals } => {
                let minus_one = totals.zeros_like().sub_scalar(1.0);
                (exponentials / totals).scatter(1, targets, minus_one, IndexingUpdateOp::Add)
            }
        };
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
    /// Gradient of the weight, summed over the chunks so far, in f32.
    weight: Option<Tensor<B, 2>>,
}

impl<B: Backend> TermGrads<B> {
    fn new(wanted: [bool; 2]) -> Self {
        Self { wanted, x: Vec::new(), weight: None }
    }

    fn add_chunk(&mut self, logit_grads: &Tensor<B, 2>, x: Tensor<B, 2>, term: &Term<B>) {
        let logit_grads = logit_grads.clone();
        if self.wanted[0] {
            self.x.push(logit_grads.clone().matmul(term.matrix().transpose()));
        }
        if self.wanted[1] {
            let factors = if term.transposed { [logit_grads.transpose(), x] } else { [x.transpose(), logit_grads] };
            let [left, right] = factors;
            let more = left.matmul(right);
            self.weight = Some(match self.weight.take() {
                Some(sum) => add_to_sum(sum, more),
                None => in_f32(more),
            });
        }
    }
}

/// Adds a tensor to a sum in f32.
fn add_to_sum<B: Backend>(sum: Tensor<B, 2>, more: Tensor<B, 2>) -> Tensor<B, 2> {
    match ops::add_to_sum::<B>(erase_rank(sum), erase_rank(more)) {
        Ok(sum) => with_rank(sum),
        Err([sum, more]) => with_rank::<B, 2>(sum) + in_f32(with_rank(more)),
    }
}

#[cfg(test)]
mod tests;
