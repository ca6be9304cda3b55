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

use crate::train::params::{erase, ranked};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::{
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::tensor::{Tensor, TensorPrimitive, activation, backend::Backend};
use std::ops::Range;

/// The most scores in memory at a time: 64 MB in f32. A single head's scores are always allowed.
const SCORES: usize = 16 << 20;

/// A function from queries, keys and values `[heads, length, size]`, those of all sequences one after
/// another, and the mask `[1, length, length]` to the attention output of each position, `[heads, length, size]`.
pub type Attend<B> = fn([Tensor<B, 3>; 3], &Tensor<B, 3>) -> Tensor<B, 3>;

/// Computes attention as separate operations; without a graph nothing is stored.
#[expect(clippy::needless_pass_by_value, reason = "of the type Attend")]
pub fn plainly<B: Backend>(inputs: [Tensor<B, 3>; 3], mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    by_heads(SCORES, &inputs, mask)
}

/// Computes attention as a single operation of the graph, which stores only its inputs.
pub fn sparingly<I: Backend, C: CheckpointStrategy>(
    inputs: [Tensor<Autodiff<I, C>, 3>; 3],
    mask: &Tensor<Autodiff<I, C>, 3>,
) -> Tensor<Autodiff<I, C>, 3> {
    let mask = mask.clone().inner();
    let mixed = erase(by_heads(SCORES, &inputs.clone().map(Tensor::inner), &mask));
    let [q, k, v] = inputs.map(|input| input.into_primitive().tensor());
    let nodes = [q.node.clone(), k.node.clone(), v.node.clone()];
    let mixed = match <Sparing as Backward<I, 3>>::prepare::<C>(Sparing, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish([q.primitive, k.primitive, v.primitive, erase(mask)], mixed),
        OpsKind::UnTracked(prepared) => prepared.finish(mixed),
    };
    Tensor::from_primitive(TensorPrimitive::Float(mixed))
}

#[derive(Debug)]
struct Sparing;

impl<I: Backend> Backward<I, 3> for Sparing {
    /// Queries, keys, values, mask.
    type State = [I::FloatTensorPrimitive; 4];

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let slope = ranked::<I, 3>(gradients.consume::<I>(&ops.node));
        let [q, k, v, mask] = ops.state.map(ranked::<I, 3>);
        let found = slopes(SCORES, &[q, k, v], &mask, &slope);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(parent) = parent {
                gradients.register::<I>(parent.id, erase(gradient));
            }
        }
    }
}

fn by_heads<B: Backend>(most: usize, inputs: &[Tensor<B, 3>; 3], mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    let share = |range: Range<usize>| {
        let [q, k, v] = inputs.each_ref().map(|input| input.clone().slice([range.clone()]));
        weights(q, k, mask).matmul(v)
    };
    Tensor::cat(shares(most, &inputs[0]).map(share).collect(), 0)
}

/// Returns the gradients of queries, keys and values from the gradient of the output.
fn slopes<B: Backend>(
    most: usize,
    inputs: &[Tensor<B, 3>; 3],
    mask: &Tensor<B, 3>,
    slope: &Tensor<B, 3>,
) -> [Tensor<B, 3>; 3] {
    let mut found: [Vec<Tensor<B, 3>>; 3] = Default::default();
    for range in shares(most, slope) {
        let [q, k, v] = inputs.each_ref().map(|input| input.clone().slice([range.clone()]));
        let slope = slope.clone().slice([range]);
        let weights = weights(q.clone(), k.clone(), mask);
        let of_value = weights.clone().swap_dims(1, 2).matmul(slope.clone());
        let of_weights = slope.matmul(v.swap_dims(1, 2));
        let mean = (of_weights.clone() * weights.clone()).sum_dim(2);
        let of_scores = weights * (of_weights - mean);
        let of_query = of_scores.clone().matmul(k);
        let of_key = of_scores.swap_dims(1, 2).matmul(q);
        for (parts, part) in found.iter_mut().zip([of_query, of_key, of_value]) {
            parts.push(part);
        }
    }
    found.map(|parts| Tensor::cat(parts, 0))
}

/// Returns the attention weights: how much each position attends to every other.
fn weights<B: Backend>(query: Tensor<B, 3>, key: Tensor<B, 3>, mask: &Tensor<B, 3>) -> Tensor<B, 3> {
    activation::softmax(query.matmul(key.swap_dims(1, 2)) + mask.clone(), 2)
}

/// Returns the ranges of heads whose scores are in memory at the same time.
fn shares<B: Backend>(most: usize, tensor: &Tensor<B, 3>) -> impl Iterator<Item = Range<usize>> + use<B> {
    let [heads, length, _] = tensor.dims();
    let share = (most / (length * length).max(1)).max(1);
    (0..heads).step_by(share).map(move |first| first..(first + share).min(heads))
}

#[cfg(test)]
mod tests {
    use super::{by_heads, plainly, slopes, sparingly};
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
    fn one_operation_reads_and_slopes_as_single_ones_do_however_heads_are_shared_out() {
        let inputs = [0, 40, 90].map(|salt| Tensor::<Cpu, 3>::from_inner(numbers(salt)).require_grad());
        let (mask, weight) = (Tensor::<Cpu, 3>::from_inner(mask()), Tensor::<Cpu, 3>::from_inner(numbers(7)));
        let plain = plainly(inputs.clone(), &mask);
        let sparing = sparingly(inputs.clone(), &mask);
        let near = |one: Tensor<Flex, 3>, two: Tensor<Flex, 3>| {
            one.into_data().assert_approx_eq::<f32>(&two.into_data(), Tolerance::rel_abs(1e-5, 1e-6));
        };
        near(sparing.clone().inner(), plain.clone().inner());
        let [wanted, found] = [plain, sparing].map(|mixed| (mixed * weight.clone()).sum().backward());
        for input in &inputs {
            near(input.grad(&found).unwrap(), input.grad(&wanted).unwrap());
        }
        let inner = inputs.clone().map(Tensor::inner);
        let (mask, slope) = (mask.inner(), numbers(7));
        for most in [1, 2 * 49, 3 * 49 + 1] {
            near(by_heads(most, &inner, &mask), plainly(inner.clone(), &mask));
            for (part, input) in slopes(most, &inner, &mask, &slope).into_iter().zip(&inputs) {
                near(part, input.grad(&wanted).unwrap());
            }
        }
    }

    #[test]
    fn frozen_inputs_get_no_slope() {
        let [q, k, v] = [0, 40, 90].map(|salt| Tensor::<Cpu, 3>::from_inner(numbers(salt)));
        let value = v.require_grad();
        let gradients = sparingly([q.clone(), k, value.clone()], &Tensor::from_inner(mask())).sum().backward();
        assert!(value.grad(&gradients).is_some() && q.grad(&gradients).is_none());
    }
}
