//! softmax(q kᵀ + mask) v without storing the scores: they are computed for a part of the heads at a time, in
//! the forward pass and again in the backward pass.
//!
//! ```text
//! forward    P = softmax(q kᵀ + mask)    mixed = P v              P is discarded
//! backward   P recomputed                grad of v = Pᵀ g         T = P ∘ (g vᵀ − Σ g ∘ mixed)
//!                                        grad of q = T k          grad of k = Tᵀ q
//! ```
//! Each head has `length` × `length` scores. A graph of separate operations stores several copies of them for
//! every block, which is most of the memory of a long sequence.

use crate::native::ops;
use crate::params::{erase_rank, with_rank};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::{
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::tensor::{Tensor, TensorPrimitive, activation, backend::Backend};
use std::ops::Range;

/// The most scores in memory at a time: 64 MB in f32. A single head's scores are always allowed.
const MAX_SCORES: usize = 16 << 20;
/// The most bytes of scores at a time where softmax writes over them, so that there are no copies.
const MAX_SCORE_BYTES: usize = 256 << 20;

/// A function from queries, keys and values `[heads, length, size]`, those of all sequences one after
/// another, and the mask `[1, length, length]` to the attention output of each position, `[heads, length, size]`.
pub type AttentionFn<B> = fn([Tensor<B, 3>; 3], &Tensor<B, 3>) -> Tensor<B, 3>;

/// Computes attention as separate operations; without a graph nothing is stored.
#[expect(clippy::needless_pass_by_value, reason = "of the type AttentionFn")]
pub fn plain_attention<B: Backend>(inputs: [Tensor<B, 3>; 3], mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    attention_by_heads(max_scores(&inputs[0]), &inputs, mask)
}

fn max_scores<B: Backend>(tensor: &Tensor<B, 3>) -> usize {
    if ops::has_gpu_kernels(tensor) { MAX_SCORE_BYTES / tensor.dtype().size() } else { MAX_SCORES }
}

/// Computes attention as a single operation of the graph, which stores only its inputs.
pub fn recomputing_attention<I: Backend, C: CheckpointStrategy>(
    inputs: [Tensor<Autodiff<I, C>, 3>; 3],
    mask: &Tensor<Autodiff<I, C>, 3>,
) -> Tensor<Autodiff<I, C>, 3> {
    let mask = mask.clone().inner();
    let inner = inputs.clone().map(Tensor::inner);
    let mixed = erase_rank(attention_by_heads(max_scores(&inner[0]), &inner, &mask));
    let [q, k, v] = inputs.map(|input| input.into_primitive().tensor());
    let nodes = [q.node.clone(), k.node.clone(), v.node.clone()];
    let mixed = match <RecomputingAttention as Backward<I, 3>>::prepare::<C>(RecomputingAttention, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => prepared.finish([q.primitive, k.primitive, v.primitive, erase_rank(mask)], mixed),
        OpsKind::UnTracked(prepared) => prepared.finish(mixed),
    };
    Tensor::from_primitive(TensorPrimitive::Float(mixed))
}

#[derive(Debug)]
struct RecomputingAttention;

impl<I: Backend> Backward<I, 3> for RecomputingAttention {
    /// Queries, keys, values, mask.
    type State = [I::FloatTensorPrimitive; 4];

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let grad = with_rank::<I, 3>(grads.consume::<I>(&ops.node));
        let [q, k, v, mask] = ops.state.map(with_rank::<I, 3>);
        let input_grads = attention_grads(max_scores(&grad), &[q, k, v], &mask, &grad);
        for (parent, grad) in ops.parents.into_iter().zip(input_grads) {
            if let Some(parent) = parent {
                grads.register::<I>(parent.id, erase_rank(grad));
            }
        }
    }
}

fn attention_by_heads<B: Backend>(most: usize, inputs: &[Tensor<B, 3>; 3], mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    let part = |range: Range<usize>| {
        let [q, k, v] = inputs.each_ref().map(|input| heads_of(input, &range));
        attention_weights(q, k, mask).matmul(v)
    };
    join_heads(head_ranges(most, &inputs[0]).map(part).collect())
}

/// Returns the gradients of queries, keys and values from the gradient of the output.
fn attention_grads<B: Backend>(
    most: usize,
    inputs: &[Tensor<B, 3>; 3],
    mask: &Tensor<B, 3>,
    grad: &Tensor<B, 3>,
) -> [Tensor<B, 3>; 3] {
    let mut grads: [Vec<Tensor<B, 3>>; 3] = Default::default();
    for range in head_ranges(most, grad) {
        let [q, k, v] = inputs.each_ref().map(|input| heads_of(input, &range));
        let grad = heads_of(grad, &range);
        let weights = attention_weights(q.clone(), k.clone(), mask);
        let value_grad = weights.clone().swap_dims(1, 2).matmul(grad.clone());
        let weights_grad = grad.matmul(v.swap_dims(1, 2));
        let scores_grad = scores_grad(weights_grad, weights);
        let query_grad = scores_grad.clone().matmul(k);
        let key_grad = scores_grad.swap_dims(1, 2).matmul(q);
        for (parts, part) in grads.iter_mut().zip([query_grad, key_grad, value_grad]) {
            parts.push(part);
        }
    }
    grads.map(join_heads)
}

/// Returns the attention weights: how much each position attends to every other. The mask is that of a causal model.
fn attention_weights<B: Backend>(query: Tensor<B, 3>, key: Tensor<B, 3>, mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    let scores = query.matmul(key.swap_dims(1, 2));
    ops::causal_softmax(scores).unwrap_or_else(|scores| activation::softmax(scores + mask.clone(), 2))
}

/// Returns the gradient of the scores from that of the weights, and the weights.
fn scores_grad<B: Backend>(weights_grad: Tensor<B, 3>, weights: Tensor<B, 3>) -> Tensor<B, 3> {
    ops::causal_softmax_grad(weights_grad, weights).unwrap_or_else(|[weights_grad, weights]| {
        let mean = (weights_grad.clone() * weights.clone()).sum_dim(2);
        weights * (weights_grad - mean)
    })
}

fn heads_of<B: Backend>(tensor: &Tensor<B, 3>, range: &Range<usize>) -> Tensor<B, 3> {
    if range.len() == tensor.dims()[0] { tensor.clone() } else { tensor.clone().slice([range.clone()]) }
}

fn join_heads<B: Backend>(mut parts: Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
    match parts.pop() {
        Some(whole) if parts.is_empty() => whole,
        last => Tensor::cat(parts.into_iter().chain(last).collect(), 0),
    }
}

/// Returns the ranges of heads whose scores are in memory at the same time.
fn head_ranges<B: Backend>(most: usize, tensor: &Tensor<B, 3>) -> impl Iterator<Item = Range<usize>> + use<B> {
    let [heads, length, _] = tensor.dims();
    let at_most = (most / (length * length).max(1)).max(1);
    let heads_at_once = heads.div_ceil(heads.div_ceil(at_most).max(1)).max(1);
    (0..heads).step_by(heads_at_once).map(move |first| first..(first + heads_at_once).min(heads))
}

#[cfg(test)]
mod tests {
    use super::{attention_by_heads, attention_grads, plain_attention, recomputing_attention};
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::tensor::{Tensor, TensorData, Tolerance};

    type Cpu = Autodiff<Flex>;

    fn numbers(salt: usize) -> Tensor<Flex, 3> {
        let values: Vec<f32> = (0..5 * 7 * 4).map(|at| ((at + salt) as f32 * 1.3).sin()).collect();
        Tensor::from_data(TensorData::new(values, [5, 7, 4]), &FlexDevice)
    }

    fn mask() -> Tensor<Flex, 3> {
        let later = Tensor::<Flex, 2>::ones([7, 7], &FlexDevice).triu(1).equal_elem(1.0);
        Tensor::<Flex, 2>::zeros([7, 7], &FlexDevice).mask_fill(later, f32::NEG_INFINITY).unsqueeze()
    }

    #[test]
    fn the_single_operation_matches_separate_ones_for_every_share_of_heads() {
        let inputs = [0, 40, 90].map(|salt| Tensor::<Cpu, 3>::from_inner(numbers(salt)).require_grad());
        let (mask, weight) = (Tensor::<Cpu, 3>::from_inner(mask()), Tensor::<Cpu, 3>::from_inner(numbers(7)));
        let plain = plain_attention(inputs.clone(), &mask);
        let sparing = recomputing_attention(inputs.clone(), &mask);
        let near = |one: Tensor<Flex, 3>, two: Tensor<Flex, 3>| {
            one.into_data().assert_approx_eq::<f32>(&two.into_data(), Tolerance::rel_abs(1e-5, 1e-6));
        };
        near(sparing.clone().inner(), plain.clone().inner());
        let [wanted, found] = [plain, sparing].map(|mixed| (mixed * weight.clone()).sum().backward());
        for input in &inputs {
            near(input.grad(&found).unwrap(), input.grad(&wanted).unwrap());
        }
        let inner = inputs.clone().map(Tensor::inner);
        let (mask, grad) = (mask.inner(), numbers(7));
        for most in [1, 2 * 49, 3 * 49 + 1] {
            near(attention_by_heads(most, &inner, &mask), plain_attention(inner.clone(), &mask));
            for (part, input) in attention_grads(most, &inner, &mask, &grad).into_iter().zip(&inputs) {
                near(part, input.grad(&wanted).unwrap());
            }
        }
    }

    #[test]
    fn frozen_inputs_get_no_gradient() {
        let [q, k, v] = [0, 40, 90].map(|salt| Tensor::<Cpu, 3>::from_inner(numbers(salt)));
        let value = v.require_grad();
        let gradients =
            recomputing_attention([q.clone(), k, value.clone()], &Tensor::from_inner(mask())).sum().backward();
        assert!(value.grad(&gradients).is_some() && q.grad(&gradients).is_none());
    }
}
