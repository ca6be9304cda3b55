//! Functions of single numbers, and sums of rows, written so that the compiler turns them into SIMD.

#![expect(clippy::inline_always, reason = "compiled for the features of their callers")]

use super::super::simd::LANES;
use std::f32::consts::{LN_2, LOG2_E};

/// Adding and subtracting it rounds to an integer, which the low bits then hold: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Computes eˣ with a relative error below 2e-7; below −87 the result is about 1e-38, above 88 infinite.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
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
    sum * power(half) * power(exponent - half)
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
    for (one, two) in ones.iter().zip(twos) {
        for ((lane, one), two) in lanes.iter_mut().zip(one).zip(two) {
            *lane += term(*one, *two);
        }
    }
    let rest: f32 = one_rest.iter().zip(two_rest).map(|(one, two)| term(*one, *two)).sum();
    lanes.iter().sum::<f32>() + rest
}

/// Returns the largest value of a row, or minus infinity. NaN is ignored.
#[inline(always)]
pub fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let larger = |one: f32, two: f32| if two > one { two } else { one };
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

const _: () = assert!(LN_2 - LN_2_HIGH < 0.0, "the second part corrects the first downwards");
