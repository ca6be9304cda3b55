//! Sums of tensors in f32, without a copy of each in f32.

use super::layout::{Rows, in_rows, output_over_input};
use super::{GpuTensor, Kernel};
use burn::tensor::{DType, Shape};
use cubecl::prelude::*;

/// Adds a tensor to a sum of its shape in f32, in place.
#[derive(Debug, Clone, Copy)]
pub struct AddToSum;

impl Kernel<2, 1> for AddToSum {
    const NAME: &'static str = "add_to_sum";

    fn outputs(&self, [sum, _]: [(Shape, DType); 2]) -> [(Shape, DType); 1] {
        [sum]
    }

    fn launch(&self, inputs: [GpuTensor; 2]) -> [GpuTensor; 1] {
        let [sum, x] = inputs.map(in_rows);
        let (output, argument) = output_over_input(&sum, 0);
        let all = [&sum, &x, &output];
        let rows = Rows::of(&all);
        let strides = all.map(|tensor| rows.stride(tensor));
        let (client, dtype) = (x.client.clone(), x.dtype);
        add_to_sum::launch(
            &client,
            CubeCount::new_1d(rows.count as u32),
            rows.threads(),
            rows.vector,
            sum.into_tensor_arg(),
            x.into_tensor_arg(),
            argument,
            rows.vectors(),
            strides[0],
            strides[1],
            strides[2],
            dtype.into(),
        );
        [output]
    }
}

#[cube(launch)]
fn add_to_sum<F: Float, N: Size>(
    sum: &Tensor<Vector<f32, N>>,
    x: &Tensor<Vector<F, N>>,
    output: &mut Tensor<Vector<f32, N>>,
    vectors: usize,
    sum_stride: usize,
    x_stride: usize,
    output_stride: usize,
    #[define(F)] _dtype: StorageType,
) {
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(x[CUBE_POS * x_stride + at]);
        output[CUBE_POS * output_stride + at] = sum[CUBE_POS * sum_stride + at] + x;
        at += CUBE_DIM as usize;
    }
}
