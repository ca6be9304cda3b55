//! An update of AdamW in one pass, sums of squares, and scaling.

use crate::math::sum_of;
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows, sum_rows};

/// The numbers that a thread takes at once.
const AT_ONCE: usize = 1 << 12;

/// The factors of an update, the same for all numbers of a parameter.
#[derive(Debug, Clone, Copy)]
pub struct Factors {
    /// The clipping factor of the gradient.
    pub scale: f64,
    /// β₁ and β₂.
    pub betas: [f64; 2],
    /// lr / (1 − β₁ᵗ).
    pub rate: f64,
    /// 1 − β₂ᵗ.
    pub correction: f64,
    /// ε.
    pub epsilon: f64,
    /// 1 − lr·λ.
    pub keep: f64,
}

/// Updates weights and moments.
pub fn update(grad: &[f32], factors: Factors, [weights, first, second]: [&mut [f32]; 3]) {
    let whole = grad.len() / AT_ONCE;
    let cut = whole * AT_ONCE;
    let ((weights, w), (first, f), (second, s)) =
        (weights.split_at_mut(cut), first.split_at_mut(cut), second.split_at_mut(cut));
    let rows = |data| Rows { data, width: AT_ONCE };
    split_rows(whole, 4 * AT_ONCE, [rows(weights), rows(first), rows(second)], &|range, [weights, first, second]| {
        update_piece(&grad[range.start * AT_ONCE..range.end * AT_ONCE], factors, weights, first, second);
    });
    update_piece(&grad[cut..], factors, w, f, s);
}

for_each_simd_level! {
    fn update_piece(
        grad: &[f32],
        factors: Factors,
        weights: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let rest = factors.betas.map(|beta| (1.0 - beta) as f32);
        let betas = factors.betas.map(|beta| beta as f32);
        let Factors { scale, rate, correction, epsilon, keep, .. } = factors;
        let [scale, rate, correction, epsilon, keep] = [scale, rate, correction, epsilon, keep].map(|x| x as f32);
        for (((weight, first), second), grad) in weights.iter_mut().zip(first).zip(second).zip(grad) {
            let grad = grad * scale;
            *first = *first * betas[0] + grad * rest[0];
            *second = *second * betas[1] + grad * grad * rest[1];
            *weight = *weight * keep - *first / ((*second / correction).sqrt() + epsilon) * rate;
        }
    }
}

/// Multiplies all numbers.
pub fn scale(values: &mut [f32], factor: f32) {
    let (whole, rest) = values.split_at_mut(values.len() / AT_ONCE * AT_ONCE);
    let rows = Rows { data: whole, width: AT_ONCE };
    split_rows(rows.data.len() / AT_ONCE, AT_ONCE, [rows], &|_, [values]| {
        for value in values {
            *value *= factor;
        }
    });
    for value in rest {
        *value *= factor;
    }
}

/// Returns the sum of squares.
pub fn sum_of_squares(values: &[f32]) -> f32 {
    let mut sum = [0.0];
    let rows = values.len().div_ceil(AT_ONCE);
    sum_rows(rows, 1, &mut sum, &|range, sum| {
        let piece = &values[range.start * AT_ONCE..(range.end * AT_ONCE).min(values.len())];
        squares(piece, sum);
    });
    sum[0]
}

for_each_simd_level! {
    fn squares(values: &[f32], sum: &mut [f32]) {
        sum[0] += sum_of(values, values, |one, two| one * two);
    }
}
