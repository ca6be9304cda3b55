//! The tasks shipped with downshift, built on the same traits as user-defined tasks.

pub mod cells;
pub(crate) mod files;
pub mod lm;
mod norm;
pub mod search;
pub mod vision;

use burn::tensor::{DType, FloatDType, Tensor, backend::Backend};

/// Returns a tensor in f32: sums over classes or rows lose digits in half precision.
fn in_f32<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(FloatDType::F32) }
}
