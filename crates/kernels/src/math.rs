//! Functions of single numbers, and loops over rows, written so that the compiler turns them into SIMD.
//!
//! Loops over the numbers of a row count an index: the release profile compiles a crate in parts without inlining
//! between them, and `Iterator::zip` calls functions that may end in another part.

#![expect(clippy::inline_always, reason = "compiled for the features of their callers")]
#![expect(clippy::needless_range_loop, reason = "as above")]

use crate::simd::LANES;
use std::f32::consts::LOG2_E;

/// Adding and subtracting it rounds to an integer, which the low bits then hold: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Computes eˣ with a relative error below 2e-7; below −87 the result is 0, above 88.8 infinite.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Subnormal results would slow down all that follows.
    let vanishes = x < -87.0;
    let x = x.clamp(-87.0, 88.8);
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    // The Taylor polynomial: |rest| is at most ln 2 / 2.
    let mut sum = 1.0 / 5_040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + term;
    }
    // 2^whole in two factors, because 2^128 is no f32.
    let exponent = (shifted.to_bits() << 9).cast_signed() >> 9;
    let half = exponent >> 1;
    let power = |exponent: i32| f32::from_bits(((exponent + 127) << 23).cast_unsigned());
    let result = sum * power(half) * power(exponent - half);
    if vanishes { 0.0 } else { result }
}

/// Returns Φ(x), the normal distribution, and its density φ(x). The absolute error is below 3e-7 (Abramowitz and
/// Stegun, "Handbook of Mathematical Functions", 1964, 7.1.26).
#[inline(always)]
pub fn normal(x: f32) -> [f32; 2] {
    let bell = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let mut sum = 1.061_405_4;
    for term in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        sum = sum * t + term;
    }
    let tail = 0.5 * sum * t * bell;
    let below = if x > 0.0 { 1.0 - tail } else { tail };
    [below, bell * 0.398_942_3]
}

/// Computes 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes tanh x.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// Sums `term` over two rows of the same length.
#[inline(always)]
pub fn sum_of(one: &[f32], two: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((ones, one_rest), (twos, two_rest)) = (one.as_chunks::<LANES>(), two.as_chunks::<LANES>());
    let twos = &twos[..ones.len()];
    for at in 0..ones.len() {
        for lane in 0..LANES {
            lanes[lane] += term(ones[at][lane], twos[at][lane]);
        }
    }
    let mut sum = 0.0;
    for lane in 0..LANES {
        sum += lanes[lane];
    }
    let two_rest = &two_rest[..one_rest.len()];
    for at in 0..one_rest.len() {
        sum += term(one_rest[at], two_rest[at]);
    }
    sum
}

/// Replaces each number of a row by a function of it and the number of another row.
#[inline(always)]
pub fn zip_map(row: &mut [f32], other: &[f32], by: impl Fn(f32, f32) -> f32) {
    let other = &other[..row.len()];
    for at in 0..row.len() {
        row[at] = by(row[at], other[at]);
    }
}

/// Replaces each number of a row by a function of it and the numbers of two other rows.
#[inline(always)]
pub fn zip_map2(row: &mut [f32], one: &[f32], two: &[f32], by: impl Fn(f32, f32, f32) -> f32) {
    let (one, two) = (&one[..row.len()], &two[..row.len()]);
    for at in 0..row.len() {
        row[at] = by(row[at], one[at], two[at]);
    }
}

/// Replaces each number of a row by e^(number − highest), and returns their sum.
#[inline(always)]
pub fn exponentiate(row: &mut [f32], highest: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for at in 0..chunks.len() {
        for lane in 0..LANES {
            chunks[at][lane] = exp(chunks[at][lane] - highest);
            lanes[lane] += chunks[at][lane];
        }
    }
    let mut sum = 0.0;
    for lane in 0..LANES {
        sum += lanes[lane];
    }
    for at in 0..rest.len() {
        rest[at] = exp(rest[at] - highest);
        sum += rest[at];
    }
    sum
}

/// Returns the largest value of a row, or minus infinity. NaN is ignored.
#[inline(always)]
pub fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let larger = |one: f32, two: f32| if two > one { two } else { one };
    for at in 0..chunks.len() {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunks[at][lane]);
        }
    }
    let mut most = f32::NEG_INFINITY;
    for lane in 0..LANES {
        most = larger(most, lanes[lane]);
    }
    for at in 0..rest.len() {
        most = larger(most, rest[at]);
    }
    most
}
