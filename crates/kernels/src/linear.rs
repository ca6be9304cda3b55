//! y = x W + b for rows x, with W `[from, to]`.

use crate::math::zip_map;
use crate::matrix::{Matrix, Output, Threads, multiply};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows, sum_rows};

/// Fills y.
pub fn forward(x: &[f32], w: &[f32], bias: Option<&[f32]>, [from, to]: [usize; 2], y: &mut [f32]) {
    let rows = y.len() / to.max(1);
    if let Some(bias) = bias {
        split_rows(rows, to, [Rows { data: y, width: to }], &|_, [y]| {
            y.chunks_exact_mut(to).for_each(|row| row.copy_from_slice(bias));
        });
    }
    let out = Output { data: y, row_stride: to, add: bias.is_some() };
    multiply(out, 1.0, Matrix::new(x, [rows, from]), Matrix::new(w, [from, to]), Threads::All);
}

/// Fills the gradient of x from that of y.
pub fn input_grad(grad: &[f32], w: &[f32], [from, to]: [usize; 2], out: &mut [f32]) {
    let grad = Matrix::new(grad, [out.len() / from.max(1), to]);
    let out = Output { data: out, row_stride: from, add: false };
    multiply(out, 1.0, grad, Matrix::new(w, [from, to]).transposed(), Threads::All);
}

/// Fills the gradient of W from that of y.
pub fn weight_grad(x: &[f32], grad: &[f32], [from, to]: [usize; 2], out: &mut [f32]) {
    let rows = grad.len() / to.max(1);
    let out = Output { data: out, row_stride: to, add: false };
    multiply(out, 1.0, Matrix::new(x, [rows, from]).transposed(), Matrix::new(grad, [rows, to]), Threads::All);
}

/// Fills the gradient of b from that of y.
pub fn bias_grad(grad: &[f32], out: &mut [f32]) {
    let to = out.len();
    sum_rows(grad.len() / to.max(1), to, out, &|range, sum| {
        add_rows(&grad[range.start * to..range.end * to], sum);
    });
}

for_each_simd_level! {
    pub(crate) fn add_rows(rows: &[f32], sum: &mut [f32]) {
        for row in rows.chunks_exact(sum.len()) {
            zip_map(sum, row, |sum, value| sum + value);
        }
    }
}
