//! A share that can be drawn: finite and within 0 to 1, whatever it was made of.

/// A share of 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// The share, held within 0 to 1; none where it is no number.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        share.is_finite().then(|| Self(share.clamp(0.0, 1.0)))
    }

    /// A part of a whole; none where there is no whole.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        if whole == 0 { None } else { Self::new(part as f64 / whole as f64) }
    }

    /// The share.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Ratio;

    #[test]
    fn what_is_no_share_is_none() {
        assert_eq!(Ratio::new(f64::NAN), None);
        assert_eq!(Ratio::new(f64::INFINITY), None);
        assert_eq!(Ratio::of(1, 0), None);
        assert_eq!(Ratio::new(1.7).map(Ratio::get), Some(1.0));
        assert_eq!(Ratio::of(1, 4).map(Ratio::get), Some(0.25));
    }
}
