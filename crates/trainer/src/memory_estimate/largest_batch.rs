//! The search for the largest micro-batch that fits.

/// The most micro-batch sizes tried.
const MAX_TRIES: usize = 12;

/// Returns the largest micro-batch that needs at most `room`: extrapolates linearly through the last two
/// sizes counted, until the answer lies between one that fits and the next one. `need` returns `None` where
/// counting would be too expensive; the search does not go beyond that.
pub fn largest_micro_batch(
    room: u64,
    known: (u64, u64),
    samples: u64,
    need: impl Fn(u64) -> Option<u64>,
) -> Option<u64> {
    let extrapolate = |(low, at_low): (u64, u64), (high, at_high): (u64, u64)| {
        let per_sample = (at_high as f64 - at_low as f64) / (high as f64 - low as f64);
        (per_sample > 0.0).then(|| low + ((room - at_low) as f64 / per_sample) as u64)
    };
    let mut fits: Option<(u64, u64)> = None;
    let mut too_large: Option<(u64, Option<u64>)> = None;
    let mut smaller: Option<(u64, u64)> = None;
    let mut next = (known.0.min(samples), Some(known.1).filter(|_| known.0 <= samples));
    for attempt in 1..=MAX_TRIES {
        match next {
            (batch, Some(bytes)) if bytes <= room => smaller = fits.replace((batch, bytes)),
            (batch, bytes) => too_large = Some((batch, bytes)),
        }
        let batch = match (fits, too_large) {
            (Some(low), None) => {
                smaller.and_then(|smaller| extrapolate(low, smaller)).unwrap_or(low.0 * 4).min(samples)
            }
            (None, Some((high, _))) => high / 4,
            (Some(low), Some((high, Some(bytes)))) if attempt % 3 != 0 => {
                extrapolate(low, (high, bytes)).unwrap_or(low.0)
            }
            (Some((low, _)), Some((high, _))) => low.midpoint(high),
            (None, None) => 0,
        };
        let (low, high) = (fits.map_or(0, |(low, _)| low), too_large.map_or(samples + 1, |(high, _)| high));
        if low + 1 >= high {
            break;
        }
        let batch = batch.clamp(low + 1, high - 1);
        next = (batch, need(batch));
    }
    fits.map(|(batch, _)| batch)
}

#[cfg(test)]
mod tests {
    use super::largest_micro_batch;

    #[test]
    fn the_largest_micro_batch_is_the_last_one_that_fits() {
        // An update that needs more memory than small micro-batches do, then 7 bytes per sample.
        let flat = |batch: u64| Some(800.max(100 + 7 * batch));
        assert_eq!(largest_micro_batch(1507, (1, 800), 1000, flat), Some(201));
        assert_eq!(largest_micro_batch(799, (4, 800), 1000, flat), None);
        let expensive = |batch: u64| (batch < 40).then_some(100 + 7 * batch);
        assert_eq!(largest_micro_batch(1 << 20, (8, 156), 1000, expensive), Some(39), "the limit of the search");
        // 100 bytes of state and 7 per sample.
        let need = |batch: u64| Some(100 + 7 * batch);
        assert_eq!(largest_micro_batch(170, (2, 114), 1000, need), Some(10));
        assert_eq!(largest_micro_batch(176, (2, 114), 1000, need), Some(10));
        assert_eq!(largest_micro_batch(177, (2, 114), 1000, need), Some(11));
        assert_eq!(largest_micro_batch(1 << 40, (2, 114), 64, need), Some(64), "at most the number of samples");
        assert_eq!(largest_micro_batch(90, (2, 114), 1000, need), None, "not even one sample");
        assert_eq!(largest_micro_batch(107, (8, 156), 1000, need), Some(1));
        assert_eq!(largest_micro_batch(107, (8, 156), 8, need), Some(1));
    }
}
