//! The vertical scale of a chart: its range, where a value lies in it, and round numbers for its labels.

/// A range of values, linear or logarithmic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// Creates a scale from `low` to `high`; an empty range is widened. Logarithmic only if all values
    /// are positive.
    #[must_use]
    pub fn new(low: f64, high: f64, log: bool) -> Option<Self> {
        if !(low.is_finite() && high.is_finite() && low <= high) {
            return None;
        }
        let log = log && low > 0.0;
        let flat = high - low <= low.abs().max(high.abs()) * 1e-6;
        let (low, high) = match (flat, log) {
            (false, _) => (low, high),
            (true, true) => (low / 1.5, high * 1.5),
            (true, false) => (low - low.abs().max(1e-3) * 0.1, high + high.abs().max(1e-3) * 0.1),
        };
        Some(Self { low, high, log })
    }

    /// Reports whether the scale is logarithmic.
    #[must_use]
    pub fn is_log(self) -> bool {
        self.log
    }

    /// Returns the position of a value, clamped: 0 at the bottom, 1 at the top.
    #[must_use]
    pub fn share(self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(f64::MIN_POSITIVE).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Returns the dot row of a value, counted from the top of `rows` rows.
    #[must_use]
    pub fn row(self, value: f64, rows: usize) -> usize {
        let last = rows.saturating_sub(1) as f64;
        (last - self.share(value) * last).round() as usize
    }

    /// Returns about `wanted` round values within the scale, lowest first.
    #[must_use]
    pub fn ticks(self, wanted: usize) -> Vec<f64> {
        let linear = || round_values(self.low, self.high, wanted);
        if !self.log {
            return linear();
        }
        let decades = self.high.log10() - self.low.log10();
        // All three per decade if they fit, otherwise only the powers of ten.
        let steps: &[f64] = if decades * 3.0 > wanted as f64 * 1.3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let stride = if decades > 2.0 * wanted as f64 { 1 + (decades / wanted as f64) as usize } else { 1 };
        let within = |steps: &[f64]| -> Vec<f64> {
            (first..=last)
                .step_by(stride.max(1))
                .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let ticks = within(steps);
        let ticks = if ticks.len() < 2 { within(&[1.0, 2.0, 5.0]) } else { ticks };
        if ticks.len() < 2 { linear() } else { ticks }
    }
}

/// Returns about `wanted` multiples of 1, 2 or 5 × 10ⁿ from `low` to `high`.
#[must_use]
pub fn round_values(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) || wanted == 0 {
        return Vec::new();
    }
    let rough = span / wanted as f64;
    let power = 10f64.powf(rough.log10().floor());
    let off = |step: &f64| (span / step - wanted as f64).abs();
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().min_by(|a, b| off(a).total_cmp(&off(b)));
    let Some(step) = step.filter(|step| step.is_finite() && *step > 0.0) else { return Vec::new() };
    let first = (low / step).ceil();
    (0..=2 * wanted + 2)
        .map(|place| (first + place as f64) * step)
        .take_while(|value| *value <= high + step * 1e-9)
        .map(|value| if value.abs() < step * 1e-9 { 0.0 } else { value })
        .collect()
}

/// Returns the least of the values above 0; none if one is below 0 or all are 0.
#[must_use]
pub fn above_zero(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let is_negative = values.clone().any(|value| value < 0.0);
    values.filter(|value| *value > 0.0 && !is_negative).reduce(f64::min)
}

/// Number of columns on each side that define the usual level at a position.
const AROUND: usize = 3;

/// Returns the top of a range over some lines, each given as its maxima from left to right. A value is
/// a spike if it lies far above the median of its neighbours; a loss that falls from a high start has
/// no spikes.
#[must_use]
pub fn range_top<'a>(low: f64, lines: impl IntoIterator<Item = &'a [f64]>) -> Option<(f64, Option<f64>)> {
    let (mut high, mut usual): (Option<f64>, Option<f64>) = (None, None);
    for highs in lines {
        let longest = |so_far: Option<f64>, value: f64| Some(so_far.map_or(value, |so_far| so_far.max(value)));
        high = highs.iter().copied().fold(high, longest);
        for place in 0..highs.len() {
            let mut near = highs[place.saturating_sub(AROUND)..(place + AROUND + 1).min(highs.len())].to_vec();
            near.sort_by(f64::total_cmp);
            // Too few columns do not define a usual level.
            let median = if highs.len() >= 30 { near[near.len() / 2] } else { highs[place] };
            usual = longest(usual, median);
        }
    }
    let (high, usual) = (high?, usual?);
    let span = usual - low;
    let cut = span > 0.0 && high > usual + span * 0.75;
    Some(if cut { (usual + span * 0.15, Some(high)) } else { (high, None) })
}

#[cfg(test)]
mod tests {
    use super::{Scale, round_values};
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(round_values(0.0, 2.4, 4), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(round_values(0.0, 1204.0, 3), [0.0, 500.0, 1000.0]);
        assert_eq!(Scale::new(0.05, 3.0, true).unwrap().ticks(5), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
    }

    #[test]
    fn the_top_is_row_zero() {
        let scale = Scale::new(0.0, 2.0, false).unwrap();
        assert_eq!([2.0, 1.0, 0.0, 5.0].map(|value| scale.row(value, 41)), [0, 20, 40, 0]);
    }

    proptest! {
        #[test]
        fn every_value_has_a_row(a: f64, b: f64, value: f64, log: bool, rows in 1usize..100) {
            if let Some(scale) = Scale::new(a.min(b), a.max(b), log) {
                prop_assert!(scale.row(value, rows) < rows);
                prop_assert!(scale.ticks(5).len() < 200);
                prop_assert!(scale.ticks(5).iter().all(|tick| tick.is_finite()));
            }
        }
    }
}
