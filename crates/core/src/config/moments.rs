//! Storage precision of the optimizer's moments, and the bytes they take.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Elements per quantization block, which share one scale.
pub const BLOCK: usize = 256;
/// Tensors with fewer elements stay in f32: they take little memory, and their precision matters more.
const SMALLEST: usize = 4096;

/// Bits per element of the two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MomentBits {
    /// 32-bit floats: 8 bytes per parameter for both moments.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// Blocks of 256 8-bit codes with one scale each: about 2 bytes per parameter.
    #[serde(rename = "8bit")]
    Eight,
}

impl MomentBits {
    /// Reports whether the moments of a parameter of this shape are quantized; never for norms, biases
    /// and small matrices.
    #[must_use]
    pub fn is_coded(self, shape: &[usize]) -> bool {
        self == Self::Eight && shape.len() >= 2 && shape.iter().product::<usize>() >= SMALLEST
    }

    /// Returns the bytes of both moments for a parameter of this shape.
    #[must_use]
    pub fn bytes(self, shape: &[usize]) -> u64 {
        let numbers = shape.iter().product::<usize>() as u64;
        if self.is_coded(shape) { numbers.div_ceil(BLOCK as u64) * (BLOCK as u64 + 4) * 2 } else { numbers * 8 }
    }
}

impl fmt::Display for MomentBits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "f32",
            Self::Eight => "8bit",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::MomentBits::{Eight, F32};

    #[test]
    fn large_matrices_take_a_quarter_and_a_little() {
        let table: [(&[usize], u64, u64); 4] = [
            (&[64, 64], 32_768, 8_320),
            (&[64, 63], 32_256, 32_256),
            (&[1 << 20], 8 << 20, 8 << 20),
            (&[50_257, 768], 308_779_008, 78_400_920),
        ];
        for (shape, whole, coded) in table {
            assert_eq!((F32.bytes(shape), Eight.bytes(shape)), (whole, coded), "{shape:?}");
        }
    }
}
