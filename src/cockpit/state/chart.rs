//! Which part of the curve is seen, and how.

/// The chart's settings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Chart {
    /// Steps from edge to edge; none = the whole run.
    span: Option<f64>,
    /// The right edge; none = the newest step.
    end: Option<f64>,
    /// Logarithmic values.
    pub log: bool,
    /// Which of [`SMOOTHING`].
    smoothing: usize,
}

/// The weights that one key goes through.
pub const SMOOTHING: [f64; 4] = [0.9, 0.97, 0.0, 0.6];

const NEAREST: f64 = 16.0;

impl Chart {
    /// The weight of the past in the smoothed curve; 0 = none.
    #[must_use]
    pub fn weight(&self) -> f64 {
        SMOOTHING[self.smoothing % SMOOTHING.len()]
    }

    /// The next weight.
    pub fn next_smoothing(&mut self) {
        self.smoothing = (self.smoothing + 1) % SMOOTHING.len();
    }

    /// True while the whole run is seen.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.span.is_none()
    }

    /// True while the right edge is the newest step.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.end.is_none()
    }

    /// First and last step seen, for a curve from `first` to `last`.
    #[must_use]
    pub fn window(&self, first: u64, last: u64) -> (f64, f64) {
        let (first, last) = (first as f64, last as f64);
        let Some(span) = self.span.filter(|span| *span < last - first) else { return (first, last) };
        let end = self.end.unwrap_or(last).clamp(first + span, last);
        (end - span, end)
    }

    /// Half or twice the steps; the right edge stays where the newest step is followed, else the middle.
    pub fn zoom(&mut self, factor: f64, ends: Option<(u64, u64)>) {
        let Some((first, last)) = ends else { return };
        let (start, end) = self.window(first, last);
        let whole = (last - first) as f64;
        let span = ((end - start) * factor).max(NEAREST);
        if span >= whole {
            return self.fit();
        }
        self.span = Some(span);
        self.end = self.end.map(|end| end - (end - start) / 2.0 + span / 2.0).filter(|end| *end < last as f64);
    }

    /// A quarter of what is seen towards older (negative) or newer steps.
    pub fn pan(&mut self, quarters: f64, ends: Option<(u64, u64)>) {
        let (Some((first, last)), Some(span)) = (ends, self.span) else { return };
        let end = self.end.unwrap_or(last as f64) + span * quarters / 4.0;
        self.end = (end < last as f64).then_some(end.max(first as f64 + span));
    }

    /// The whole run.
    pub fn fit(&mut self) {
        self.span = None;
        self.end = None;
    }
}

#[cfg(test)]
mod tests {
    use super::Chart;
    use proptest::prelude::*;

    #[test]
    fn zoom_follows_the_newest_step_until_panned() {
        let mut chart = Chart::default();
        chart.zoom(0.5, Some((1, 1001)));
        assert_eq!(chart.window(1, 1001), (501.0, 1001.0));
        assert_eq!(chart.window(1, 1101), (601.0, 1101.0));
        chart.pan(-1.0, Some((1, 1101)));
        assert_eq!(chart.window(1, 1101), (476.0, 976.0));
        assert_eq!(chart.window(1, 2000), (476.0, 976.0));
        chart.pan(100.0, Some((1, 1101)));
        assert!(chart.follows());
        chart.fit();
        assert_eq!(chart.window(1, 2000), (1.0, 2000.0));
    }

    proptest! {
        #[test]
        fn the_window_stays_within_the_run(
            moves in proptest::collection::vec((0u8..4, 1u64..10_000), 0..40), first in 0u64..100,
        ) {
            let mut chart = Chart::default();
            for (what, length) in moves {
                let ends = Some((first, first + length));
                match what {
                    0 => chart.zoom(0.5, ends),
                    1 => chart.zoom(2.0, ends),
                    2 => chart.pan(-1.0, ends),
                    _ => chart.pan(1.0, ends),
                }
                let (start, end) = chart.window(first, first + length);
                prop_assert!(start >= first as f64 && end <= (first + length) as f64 && start <= end);
            }
        }
    }
}
