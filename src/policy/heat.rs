//! A hot GPU: pause after a while, resume once it has cooled by some degrees, and after several pauses
//! move to a rung that heats less. Implausible readings are ignored.

use crate::config::watch;
use std::time::Duration;

/// Lowest plausible temperature of a GPU in use; below it the sensor is stuck or wrong.
const COLDEST_C: f64 = 1.0;
/// Highest plausible temperature of a GPU.
const HOTTEST_C: f64 = 150.0;

/// Watches the GPU's temperature.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HeatWatch {
    /// Start of the current hot stretch.
    since: Option<Duration>,
    /// Newest plausible temperature.
    newest_c: Option<f64>,
    /// Temperature at which training may resume.
    resume_c: Option<f64>,
}

/// Returns the temperature from which the GPU counts as hot.
#[must_use]
pub fn limit_c(warn_c: f64, slowdown_c: Option<f64>, knobs: watch::Heat) -> f64 {
    slowdown_c.filter(|limit| *limit > COLDEST_C).map_or(warn_c, |limit| warn_c.min(limit - knobs.below_slowdown_c))
}

impl HeatWatch {
    /// Takes in a reading and its limit. Unknown readings neither end nor begin a hot stretch.
    pub fn measured(&mut self, celsius: Option<f64>, limit_c: f64, knobs: watch::Heat, now: Duration) {
        let Some(celsius) = celsius.filter(|celsius| (COLDEST_C..=HOTTEST_C).contains(celsius)) else { return };
        self.newest_c = Some(celsius);
        self.resume_c = Some(limit_c - knobs.cool_by_c);
        self.since = if celsius >= limit_c { self.since.or(Some(now)) } else { None };
    }

    /// Reports whether the GPU has been hot for too long.
    #[must_use]
    pub fn must_cool(&self, knobs: watch::Heat, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= knobs.act_after.duration())
    }

    /// Reports whether the GPU is cool enough to resume.
    #[must_use]
    pub fn is_cool(&self) -> bool {
        self.newest_c.zip(self.resume_c).is_some_and(|(now, resume)| now <= resume)
    }

    /// Returns the current temperature and the one at which training resumes.
    #[must_use]
    pub fn temperatures(&self) -> (f64, f64) {
        (self.newest_c.unwrap_or_default(), self.resume_c.unwrap_or_default())
    }

    /// Begins a pause: readings taken while training say nothing about how long the GPU stays hot.
    pub fn reset(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::{HeatWatch, limit_c};
    use crate::config::watch;
    use std::time::Duration;

    /// Feeds one reading per second; returns the seconds at which a pause would begin.
    fn pauses(readings: impl IntoIterator<Item = Option<f64>>) -> Vec<u64> {
        let (mut heat, knobs) = (HeatWatch::default(), watch::Heat::default());
        let mut at = Vec::new();
        for (second, celsius) in (0..).zip(readings) {
            let now = Duration::from_secs(second);
            heat.measured(celsius, 85.0, knobs, now);
            if heat.must_cool(knobs, now) {
                at.push(second);
                heat.reset();
            }
        }
        at
    }

    #[test]
    fn a_minute_above_the_limit_is_too_long_and_nothing_else_is() {
        let ramp = |from: f64, by: f64| (0..200).map(move |second| Some(from + by * f64::from(second)));
        assert_eq!(pauses(ramp(60.0, 0.5)), [110, 171], "85 °C at second 50; the first one was not carried out");
        assert_eq!(pauses(ramp(84.9, 0.0)), [0_u64; 0]);
        let dip = (0..200).map(|second| Some(if second % 50 == 49 { 84.0 } else { 90.0 }));
        assert_eq!(pauses(dip), [0_u64; 0], "it cools now and then");
        let holes = (0..90).map(|second| if second % 2 == 0 { Some(90.0) } else { None });
        assert_eq!(pauses(holes), [60], "unknown is neither hot nor cool");
        let lies = (0..90).map(|second| Some(if second % 3 == 0 { 90.0 } else { 0.0 }));
        assert_eq!(pauses(lies), [60], "0 °C is not the temperature of a GPU in use");
        assert_eq!(pauses([Some(-5.0); 90]), [0_u64; 0]);
        assert_eq!(pauses([Some(4000.0); 90]), [0_u64; 0]);
    }

    #[test]
    fn training_resumes_ten_degrees_lower() {
        let (mut heat, knobs) = (HeatWatch::default(), watch::Heat::default());
        for (celsius, cool) in
            [(None, false), (Some(86.0), false), (Some(76.0), false), (Some(0.0), false), (Some(75.0), true)]
        {
            heat.measured(celsius, 85.0, knobs, Duration::ZERO);
            assert_eq!(heat.is_cool(), cool, "{celsius:?}");
        }
    }

    #[test]
    fn the_card_may_have_a_lower_limit_of_its_own() {
        let knobs = watch::Heat::default();
        for (slowdown, limit) in [(None, 85.0), (Some(95.0), 85.0), (Some(83.0), 78.0), (Some(0.0), 85.0)] {
            assert!((limit_c(85.0, slowdown, knobs) - limit).abs() < 1e-9, "{slowdown:?}");
        }
    }
}
