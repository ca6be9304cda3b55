//! Visible window of the curves, and how they are drawn.

use crate::series::Axis;

/// Chart settings, shared by all charts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Chart {
    /// Width of the window in units of the axis; `None` shows the whole run.
    span: Option<f64>,
    /// Right edge of the window; `None` follows the newest step.
    end: Option<f64>,
    /// How values are mapped to rows.
    pub scale: ValueScale,
    /// X axis of the charts.
    pub axis: Axis,
    /// Cursor where exact values are read, in units of the axis.
    pub cursor: Option<f64>,
    /// Index into [`SMOOTHING`].
    smoothing: usize,
}

/// How the values of a chart are mapped to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValueScale {
    /// Logarithmic for a loss that spans more than two decades, otherwise linear.
    #[default]
    Automatic,
    /// Linear, as chosen by the user.
    Linear,
    /// Logarithmic, as chosen by the user.
    Log,
}

/// Ratio of the largest to the smallest value from which a loss is drawn logarithmically.
const WIDE: f64 = 100.0;

impl ValueScale {
    /// Reports whether values from `low` to `high` are drawn logarithmically.
    #[must_use]
    pub fn is_log(self, (low, high): (f64, f64)) -> bool {
        match self {
            Self::Automatic => low > 0.0 && high / low > WIDE,
            Self::Linear => false,
            Self::Log => true,
        }
    }
}

/// Smoothing weights that one key cycles through.
pub const SMOOTHING: [f64; 5] = [0.9, 0.97, 0.99, 0.0, 0.6];

impl Chart {
    /// Returns the weight of the past in the smoothed curve; 0 is unsmoothed.
    #[must_use]
    pub fn weight(&self) -> f64 {
        SMOOTHING[self.smoothing % SMOOTHING.len()]
    }

    /// Selects the next weight.
    pub fn next_smoothing(&mut self) {
        self.smoothing = (self.smoothing + 1) % SMOOTHING.len();
    }

    /// Selects the weight nearest to the given one.
    pub fn set_weight(&mut self, weight: f64) {
        let off = |place: &usize| (SMOOTHING[*place] - weight).abs();
        self.smoothing = (0..SMOOTHING.len()).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
    }

    /// Reports whether the whole run is visible.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.span.is_none()
    }

    /// Reports whether the right edge follows the newest step.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.end.is_none()
    }

    /// Returns the first and last visible position, for a curve from `first` to `last`.
    #[must_use]
    pub fn window(&self, (first, last): (f64, f64)) -> (f64, f64) {
        match (self.span, self.end) {
            (Some(span), end) if span < last - first => {
                let end = end.unwrap_or(last).clamp(first + span, last);
                (end - span, end)
            }
            // Frozen: newer steps stay outside.
            (None, Some(end)) if end > first && end < last => (first, end),
            _ => (first, last),
        }
    }

    /// Zooms in (a factor below 1) or out, but shows no less than `smallest`. The right edge stays if it
    /// follows the newest step; otherwise the cursor or the middle stays.
    pub fn zoom(&mut self, factor: f64, ends: Option<(f64, f64)>, smallest: f64) {
        let Some((first, last)) = ends else { return };
        let (start, end) = self.window((first, last));
        let span = ((end - start) * factor).max(smallest);
        // Treat nearly all as all: the run has grown since zooming in.
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

    /// Pans by quarters of the window towards older (negative) or newer steps.
    pub fn pan(&mut self, quarters: f64, ends: Option<(f64, f64)>) {
        let (Some((first, last)), Some(span)) = (ends, self.span) else { return };
        let end = self.end.unwrap_or(last) + span * quarters / 4.0;
        self.end = (end < last).then_some(end.max(first + span));
    }

    /// Moves the cursor by a fraction of the window; it starts at the right edge.
    pub fn move_cursor(&mut self, share: f64, ends: Option<(f64, f64)>) {
        let Some(ends) = ends else { return };
        let (start, end) = self.window(ends);
        let at = self.cursor.unwrap_or(end) + (end - start) * share;
        let at = at.clamp(ends.0, ends.1);
        self.cursor = Some(at);
        // Keep the cursor inside the window.
        if let Some(span) = self.span.filter(|_| at < start || at > end) {
            let end = if at < start { at + span } else { at };
            self.end = (end < ends.1).then_some(end);
        }
    }

    /// Shows the whole run.
    pub fn fit(&mut self) {
        self.span = None;
        self.end = None;
    }

    /// Follows the newest step, or freezes the window.
    pub fn follow(&mut self, ends: Option<(f64, f64)>) {
        self.end = match (self.end, ends) {
            (None, Some(ends)) => Some(self.window(ends).1),
            _ => None,
        };
    }

    /// Switches to another axis; `place` maps a position on the old axis to the new one.
    pub fn switch_axis(&mut self, axis: Axis, ends: Option<(f64, f64)>, place: impl Fn(f64) -> Option<f64>) {
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
    fn a_frozen_window_stays_and_the_cursor_is_visible() {
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
