//! Operations of a step outside the graph. Each returns false, or `None`, if native operations do not apply.

use super::super::operation::{applies, update_in_place};
#[cfg(feature = "cuda")]
use crate::native::gpu::{self, AddSquares, AddToSum, CrossEntropy, SUMS, UpdateAdamW};
use crate::stored_tensor::as_f32;
#[cfg(feature = "cuda")]
use burn::tensor::DType;
use burn::tensor::{FloatDType, Shape, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::adamw::{self, Factors};
use downshift_kernels::cross_entropy;

/// Returns the sum of squares, `[1]`.
pub fn sum_of_squares<B: Backend>(tensor: &FloatTensor<B>) -> Option<FloatTensor<B>> {
    if !applies::<B>(&[tensor]) {
        return None;
    }
    let mut sum = B::float_zeros(Shape::new([1]), &B::float_device(tensor), FloatDType::F32);
    update_in_place::<B, 1, 1>([&mut sum], [tensor], |[x], [sum]| sum[0] = adamw::sum_of_squares(x)).then_some(sum)
}

/// Returns the sum of squares of all tensors, `[1]`, computed on a GPU in one pass over each.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is no GPU"))]
pub fn sum_of_squares_on_gpu<B: Backend>(tensors: &[&FloatTensor<B>]) -> Option<FloatTensor<B>> {
    #[cfg(feature = "cuda")]
    {
        let first = tensors.first().filter(|_| gpu::applies::<B>(tensors))?;
        let mut sums = B::float_zeros(Shape::new([SUMS]), &B::float_device(first), FloatDType::F32);
        for tensor in tensors {
            [sums] = gpu::run::<B, _, 2, 1>(AddSquares, [sums, (*tensor).clone()]).ok()?;
        }
        Some(B::float_sum(sums))
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// Adds a tensor to a sum of its shape in f32 on a GPU, in place.
///
/// # Errors
/// Returns both if no kernel fits them.
pub fn add_to_sum<B: Backend>(
    sum: FloatTensor<B>,
    more: FloatTensor<B>,
) -> Result<FloatTensor<B>, [FloatTensor<B>; 2]> {
    #[cfg(feature = "cuda")]
    if sum.dtype() == DType::F32 && sum.shape() == more.shape() {
        return gpu::run::<B, _, 2, 1>(AddToSum, [sum, more]).map(|[sum]| sum);
    }
    Err([sum, more])
}

/// Weights, first and second moments after an update, and the weights in another number format if there is one.
pub type Updated<B> = ([FloatTensor<B>; 3], Option<FloatTensor<B>>);

/// Updates weights, first and second moments in f32 by a gradient on a GPU, in place. Returns them, with the weights in the
/// format `rounded` too.
///
/// # Errors
/// Returns the inputs if no kernel fits them.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without CUDA there is no GPU"))]
pub fn update_on_gpu<B: Backend>(
    inputs: [FloatTensor<B>; 4],
    factors: Factors,
    rounded: Option<FloatDType>,
) -> Result<Updated<B>, [FloatTensor<B>; 4]> {
    #[cfg(feature = "cuda")]
    if inputs[..3].iter().all(|tensor| tensor.dtype() == DType::F32 && tensor.shape() == inputs[3].shape()) {
        let kernel = UpdateAdamW { factors, rounded: rounded.map(DType::from) };
        let [weights, first, second, copy] = gpu::run::<B, _, 4, 4>(kernel, inputs)?;
        return Ok(([weights, first, second], rounded.map(|_| copy)));
    }
    Err(inputs)
}

/// Multiplies a tensor by a factor `[1]`.
pub fn scale<B: Backend>(tensor: &mut FloatTensor<B>, factor: &FloatTensor<B>) -> bool {
    update_in_place::<B, 1, 1>([tensor], [factor], |[factor], [values]| adamw::scale(values, factor[0]))
}

/// Updates weights, first and second moments, in this order.
pub fn update<B: Backend>(changed: [&mut FloatTensor<B>; 3], grad: &FloatTensor<B>, factors: Factors) -> bool {
    update_in_place::<B, 1, 3>(changed, [grad], |[grad], changed| adamw::update(grad, factors, changed))
}

/// Turns logits `[tokens, classes]` into the gradients of the summed losses, in the same number format on a GPU and in
/// f32 on the CPU, and the losses `[tokens]` in f32. `targets` holds one class per token, as floats in f32.
///
/// # Errors
/// Returns the logits if there are no kernels for them.
pub fn cross_entropy<B: Backend>(
    logits: FloatTensor<B>,
    targets: impl FnOnce() -> FloatTensor<B>,
) -> Result<[FloatTensor<B>; 2], FloatTensor<B>> {
    #[cfg(feature = "cuda")]
    if gpu::applies::<B>(&[&logits]) {
        return gpu::run::<B, _, 2, 2>(CrossEntropy, [logits, targets()]).map_err(|[logits, _]| logits);
    }
    let mut logits = as_f32::<B>(logits);
    if !applies::<B>(&[&logits]) {
        return Err(logits);
    }
    let targets = targets();
    let mut losses = B::float_zeros(targets.shape(), &B::float_device(&targets), FloatDType::F32);
    let changed = [&mut logits, &mut losses];
    let applied = update_in_place::<B, 1, 2>(changed, [&targets], |[targets], [logits, losses]| {
        cross_entropy::losses_and_grads(logits, targets, losses);
    });
    if applied { Ok([logits, losses]) } else { Err(logits) }
}
