//! Precomputed gradients, delivered by an ordinary backward pass.
//!
//! ```text
//! forward    inject_grad(loss, p, g) = loss
//! backward   p gets g · (the gradient that reaches the loss), the loss gets that gradient itself
//! ```
//! Code that computes a gradient outside Burn's graph can thus return a loss like any other: factors applied
//! to the loss reach the gradient, and the graph does not have to be stored.

use super::native;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::{
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorMetadata, TensorPrimitive, backend::Backend};

#[derive(Debug)]
struct InjectGrad;

/// A gradient, and the number format of the tensor it belongs to.
#[derive(Debug, Clone)]
struct InjectedGrad<F> {
    grad: F,
    dtype: DType,
}

impl<I: Backend> Backward<I, 2> for InjectGrad {
    type State = InjectedGrad<I::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let loss_grad = grads.consume::<I>(&ops.node);
        let [loss, target] = ops.parents;
        if let Some(target) = target {
            let InjectedGrad { grad, dtype } = ops.state;
            let factor = cast_to::<I>(loss_grad.clone(), DType::F32);
            let grad = scaled::<I>(cast_to::<I>(grad, DType::F32), factor);
            grads.register::<I>(target.id, cast_to::<I>(grad, dtype));
        }
        if let Some(loss) = loss {
            grads.register::<I>(loss.id, loss_grad);
        }
    }
}

/// Returns the same loss `[1]`, whose backward pass gives `target` the gradient `grad`, of its shape, in
/// any number format.
pub fn inject_grad<I: Backend, C: CheckpointStrategy, const D: usize>(
    loss: Tensor<Autodiff<I, C>, 1>,
    target: &Tensor<Autodiff<I, C>, D>,
    grad: Tensor<I, D>,
) -> Tensor<Autodiff<I, C>, 1> {
    let (loss, target) = (loss.into_primitive().tensor(), target.clone().into_primitive().tensor());
    let nodes = [loss.node.clone(), target.node.clone()];
    let result = match <InjectGrad as Backward<I, 2>>::prepare::<C>(InjectGrad, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let injected = InjectedGrad { grad: grad.into_primitive().tensor(), dtype: target.dtype() };
            prepared.finish(injected, loss.primitive)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(loss.primitive),
    };
    Tensor::from_primitive(TensorPrimitive::Float(result))
}

/// Reports whether a backward pass has to compute a gradient for this tensor.
pub fn is_tracked<I: Backend, C: CheckpointStrategy, const D: usize>(tensor: &Tensor<Autodiff<I, C>, D>) -> bool {
    tensor.clone().into_primitive().tensor().is_tracked()
}

/// Multiplies a gradient by a factor `[1]`.
fn scaled<I: Backend>(mut grad: I::FloatTensorPrimitive, factor: I::FloatTensorPrimitive) -> I::FloatTensorPrimitive {
    if native::ops::scale::<I>(&mut grad, &factor) {
        return grad;
    }
    let ones = Shape::from(vec![1; grad.rank()]);
    I::float_mul(grad, I::float_reshape(factor, ones))
}

fn cast_to<I: Backend>(tensor: I::FloatTensorPrimitive, dtype: DType) -> I::FloatTensorPrimitive {
    if tensor.dtype() == dtype { tensor } else { I::float_cast(tensor, FloatDType::from(dtype)) }
}

#[cfg(test)]
mod tests {
    use super::inject_grad;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::tensor::{DType, FloatDType, Tensor};

    type Cpu = Autodiff<Flex>;

    #[test]
    fn a_factor_on_the_loss_scales_the_injected_gradients_too() {
        let device = FlexDevice;
        let one = Tensor::<Cpu, 2>::from_floats([[1.0, 2.0]], &device).require_grad();
        let two = Tensor::<Cpu, 1>::from_floats([5.0], &device).cast(FloatDType::BF16).require_grad();
        let plain = Tensor::<Cpu, 1>::from_floats([7.0], &device).require_grad();
        let loss = inject_grad(plain.clone(), &one, Tensor::from_floats([[0.5, -1.0]], &device));
        let loss = inject_grad(loss, &two, Tensor::from_floats([3.0], &device));
        // A second gradient for the same target adds to the first.
        let loss = inject_grad(loss, &one, Tensor::from_floats([[0.0, 10.0]], &device));
        assert_eq!(loss.clone().into_scalar().to_bits(), 7f32.to_bits());
        let gradients = (loss * 4.0).backward();
        let values = |data: burn::tensor::TensorData| data.iter::<f32>().collect::<Vec<_>>();
        assert_eq!(values(one.grad(&gradients).unwrap().into_data()), [2.0, 36.0]);
        let half = two.grad(&gradients).unwrap();
        assert_eq!(half.dtype(), DType::BF16);
        assert_eq!(values(half.into_data()), [12.0]);
        assert_eq!(values(plain.grad(&gradients).unwrap().into_data()), [4.0]);
    }

    #[test]
    fn a_tensor_without_require_grad_gets_no_gradient() {
        let device = FlexDevice;
        let trained = Tensor::<Cpu, 1>::from_floats([1.0], &device).require_grad();
        let frozen = Tensor::<Cpu, 1>::from_floats([1.0], &device);
        let constant = Tensor::<Cpu, 1>::from_floats([2.0], &device);
        let loss = inject_grad(
            inject_grad(constant, &frozen, Tensor::ones([1], &device)),
            &trained,
            Tensor::ones([1], &device),
        );
        let gradients = loss.backward();
        assert!(frozen.grad(&gradients).is_none());
        assert_eq!(trained.grad(&gradients).unwrap().into_scalar().to_bits(), 1f32.to_bits());
    }
}
