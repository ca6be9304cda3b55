//! Layer norm and RMS norm of rows, optionally followed by ReLU.
//!
//! ```text
//! x̂ = (x − μ) r    r = 1 / √(mean((x − μ)²) + ε)    y = x̂ γ + β        (RMS norm: μ = 0, no β)
//! d = g γ          grad of x = r (d − mean(d) − x̂ mean(d x̂))           (RMS norm: without mean(d))
//! ```

use crate::math::{sum_of, zip_map, zip_map2};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows, sum_rows};
use std::ops::Range;

/// A norm's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// γ.
    pub gamma: &'a [f32],
    /// β; `None` makes it an RMS norm.
    pub beta: Option<&'a [f32]>,
    /// ε.
    pub epsilon: f32,
    /// Whether ReLU follows; needs β.
    pub relu: bool,
}

/// The gradients of a norm, each filled if it is wanted.
pub struct NormGrads<'a> {
    /// Of x.
    pub x: Option<&'a mut [f32]>,
    /// Of γ.
    pub gamma: Option<&'a mut [f32]>,
    /// Of β.
    pub beta: Option<&'a mut [f32]>,
}

/// Fills `y`, and `stats` with μ and r of each row.
pub fn forward(x: &[f32], norm: Norm<'_>, y: &mut [f32], stats: &mut [f32]) {
    let width = norm.gamma.len();
    let outputs = [Rows { data: y, width }, Rows { data: stats, width: 2 }];
    split_rows(x.len() / width.max(1), 3 * width, outputs, &|rows, [y, stats]| {
        forward_rows(&x[rows.start * width..rows.end * width], norm, y, stats);
    });
}

for_each_simd_level! {
    fn forward_rows(x: &[f32], norm: Norm<'_>, y: &mut [f32], stats: &mut [f32]) {
        let Norm { gamma, beta, epsilon, relu } = norm;
        let width = gamma.len();
        for ((x, y), stats) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats.as_chunks_mut::<2>().0) {
            let mean = if beta.is_some() { sum_of(x, x, |x, _| x) / width as f32 } else { 0.0 };
            let square = sum_of(x, x, |x, _| (x - mean) * (x - mean)) / width as f32;
            let rate = 1.0 / (square + epsilon).sqrt();
            *stats = [mean, rate];
            zip_map2(y, x, gamma, |_, x, gamma| (x - mean) * rate * gamma);
            match beta {
                Some(beta) if relu => zip_map(y, beta, |y, beta| if y + beta < 0.0 { 0.0 } else { y + beta }),
                Some(beta) => zip_map(y, beta, |y, beta| y + beta),
                None => {}
            }
        }
    }
}

/// Fills the gradients from `grad`, that of y.
pub fn backward([x, stats, grad]: [&[f32]; 3], norm: Norm<'_>, wanted: NormGrads<'_>) {
    let width = norm.gamma.len();
    let rows = x.len() / width.max(1);
    let part = |range: &Range<usize>| {
        let numbers = range.start * width..range.end * width;
        [&x[numbers.clone()], &stats[2 * range.start..2 * range.end], &grad[numbers]]
    };
    if let Some(out) = wanted.x {
        split_rows(rows, 6 * width, [Rows { data: out, width }], &|range, [out]| {
            input_grads(part(&range), norm, out);
        });
    }
    if wanted.gamma.is_none() && wanted.beta.is_none() {
        return;
    }
    let mut both = vec![0.0; 2 * width];
    sum_rows(rows, 2 * width, &mut both, &|range, sum| parameter_grads(part(&range), norm, sum));
    let (gamma, beta) = both.split_at(width);
    for (out, sum) in [(wanted.gamma, gamma), (wanted.beta, beta)] {
        if let Some(out) = out {
            out.copy_from_slice(sum);
        }
    }
}

for_each_simd_level! {
    fn input_grads(inputs: [&[f32]; 3], norm: Norm<'_>, out: &mut [f32]) {
        let [x, stats, grad] = inputs;
        let width = norm.gamma.len();
        let rows = x.chunks_exact(width).zip(stats.as_chunks::<2>().0).zip(grad.chunks_exact(width));
        for (((x, [mean, rate]), grad), out) in rows.zip(out.chunks_exact_mut(width)) {
            scaled_grads(x, [*mean, *rate], grad, norm, out);
            let centre = if norm.beta.is_some() { sum_of(out, out, |d, _| d) / width as f32 } else { 0.0 };
            let slope = sum_of(out, x, |d, x| d * (x - mean) * rate) / width as f32;
            zip_map(out, x, |d, x| rate * (d - centre - (x - mean) * rate * slope));
        }
    }
}

for_each_simd_level! {
    fn parameter_grads(inputs: [&[f32]; 3], norm: Norm<'_>, sum: &mut [f32]) {
        let [x, stats, grad] = inputs;
        let width = norm.gamma.len();
        let (gammas, betas) = sum.split_at_mut(width);
        let beta = norm.beta.filter(|_| norm.relu);
        // 1 where ReLU passed its input on, 0 elsewhere.
        let mut open = vec![0.0; width];
        let rows = x.chunks_exact(width).zip(stats.as_chunks::<2>().0).zip(grad.chunks_exact(width));
        for ((x, [mean, rate]), grad) in rows {
            if let Some(beta) = beta {
                open.copy_from_slice(x);
                zip_map2(&mut open, norm.gamma, beta, |x, gamma, beta| {
                    if (x - mean) * rate * gamma + beta > 0.0 { 1.0 } else { 0.0 }
                });
                zip_map2(betas, grad, &open, |sum, grad, open| sum + grad * open);
                zip_map(&mut open, grad, |open, grad| open * grad);
                zip_map2(gammas, x, &open, |sum, x, grad| sum + grad * ((x - mean) * rate));
            } else {
                zip_map(betas, grad, |sum, grad| sum + grad);
                zip_map2(gammas, x, grad, |sum, x, grad| sum + grad * ((x - mean) * rate));
            }
        }
    }
}

/// Fills `out` with g γ, or 0 where ReLU was 0.
#[expect(clippy::inline_always, reason = "compiled for the features of its caller")]
#[inline(always)]
fn scaled_grads(x: &[f32], [mean, rate]: [f32; 2], grad: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    if let Some(beta) = norm.beta.filter(|_| norm.relu) {
        zip_map2(out, x, norm.gamma, |_, x, gamma| (x - mean) * rate * gamma);
        zip_map2(out, beta, grad, |y, beta, grad| if y + beta > 0.0 { grad } else { 0.0 });
        zip_map(out, norm.gamma, |grad, gamma| grad * gamma);
    } else {
        zip_map2(out, grad, norm.gamma, |_, grad, gamma| grad * gamma);
    }
}
