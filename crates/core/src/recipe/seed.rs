//! Stateless random numbers: each stream is a pure function of the run's seed and a few counters, so a
//! resumed run draws exactly the numbers of an uninterrupted one.

/// The purpose of a stream of random numbers. Two purposes never share a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The order of the samples within an epoch.
    Order,
    /// The split into training and validation samples.
    Split,
    /// The initial weights.
    Weights,
    /// The augmentation of one sample.
    Augmentation,
    /// Random draws on the device (dropout), one seed per optimizer step and micro-batch.
    Device,
    /// Draws of a user-defined task.
    Task,
    /// Text that a language model writes as a sample.
    Samples,
}

/// Returns a 64-bit seed for `purpose`, from the run's seed and up to three counters.
#[must_use]
pub fn derive_seed(run_seed: u64, purpose: Purpose, counters: [u64; 3]) -> u64 {
    let mut state = mix_bits(run_seed ^ 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(purpose as u64 + 1));
    for counter in counters {
        state = mix_bits(state ^ mix_bits(counter.wrapping_add(0x9E37_79B9_7F4A_7C15)));
    }
    state
}

/// A small counter-based generator (`SplitMix64`: Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Stream(u64);

impl Stream {
    /// Returns the stream that starts at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the stream for `purpose` at the given counters.
    #[must_use]
    pub fn for_purpose(run_seed: u64, purpose: Purpose, counters: [u64; 3]) -> Self {
        Self(derive_seed(run_seed, purpose, counters))
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix_bits(self.0)
    }

    /// Returns a number in `0..bound`, by multiply and shift (bias below 2^-32 for bounds below 2^32).
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Returns a number in `[0, 1)` with 24 random bits, the precision of an `f32`.
    pub fn unit(&mut self) -> f32 {
        let bits = u32::try_from(self.next_u64() >> 40).unwrap_or(0);
        let numerator = bits as f32;
        numerator / 16_777_216.0
    }
}

fn mix_bits(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Purpose, Stream, derive_seed};

    #[test]
    fn streams_differ_by_purpose_and_by_every_counter() {
        let base = derive_seed(7, Purpose::Order, [1, 2, 3]);
        for other in [
            derive_seed(8, Purpose::Order, [1, 2, 3]),
            derive_seed(7, Purpose::Split, [1, 2, 3]),
            derive_seed(7, Purpose::Order, [0, 2, 3]),
            derive_seed(7, Purpose::Order, [1, 0, 3]),
            derive_seed(7, Purpose::Order, [1, 2, 0]),
            derive_seed(7, Purpose::Order, [2, 1, 3]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn splitmix_matches_the_published_first_outputs() {
        let mut stream = Stream::new(1_234_567);
        assert_eq!(stream.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(stream.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn unit_stays_in_range_and_below_respects_its_bound() {
        let mut stream = Stream::new(3);
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&stream.unit()));
            assert!(stream.below(7) < 7);
        }
    }
}
