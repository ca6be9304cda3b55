//! Moments in 8 bits: blocks of 256 numbers, one f32 scale each (the largest magnitude of the block),
//! one code a number. The codes lie denser near zero, as the numbers do:
//!
//! ```text
//! first moment    m = scale · s·k²/127²    s = ±1, k = 0..127     stored as 128 + s·k
//! second moment   v = scale · k⁴/255⁴      k = 1..255
//! ```
//! A second moment in a block that is alive never becomes zero: what is below the lowest code is
//! rounded up to it. It stands under a root in the denominator, and a zero there beside a first
//! moment that is none would make an update without bounds.
//!
//! Between two codes the number is rounded up in as large a share of the steps as it is near the upper
//! one, so that the mean over steps is right. Rounding always up, or always to the nearest, would
//! not do: an update moves v by a thousandth, codes lie hundredths apart, and v would climb or
//! stand still for ever. The thresholds need no random numbers: frac(i·a + t·b) at place i of a
//! block and update t fills [0, 1) evenly along both (a Weyl sequence), and depends on nothing that
//! a checkpoint does not hold.

use crate::config::moments::BLOCK;
use crate::train::params::{erase, ranked};
use burn::tensor::{
    FloatDType, IntDType, Shape, Tensor, TensorData,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};

/// Irrational steps along a block and along time; those of the second moment are each other's.
const STEPS: [f64; 2] = [0.754_877_666_246_692_8, 0.569_840_290_998_053_2];
/// The largest f32 below 1.
const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// Which moment: they are coded differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The mean of the gradient.
    First,
    /// The mean of its square.
    Second,
}

impl Kind {
    /// What a number's distance to the lower code is compared with, for every place in a block.
    fn thresholds(self, time: u64) -> Vec<f32> {
        let [mut along, mut over] = STEPS;
        if self == Self::Second {
            (along, over) = (over, along);
        }
        let at = |place: usize| (place as f64 * along + time as f64 * over).fract() as f32;
        (0..BLOCK).map(|place| at(place).min(BELOW_ONE)).collect()
    }

    /// Codes `[blocks, 256]`, 8 bits each, and scales `[blocks, 1]`, f32, for the numbers of a tensor
    /// after update `time`. The last block is filled up with zeros.
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
        let thresholds = ranked::<B, 2>(B::float_from_data(thresholds, &device));
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
        (B::float_into_int(erase(codes), IntDType::U8), erase(scales))
    }

    /// The numbers again, in their shape. `codes` are whole numbers in f32.
    pub fn decode<B: Backend>(self, codes: FloatTensor<B>, scales: FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
        let (codes, scales) = (ranked::<B, 2>(codes), ranked::<B, 2>(scales));
        let relative = match self {
            Self::First => {
                let size = codes.sub_scalar(128.0).div_scalar(127.0);
                size.clone() * size.abs()
            }
            Self::Second => codes.div_scalar(255.0).square().square(),
        };
        let (values, numbers) = ((relative * scales).flatten::<1>(0, 1), shape.iter().product::<usize>());
        let whole = if values.dims()[0] > numbers { values.slice(0..numbers) } else { values };
        B::float_reshape(erase(whole), Shape::from(shape.to_vec()))
    }
}

/// A tensor in f32, cut into blocks, `[blocks, 256]`.
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
