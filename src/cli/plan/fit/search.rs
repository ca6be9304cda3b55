//! The search for the largest value that fits: doubled until one is too large, then halved into the gap. Pure.

/// No value above this is tried: memory that does not grow with the knob never ends the doubling.
const MOST: u64 = 1 << 16;

/// The bounds found so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    start: u64,
    /// The largest value that fits; 0 if none is known.
    fits: u64,
    /// The smallest value that is too large.
    too_large: Option<u64>,
}

impl Search {
    /// Creates the search. `start` is tried first.
    pub fn new(start: u64) -> Self {
        Self { start: start.max(1), fits: 0, too_large: None }
    }

    /// Returns the next value to try; none once the answer is known.
    pub fn next(&self) -> Option<u64> {
        match (self.fits, self.too_large) {
            (0, None) => Some(self.start),
            (fits, None) => Some(fits.saturating_mul(2).min(MOST)).filter(|next| *next > fits),
            (fits, Some(too_large)) => Some(fits + (too_large - fits) / 2).filter(|next| *next > fits),
        }
    }

    /// Records whether a value fits.
    pub fn record(&mut self, value: u64, fits: bool) {
        if fits {
            self.fits = self.fits.max(value);
        } else {
            self.too_large = Some(self.too_large.map_or(value, |least| least.min(value)));
        }
    }

    /// Returns the largest value known to fit.
    pub fn largest(&self) -> Option<u64> {
        Some(self.fits).filter(|fits| *fits > 0)
    }

    /// Reports whether nothing was too large.
    pub fn is_unbounded(&self) -> bool {
        self.too_large.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Search};

    /// Searches where everything up to `limit` fits; returns the answer and the values tried.
    fn find(start: u64, limit: u64) -> (Option<u64>, Vec<u64>) {
        let (mut search, mut tried) = (Search::new(start), Vec::new());
        while let Some(value) = search.next() {
            tried.push(value);
            search.record(value, value <= limit);
        }
        (search.largest(), tried)
    }

    #[test]
    fn the_largest_value_is_exact_and_no_value_is_tried_twice() {
        for start in [1, 4, 7, 64] {
            for limit in 0..300 {
                let (largest, tried) = find(start, limit);
                assert_eq!(largest, Some(limit).filter(|limit| *limit > 0), "from {start}");
                let mut once = tried.clone();
                once.sort_unstable();
                once.dedup();
                assert_eq!(once.len(), tried.len(), "{tried:?}");
                assert!(tried.len() <= 18, "{tried:?}");
            }
        }
        assert_eq!(find(4, 12).1, [4, 8, 16, 12, 14, 13]);
        assert_eq!(find(8, 3).1, [8, 4, 2, 3]);
    }

    #[test]
    fn a_knob_without_effect_on_memory_ends_the_search() {
        let (largest, tried) = find(4, u64::MAX);
        assert_eq!((largest, tried.len()), (Some(MOST), 15));
        assert_eq!(find(2 * MOST, u64::MAX), (Some(2 * MOST), vec![2 * MOST]));
    }
}
