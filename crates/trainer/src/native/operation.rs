//! An operation with its gradients, as one node of Burn's graph.

use super::is_enabled;
use super::runner::{Runner, Shapes};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::Flex;
use burn::tensor::{DType, TensorMetadata, backend::Backend, ops::FloatTensor};
use std::any::{Any, TypeId};
use std::fmt::Debug;

/// The output of an operation, and what its gradients need.
pub type Computed<R, const K: usize> = (FloatTensor<R>, [FloatTensor<R>; K]);

/// An operation of `N` inputs that keeps `K` tensors for its gradients, on the backend `R`.
pub trait Operation<R: Backend, const N: usize, const K: usize>: Debug + Clone + Send + 'static {
    /// Computes the output.
    fn forward(&self, inputs: [&FloatTensor<R>; N]) -> Computed<R, K>;

    /// Computes the wanted gradients of the inputs from that of the output.
    fn gradients(
        &self,
        kept: [FloatTensor<R>; K],
        grad: FloatTensor<R>,
        wanted: [bool; N],
    ) -> [Option<FloatTensor<R>>; N];
}

/// Reports whether native operations apply to these tensors.
pub fn applies<B: Backend>(tensors: &[&FloatTensor<B>]) -> bool {
    fn on<B: Backend, R: Runner>(tensor: &FloatTensor<B>) -> bool {
        let tensor: &dyn Any = tensor;
        let plain = tensor.downcast_ref::<FloatTensor<R>>();
        let inner = || tensor.downcast_ref::<FloatTensor<Autodiff<R>>>().map(|tensor| &tensor.primitive);
        plain.or_else(inner).is_some_and(R::has_kernels)
    }
    is_enabled()
        && tensors
            .iter()
            .all(|tensor| tensor.dtype() == DType::F32 && (on::<B, Flex>(tensor) || on::<B, Shapes>(tensor)))
}

/// Computes an operation, in the graph if there is one. Returns `None` if native operations do not apply.
pub fn apply<B: Backend, O, const N: usize, const K: usize>(
    operation: &O,
    inputs: [&FloatTensor<B>; N],
) -> Option<FloatTensor<B>>
where
    O: Operation<Flex, N, K> + Operation<Shapes, N, K>,
{
    if !applies::<B>(&inputs) {
        return None;
    }
    let mut inputs = Some(inputs.map(Clone::clone));
    apply_on::<B, Flex, O, N, K>(operation, &mut inputs)
        .or_else(|| apply_on::<B, Shapes, O, N, K>(operation, &mut inputs))
}

/// Computes an operation if the inputs are tensors of the backend `R`, in a graph or not; takes them then.
pub(super) fn apply_on<B: Backend, R: Backend, O: Operation<R, N, K>, const N: usize, const K: usize>(
    operation: &O,
    inputs: &mut Option<[FloatTensor<B>; N]>,
) -> Option<FloatTensor<B>> {
    if let Some(inputs) = take_as::<_, [FloatTensor<R>; N]>(inputs) {
        let (output, _) = operation.forward(inputs.each_ref());
        return take_as(&mut Some(output));
    }
    let inputs = take_as::<_, [FloatTensor<Autodiff<R>>; N]>(inputs)?;
    let (output, kept) = operation.forward(inputs.each_ref().map(|input| &input.primitive));
    let nodes = inputs.map(|input| input.node);
    let node = Node::<O, K>(operation.clone());
    // The strategy decides only about operations that are cheap to repeat, which this is not.
    let prepared = <Node<O, K> as Backward<R, N>>::prepare::<NoCheckpointing>(node, nodes).compute_bound().stateful();
    let output = match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(kept, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    take_as(&mut Some(output))
}

/// Changes tensors by a kernel, without a graph: in place, unless something else holds one. Returns false, and
/// changes nothing, if native operations do not apply.
pub fn update_in_place<B: Backend, const I: usize, const O: usize>(
    changed: [&mut FloatTensor<B>; O],
    inputs: [&FloatTensor<B>; I],
    kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
) -> bool {
    if !applies::<B>(&inputs) || !changed.iter().all(|tensor| applies::<B>(&[tensor])) {
        return false;
    }
    if TypeId::of::<FloatTensor<B>>() == TypeId::of::<FloatTensor<Flex>>() {
        update_on::<B, Flex, I, O>(changed, inputs, kernel)
    } else {
        update_on::<B, Shapes, I, O>(changed, inputs, kernel)
    }
}

fn update_on<B: Backend, R: Runner, const I: usize, const O: usize>(
    changed: [&mut FloatTensor<B>; O],
    inputs: [&FloatTensor<B>; I],
    kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
) -> bool {
    let changed = changed.map(|tensor| (tensor as &mut dyn Any).downcast_mut::<FloatTensor<R>>());
    let inputs = inputs.map(|tensor| (tensor as &dyn Any).downcast_ref::<FloatTensor<R>>());
    let (Some(changed), Some(inputs)) = (all_of(changed), all_of(inputs)) else { return false };
    R::run_in_place(changed, inputs, kernel);
    true
}

/// Returns the values if none is missing.
fn all_of<T, const N: usize>(values: [Option<T>; N]) -> Option<[T; N]> {
    let values: Vec<T> = values.into_iter().collect::<Option<_>>()?;
    values.try_into().ok()
}

#[derive(Debug)]
struct Node<O, const K: usize>(O);

impl<R: Backend, O: Operation<R, N, K>, const N: usize, const K: usize> Backward<R, N> for Node<O, K> {
    type State = [FloatTensor<R>; K];

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let grad = grads.consume::<R>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let found = self.0.gradients(ops.state, grad, wanted);
        for (parent, grad) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<R>(parent.id, grad);
            }
        }
    }
}

/// Takes a value as the type that it has.
pub(super) fn take_as<T: 'static, U: 'static>(value: &mut Option<T>) -> Option<U> {
    let value: &mut dyn Any = value;
    value.downcast_mut::<Option<U>>()?.take()
}
