//! Rows of tensors in memory, and sums over the threads of a row.

use super::GpuTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype};
use cubecl::prelude::*;

/// The most bytes that a thread reads at once.
const VECTOR_BYTES: usize = 16;
/// The most threads of a row.
const MAX_THREADS: usize = 512;
/// The threads of a plane on NVIDIA's GPUs.
const PLANE: usize = 32;
/// The most planes of a row.
pub const MAX_PLANES: usize = MAX_THREADS / PLANE;

/// Returns the tensor with its rows at equal distances, in a copy if they are not.
pub fn in_rows(tensor: GpuTensor) -> GpuTensor {
    if row_stride(&tensor).is_some() { tensor } else { into_contiguous(tensor) }
}

/// Returns the distance of rows in numbers, if the last dimension is contiguous and all rows have the same distance.
fn row_stride(tensor: &GpuTensor) -> Option<usize> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let (width, outer) = (*shape.last()?, shape.len() - 1);
    if width > 1 && strides[outer] != 1 {
        return None;
    }
    let mut dims = (0..outer).rev().filter(|dim| shape[*dim] > 1);
    let Some(inner) = dims.next() else { return Some(width) };
    let (stride, mut expected) = (strides[inner], strides[inner] * shape[inner]);
    for dim in dims {
        if strides[dim] != expected {
            return None;
        }
        expected *= shape[dim];
    }
    (stride >= width).then_some(stride)
}

/// The rows of several tensors of the same width.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Their number.
    pub count: usize,
    /// The numbers in a row.
    pub width: usize,
    /// The numbers that a thread reads at once.
    pub vector: usize,
}

impl Rows {
    /// Returns the rows of tensors in this number format, which are [`in_rows`].
    pub fn of(tensors: &[&GpuTensor]) -> Self {
        let shape = tensors[0].shape();
        let width = shape[shape.num_dims() - 1];
        let fits = |vector: usize| {
            let strides = tensors.iter().map(|tensor| row_stride(tensor).unwrap_or(1));
            width.is_multiple_of(vector)
                && strides.into_iter().all(|stride| stride.is_multiple_of(vector))
                && tensors.iter().all(|tensor| vector * tensor.elem_size() <= VECTOR_BYTES)
        };
        let vector = [8, 4, 2].into_iter().find(|vector| fits(*vector)).unwrap_or(1);
        Self { count: shape.num_elements() / width, width, vector }
    }

    /// Returns the vectors in a row.
    pub fn vectors(&self) -> usize {
        self.width / self.vector
    }

    /// Returns the distance of a tensor's rows in vectors.
    pub fn stride(&self, tensor: &GpuTensor) -> usize {
        row_stride(tensor).unwrap_or(self.width) / self.vector
    }

    /// Returns the threads of a row.
    pub fn threads(&self) -> CubeDim {
        CubeDim::new_1d(self.vectors().next_multiple_of(PLANE).min(MAX_THREADS) as u32)
    }
}

/// Returns a new tensor like another.
pub fn empty_like(tensor: &GpuTensor) -> GpuTensor {
    empty_like_as(tensor, tensor.dtype)
}

/// Returns a new tensor of the shape of another.
pub fn empty_like_as(tensor: &GpuTensor, dtype: DType) -> GpuTensor {
    empty_device_dtype(tensor.client.clone(), tensor.device.clone(), tensor.shape(), dtype)
}

/// Returns a new contiguous tensor in f32 on the device of another.
pub fn empty_f32(tensor: &GpuTensor, shape: impl Into<Shape>) -> GpuTensor {
    empty_device_contiguous_dtype(tensor.client.clone(), tensor.device.clone(), shape.into(), DType::F32)
}

/// Returns the output that is written over the first input if nothing else holds it, and its argument.
pub fn output_over(first: &GpuTensor) -> (GpuTensor, TensorArg<super::GpuRuntime>) {
    output_over_input(first, 0)
}

/// Returns the output that is written over the input at `place` if nothing else holds it, and its argument.
pub fn output_over_input(input: &GpuTensor, place: usize) -> (GpuTensor, TensorArg<super::GpuRuntime>) {
    if input.handle.can_mut() {
        let argument = input.as_tensor_alias(place);
        (input.clone(), argument)
    } else {
        let output = empty_like(input);
        (output.clone(), output.into_tensor_arg())
    }
}

/// Sums a value over the threads of a cube.
#[cube]
pub fn cube_sum(value: f32, parts: &mut SharedMemory<f32>) -> f32 {
    let in_plane = plane_sum(value);
    sync_cube();
    if UNIT_POS_PLANE == 0 {
        parts[(UNIT_POS / PLANE_DIM) as usize] = in_plane;
    }
    sync_cube();
    let mut sum = f32::new(0.0);
    for plane in 0..CUBE_DIM / PLANE_DIM {
        sum += parts[plane as usize];
    }
    sum
}

/// Returns the highest value of the threads of a cube.
#[cube]
pub fn cube_max(value: f32, parts: &mut SharedMemory<f32>) -> f32 {
    let in_plane = plane_max(value);
    sync_cube();
    if UNIT_POS_PLANE == 0 {
        parts[(UNIT_POS / PLANE_DIM) as usize] = in_plane;
    }
    sync_cube();
    let mut highest = parts[0];
    for plane in 0..CUBE_DIM / PLANE_DIM {
        highest = max(highest, parts[plane as usize]);
    }
    highest
}
