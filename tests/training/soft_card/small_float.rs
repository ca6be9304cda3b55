//! Sixteen-bit floats by their definition: the nearest of all 65536 values, and of two the even one.

/// The bits of the exponent and of the fraction.
#[derive(Clone, Copy)]
pub struct Format {
    exponent: u32,
    fraction: u32,
}

pub const HALF: Format = Format { exponent: 5, fraction: 10 };
pub const BFLOAT16: Format = Format { exponent: 8, fraction: 7 };

impl Format {
    pub fn decode(self, bits: u16) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits >> self.fraction) & ((1 << self.exponent) - 1);
        let fraction = f64::from(bits & ((1 << self.fraction) - 1)) / f64::from(1 << self.fraction);
        let offset = (1 << (self.exponent - 1)) - 1;
        match exponent {
            0 => sign * fraction * 2_f64.powi(1 - offset),
            _ if exponent == (1 << self.exponent) - 1 => {
                if fraction == 0.0 {
                    sign * f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            _ => sign * (1.0 + fraction) * 2_f64.powi(exponent - offset),
        }
    }

    /// Rounds to nearest even, beyond the greatest number as if there were one more.
    pub fn encode(self, value: f64) -> u16 {
        let infinity = ((1_u16 << self.exponent) - 1) << self.fraction;
        if value.is_nan() {
            return infinity | 1;
        }
        let magnitude = value.abs();
        // Positive values are in the order of their bits.
        let (mut below, mut above) = (0, infinity);
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            *(if self.decode(middle) <= magnitude { &mut below } else { &mut above }) = middle;
        }
        let step = self.decode(below) - self.decode(below.saturating_sub(1));
        let next = if above == infinity { self.decode(below) + step } else { self.decode(above) };
        let (to_below, to_above) = (magnitude - self.decode(below), next - magnitude);
        let is_above = if below % 2 == 1 { to_above <= to_below } else { to_above < to_below };
        (if is_above { above } else { below }) | u16::from(value.is_sign_negative()) << 15
    }
}
