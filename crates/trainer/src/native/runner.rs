//! Runs a kernel on the numbers of tensors, or counts what it would allocate.

use crate::shape_backend::Channel;
use burn::backend::flex::Flex;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{FloatDType, Shape, TensorData, backend::Backend};
use burn_flex::FlexTensor;
use burn_router::{BackendRouter, RunnerClient};

/// The backend that counts.
pub type Shapes = BackendRouter<Channel>;
type ShapeTensor = FloatTensor<Shapes>;

/// A backend that kernels run on. All tensors are in f32.
pub trait Runner: Backend {
    /// Reports whether kernels stand for the operations of this tensor's device.
    fn has_kernels(tensor: &FloatTensor<Self>) -> bool;

    /// Returns new tensors of these shapes, filled by a kernel, which finds zeros in them.
    fn run<const I: usize, const O: usize>(
        inputs: [&FloatTensor<Self>; I],
        shapes: [Shape; O],
        kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    ) -> [FloatTensor<Self>; O];

    /// Changes tensors by a kernel. One that something else holds too is copied first.
    fn run_in_place<const I: usize, const O: usize>(
        changed: [&mut FloatTensor<Self>; O],
        inputs: [&FloatTensor<Self>; I],
        kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    );
}

impl Runner for Flex {
    fn has_kernels(_tensor: &FlexTensor) -> bool {
        true
    }

    fn run<const I: usize, const O: usize>(
        inputs: [&FlexTensor; I],
        shapes: [Shape; O],
        kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    ) -> [FlexTensor; O] {
        let inputs = inputs.map(contiguous);
        let mut outputs = shapes.map(|shape| (vec![0.0_f32; shape.num_elements()], shape));
        kernel(inputs.each_ref().map(numbers), outputs.each_mut().map(|(numbers, _)| numbers.as_mut_slice()));
        outputs.map(|(numbers, shape)| FlexTensor::from_data(TensorData::new(numbers, shape)))
    }

    fn run_in_place<const I: usize, const O: usize>(
        changed: [&mut FlexTensor; O],
        inputs: [&FlexTensor; I],
        kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    ) {
        let inputs = inputs.map(contiguous);
        let changed = changed.map(|tensor| {
            let whole = tensor.as_slice::<f32>().is_some_and(|part| part.len() == tensor.storage::<f32>().len());
            if !whole {
                *tensor = FlexTensor::from_data(tensor.clone().into_data());
            }
            tensor.storage_mut()
        });
        kernel(inputs.each_ref().map(numbers), changed);
    }
}

fn contiguous(tensor: &FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor.clone() } else { tensor.to_contiguous() }
}

fn numbers(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().unwrap_or_default()
}

impl Runner for Shapes {
    fn has_kernels(tensor: &ShapeTensor) -> bool {
        tensor.client.device().is_cpu()
    }

    fn run<const I: usize, const O: usize>(
        inputs: [&ShapeTensor; I],
        shapes: [Shape; O],
        _kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    ) -> [ShapeTensor; O] {
        let device = inputs.first().map(|input| input.client.device()).unwrap_or_default();
        shapes.map(|shape| Self::float_zeros(shape, &device, FloatDType::F32))
    }

    fn run_in_place<const I: usize, const O: usize>(
        changed: [&mut ShapeTensor; O],
        _inputs: [&ShapeTensor; I],
        _kernel: impl FnOnce([&[f32]; I], [&mut [f32]; O]),
    ) {
        for tensor in changed {
            let none = Self::float_zeros(Shape::new([0]), &tensor.client.device(), FloatDType::F32);
            // Like any operation that writes into its input, unless something else holds that.
            *tensor = Self::float_exp(std::mem::replace(tensor, none));
        }
    }
}
