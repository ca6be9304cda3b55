//! Which part of the curves is seen, and how.

use crate::cockpit::series::Axis;

/// The charts' settings: all charts share them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Chart {
    /// From edge to edge, in units of the axis; none = the whole run.
    span: Option<f64>,
    /// The right edge; none = the newest step.
    end: Option<f64>,
    /// Logarithmic values.
    pub log: bool,
    /// What the charts are drawn over.
    pub axis: Axis,
    /// Where exact values are read, in units of the axis.
    pub cursor: Option<f64>,
    /// Which of [`SMOOTHING`].
    smoothing: usize,
}

/// The weights of the past that one key goes through.
pub const SMOOTHING: [f64; 5] = [0.9, 0.97, 0.99, 0.0, 0.6];

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

    /// Takes the weight nearest to this one.
    pub fn set_weight(&mut self, weight: f64) {
        let off = |place: &usize| (SMOOTHING[*place] - weight).abs();
        self.smoothing = (0..SMOOTHING.len()).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
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

    /// First and last place seen, for a curve from `first` to `last`.
    #[must_use]
    pub fn window(&self, (first, last): (f64, f64)) -> (f64, f64) {
        match (self.span, self.end) {
            (Some(span), end) if span < last - first => {
                let end = end.unwrap_or(last).clamp(first + span, last);
                (end - span, end)
            }
            // Held still: what is new stays outside.
            (None, Some(end)) if end > first && end < last => (first, end),
            _ => (first, last),
        }
    }

    /// Fewer (a factor below 1) or more of the curve, but no less than `nearest`; the right edge
    /// stays where the newest step is followed, else the cursor or the middle.
    pub fn zoom(&mut self, factor: f64, ends: Option<(f64, f64)>, nearest: f64) {
        let Some((first, last)) = ends else { return };
        let (start, end) = self.window((first, last));
        let span = ((end - start) * factor).max(nearest);
        // Nearly all is all: the run has grown since the look came nearer.
        if span >= (last - first) * 0.9 {
            return self.fit();
        }
        if self.end.is_some() || self.cursor.is_some() {
            let at = self.cursor.filter(|at| (start..=end).contains(at)).unwrap_or(f64::midpoint(start, end));
            let share = if end > start { (end - at) / (end - start) } else { 0.0 };
            self.end = Some(at + span * share).filter(|end| *end < last);
        }
        self.span = Some(span);
    }

    /// Quarters of what is seen towards older (negative) or newer steps.
    pub fn pan(&mut self, quarters: f64, ends: Option<(f64, f64)>) {
        let (Some((first, last)), Some(span)) = (ends, self.span) else { return };
        let end = self.end.unwrap_or(last) + span * quarters / 4.0;
        self.end = (end < last).then_some(end.max(first + span));
    }

    /// Moves the cursor by a share of what is seen; it begins at the right edge.
    pub fn move_cursor(&mut self, share: f64, ends: Option<(f64, f64)>) {
        let Some(ends) = ends else { return };
        let (start, end) = self.window(ends);
        let at = self.cursor.unwrap_or(end) + (end - start) * share;
        let at = at.clamp(ends.0, ends.1);
        self.cursor = Some(at);
        // What is read is seen.
        if let Some(span) = self.span.filter(|_| at < start || at > end) {
            let end = if at < start { at + span } else { at };
            self.end = (end < ends.1).then_some(end);
        }
    }

    /// The whole run.
    pub fn fit(&mut self) {
        self.span = None;
        self.end = None;
    }

    /// Follows the newest step, or holds what is seen still.
    pub fn follow(&mut self, ends: Option<(f64, f64)>) {
        self.end = match (self.end, ends) {
            (None, Some(ends)) => Some(self.window(ends).1),
            _ => None,
        };
    }

    /// Goes over to another axis; `place` brings a place on the old one to the new one.
    pub fn over(&mut self, axis: Axis, ends: Option<(f64, f64)>, place: impl Fn(f64) -> Option<f64>) {
        let window = ends.map(|ends| self.window(ends)).filter(|_| self.span.is_some());
        let moved = window.and_then(|(start, end)| Some((place(start)?, place(end)?)));
        self.cursor = self.cursor.and_then(&place);
        self.end = self.end.and_then(&place);
        self.span = moved.map(|(start, end)| end - start).filter(|span| *span > 0.0);
        self.axis = axis;
    }
}

#[cfg(test)]
mod tests {
    use super::Chart;
    use proptest::prelude::*;

    #[test]
    fn zoom_follows_the_newest_step_until_panned() {
        let mut chart = Chart::default();
        chart.zoom(0.5, Some((1.0, 1001.0)), 16.0);
        assert_eq!(chart.window((1.0, 1001.0)), (501.0, 1001.0));
        assert_eq!(chart.window((1.0, 1101.0)), (601.0, 1101.0));
        chart.pan(-1.0, Some((1.0, 1101.0)));
        assert_eq!(chart.window((1.0, 1101.0)), (476.0, 976.0));
        assert_eq!(chart.window((1.0, 2000.0)), (476.0, 976.0));
        chart.pan(100.0, Some((1.0, 1101.0)));
        assert!(chart.follows());
        chart.fit();
        assert_eq!(chart.window((1.0, 2000.0)), (1.0, 2000.0));
    }

    #[test]
    fn what_is_held_still_stays_and_the_cursor_is_seen() {
        let mut chart = Chart::default();
        chart.follow(Some((1.0, 100.0)));
        assert_eq!(chart.window((1.0, 200.0)), (1.0, 100.0));
        chart.follow(Some((1.0, 200.0)));
        assert_eq!(chart.window((1.0, 200.0)), (1.0, 200.0));
        chart.zoom(0.25, Some((0.0, 400.0)), 16.0);
        chart.move_cursor(-2.0, Some((0.0, 400.0)));
        let (start, end) = chart.window((0.0, 400.0));
        assert_eq!(chart.cursor, Some(200.0));
        assert!((start..=end).contains(&200.0), "{start} {end}");
    }

    proptest! {
        #[test]
        fn the_window_stays_within_the_run(
            moves in proptest::collection::vec((0u8..7, 1u32..10_000), 0..40), first in 0u32..100,
        ) {
            let mut chart = Chart::default();
            for (what, length) in moves {
                let (first, last) = (f64::from(first), f64::from(first + length));
                let ends = Some((first, last));
                match what {
                    0 => chart.zoom(0.5, ends, 16.0),
                    1 => chart.zoom(2.0, ends, 16.0),
                    2 => chart.pan(-1.0, ends),
                    3 => chart.follow(ends),
                    4 => chart.move_cursor(-0.3, ends),
                    5 => chart.move_cursor(0.1, ends),
                    _ => chart.pan(1.0, ends),
                }
                let (start, end) = chart.window((first, last));
                prop_assert!(start >= first && end <= last && start <= end);
            }
        }
    }
}
