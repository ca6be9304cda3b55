//! 8-bit moments: blocks of 256 values, each with one f32 scale (the largest magnitude in the block) and one
//! code per value. Codes are denser near zero, as the values are:
//!
//! ```text
//! first moment    m = scale · s·k²/127²    s = ±1, k = 0..127     stored as 128 + s·k
//! second moment   v = scale · k⁴/255⁴      k = 1..255
//! ```
//! A second moment in a block that is not all zero never becomes zero: values below the lowest code are
//! rounded up to it. It is under a square root in the denominator, and a zero there next to a nonzero first
//! moment would make an unbounded update.
//!
//! Between two codes, rounding is unbiased over steps: a value is rounded up in a share of the steps equal to
//! its relative position between the codes. Always rounding up or to the nearest code would fail: an update
//! moves v by a thousandth while codes are hundredths apart, so v would climb or never move. The thresholds
//! need no random numbers: frac(i·a + t·b) at position i of a block and update t fills [0, 1) evenly along
//! both axes (a Weyl sequence), and depends only on values that a checkpoint holds.

use crate::params::{erase_rank, with_rank};
use burn::tensor::{
    FloatDType, IntDType, Shape, Tensor, TensorData,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};
use downshift_core::config::moments::BLOCK;

/// Irrational increments along a block and along time; the second moment uses them swapped.
const STEPS: [f64; 2] = [0.754_877_666_246_692_8, 0.569_840_290_998_053_2];
/// The largest f32 below 1.
const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// The moment; the two have different codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The running mean of the gradient.
    First,
    /// The running mean of its square.
    Second,
}

impl Kind {
    /// Returns the rounding thresholds for every position in a block: a value rounds up if its relative
    /// distance from the lower code plus the threshold reaches 1.
    fn thresholds(self, time: u64) -> Vec<f32> {
        let [mut along, mut over] = STEPS;
        if self == Self::Second {
            (along, over) = (over, along);
        }
        let at = |place: usize| (place as f64 * along + time as f64 * over).fract() as f32;
        (0..BLOCK).map(|place| at(place).min(BELOW_ONE)).collect()
    }

    /// Returns codes `[blocks, 256]`, 8 bits each, and scales `[blocks, 1]`, f32, for the values of a tensor
    /// after update `time`. The last block is padded with zeros.
    pub fn encode<B: Backend, const D: usize>(self, values: Tensor<B, D>, time: u64) -> (IntTensor<B>, FloatTensor<B>) {
        self.encode_by(values, self.thresholds(time))
    }

    fn encode_by<B: Backend, const D: usize>(
        self,
        values: Tensor<B, D>,
        thresholds: Vec<f32>,
    ) -> (IntTensor<B>, FloatTensor<B>) {
        let device = values.device();
        let thresholds = TensorData::new(thresholds, [1, BLOCK]);
        let thresholds = with_rank::<B, 2>(B::float_from_data(thresholds, &device));
        let values = blocks(values);
        let scales = values.clone().abs().max_dim(1);
        let share = values.clone().abs() / scales.clone().clamp_min(f32::MIN_POSITIVE);
        let codes = match self {
            Self::First => {
                let at = share.mul_scalar(127.0 * 127.0);
                let low = at.clone().sqrt().floor();
                let gap = low.clone().mul_scalar(2.0).add_scalar(1.0);
                let part = (at - low.clone().square()) / gap;
                let size = (low + (part + thresholds).floor()).clamp(0.0, 127.0);
                (size * values.sign()).add_scalar(128.0)
            }
            Self::Second => {
                let at = share.mul_scalar(255.0_f64.powi(4));
                let low = at.clone().sqrt().sqrt().floor();
                let below = low.clone().square().square();
                let gap = low.clone().add_scalar(1.0).square().square() - below.clone();
                let part = (at - below) / gap;
                (low + (part + thresholds).floor()).clamp(1.0, 255.0)
            }
        };
        (B::float_into_int(erase_rank(codes), IntDType::U8), erase_rank(scales))
    }

    /// Decodes values into their original shape. `codes` are integers stored as f32.
    pub fn decode<B: Backend>(self, codes: FloatTensor<B>, scales: FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
        let (codes, scales) = (with_rank::<B, 2>(codes), with_rank::<B, 2>(scales));
        let relative = match self {
            Self::First => {
                let size = codes.sub_scalar(128.0).div_scalar(127.0);
                size.clone() * size.abs()
            }
            Self::Second => codes.div_scalar(255.0).square().square(),
        };
        let (values, numbers) = ((relative * scales).flatten::<1>(0, 1), shape.iter().product::<usize>());
        let whole = if values.dims()[0] > numbers { values.slice(0..numbers) } else { values };
        B::float_reshape(erase_rank(whole), Shape::from(shape.to_vec()))
    }
}

/// Returns a tensor in f32, cut into blocks, `[blocks, 256]`.
fn blocks<B: Backend, const D: usize>(values: Tensor<B, D>) -> Tensor<B, 2> {
    let device = values.device();
    let flat: Tensor<B, 1> = values.flatten(0, D - 1);
    let numbers = flat.dims()[0];
    let count = numbers.div_ceil(BLOCK);
    let missing = count * BLOCK - numbers;
    if missing == 0 {
        return flat.reshape([count, BLOCK]);
    }
    let zeros = Tensor::<B, 1>::zeros([missing], &device).cast(FloatDType::F32);
    Tensor::cat(vec![flat, zeros], 0).reshape([count, BLOCK])
}

#[cfg(test)]
mod tests;
