//! How many bits the optimizer's moments take, and what that comes to.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Numbers that share a scale.
pub const BLOCK: usize = 256;
/// Tensors of fewer numbers stay in f32: they take next to nothing, and much hangs on each of them.
const SMALLEST: usize = 4096;

/// How many bits a number of the two moments takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MomentBits {
    /// 32-bit floats: 8 bytes a parameter.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// Blocks of 256 codes of 8 bits with a scale each: about 2 bytes a parameter.
    #[serde(rename = "8bit")]
    Eight,
}

impl MomentBits {
    /// Whether the moments of a parameter of this shape are kept as blocks of codes; those of norms,
    /// biases and small matrices never are.
    #[must_use]
    pub fn is_coded(self, shape: &[usize]) -> bool {
        self == Self::Eight && shape.len() >= 2 && shape.iter().product::<usize>() >= SMALLEST
    }

    /// Bytes that both moments of a parameter of this shape take.
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
