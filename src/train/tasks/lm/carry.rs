//! Precomputed gradients, delivered by an ordinary backward pass.
//!
//! ```text
//! forward    carry(loss, p, g) = loss
//! backward   p gets g · (the gradient that reaches the loss), the loss gets that gradient itself
//! ```
//! Code that computes a gradient outside Burn's graph can thus return a loss like any other: factors applied
//! to the loss reach the gradient, and the graph does not have to be stored.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::{
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorMetadata, TensorPrimitive, backend::Backend};

#[derive(Debug)]
struct Carry;

/// A gradient, and the number format of the tensor it belongs to.
#[derive(Debug, Clone)]
struct Cargo<F> {
    gradient: F,
    dtype: DType,
}

impl<I: Backend> Backward<I, 2> for Carry {
    type State = Cargo<I::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let reaches = gradients.consume::<I>(&ops.node);
        let [loss, carrier] = ops.parents;
        if let Some(carrier) = carrier {
            let Cargo { gradient, dtype } = ops.state;
            let ones = Shape::from(vec![1; gradient.rank()]);
            let factor = I::float_reshape(cast::<I>(reaches.clone(), DType::F32), ones);
            let gradient = I::float_mul(cast::<I>(gradient, DType::F32), factor);
            gradients.register::<I>(carrier.id, cast::<I>(gradient, dtype));
        }
        if let Some(loss) = loss {
            gradients.register::<I>(loss.id, reaches);
        }
    }
}

/// Returns the same loss `[1]`, whose backward pass gives `carrier` the gradient `gradient`, of its shape, in
/// any number format.
pub fn carry<I: Backend, C: CheckpointStrategy, const D: usize>(
    loss: Tensor<Autodiff<I, C>, 1>,
    carrier: &Tensor<Autodiff<I, C>, D>,
    gradient: Tensor<I, D>,
) -> Tensor<Autodiff<I, C>, 1> {
    let (loss, carrier) = (loss.into_primitive().tensor(), carrier.clone().into_primitive().tensor());
    let nodes = [loss.node.clone(), carrier.node.clone()];
    let result = match <Carry as Backward<I, 2>>::prepare::<C>(Carry, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let cargo = Cargo { gradient: gradient.into_primitive().tensor(), dtype: carrier.dtype() };
            prepared.finish(cargo, loss.primitive)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(loss.primitive),
    };
    Tensor::from_primitive(TensorPrimitive::Float(result))
}

/// Reports whether a backward pass has to compute a gradient for this tensor.
pub fn is_tracked<I: Backend, C: CheckpointStrategy, const D: usize>(tensor: &Tensor<Autodiff<I, C>, D>) -> bool {
    tensor.clone().into_primitive().tensor().is_tracked()
}

fn cast<I: Backend>(tensor: I::FloatTensorPrimitive, dtype: DType) -> I::FloatTensorPrimitive {
    if tensor.dtype() == dtype { tensor } else { I::float_cast(tensor, FloatDType::from(dtype)) }
}

#[cfg(test)]
mod tests {
    use super::carry;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::tensor::{DType, FloatDType, Tensor};

    type Cpu = Autodiff<Flex>;

    #[test]
    fn what_the_loss_is_multiplied_by_reaches_the_gradient_beside_the_others() {
        let device = FlexDevice;
        let one = Tensor::<Cpu, 2>::from_floats([[1.0, 2.0]], &device).require_grad();
        let two = Tensor::<Cpu, 1>::from_floats([5.0], &device).cast(FloatDType::BF16).require_grad();
        let plain = Tensor::<Cpu, 1>::from_floats([7.0], &device).require_grad();
        let loss = carry(plain.clone(), &one, Tensor::from_floats([[0.5, -1.0]], &device));
        let loss = carry(loss, &two, Tensor::from_floats([3.0], &device));
        // A second gradient for the same carrier adds to the first.
        let loss = carry(loss, &one, Tensor::from_floats([[0.0, 10.0]], &device));
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
    fn who_asks_for_no_gradient_gets_none() {
        let device = FlexDevice;
        let asks = Tensor::<Cpu, 1>::from_floats([1.0], &device).require_grad();
        let still = Tensor::<Cpu, 1>::from_floats([1.0], &device);
        let constant = Tensor::<Cpu, 1>::from_floats([2.0], &device);
        let loss = carry(carry(constant, &still, Tensor::ones([1], &device)), &asks, Tensor::ones([1], &device));
        let gradients = loss.backward();
        assert!(still.grad(&gradients).is_none());
        assert_eq!(asks.grad(&gradients).unwrap().into_scalar().to_bits(), 1f32.to_bits());
    }
}
