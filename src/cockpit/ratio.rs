//! A ratio that is safe to draw: always finite and within 0 to 1.

/// A ratio of 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// Creates a ratio, clamped to 0 to 1; returns `None` for NaN.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        share.is_finite().then(|| Self(share.clamp(0.0, 1.0)))
    }

    /// Returns the ratio of a part to a whole; `None` if the whole is empty.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        if whole == 0 { None } else { Self::new(part as f64 / whole as f64) }
    }

    /// Returns the value.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Ratio;

    #[test]
    fn a_value_that_is_not_finite_has_no_ratio() {
        assert_eq!(Ratio::new(f64::NAN), None);
        assert_eq!(Ratio::new(f64::INFINITY), None);
        assert_eq!(Ratio::of(1, 0), None);
        assert_eq!(Ratio::new(1.7).map(Ratio::get), Some(1.0));
        assert_eq!(Ratio::of(1, 4).map(Ratio::get), Some(0.25));
    }
}
