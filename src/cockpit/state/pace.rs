//! Speed of the run, from its newest rows.

use super::facts::Facts;
use crate::protocol::pace::Pace;
use crate::series::Metric;

impl Facts {
    /// Returns the current worker's pace over the last half minute; every panel shows this value.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        self.pacer.pace()
    }

    /// Returns the usual milliseconds per step of the current worker once it has taken a few hundred:
    /// the median over the newest thousands, so that a few slow minutes do not count as usual.
    #[must_use]
    pub fn usual_step_ms(&self) -> Option<f64> {
        let (first, (_, last)) = (self.series.segments().last()?.first, self.series.ends()?);
        if last.saturating_sub(first) < LEAST_STEPS {
            return None;
        }
        let window = first.max(last.saturating_sub(USUAL_STEPS)) as f64..last as f64;
        let columns = self.series.columns(Metric::StepMs, window, 32);
        let mut means: Vec<f64> =
            columns.iter().filter_map(|column| column.extent).map(|extent| f64::from(extent.mean)).collect();
        let middle = means.len() / 2;
        (!means.is_empty()).then(|| *means.select_nth_unstable_by(middle, f64::total_cmp).1)
    }

    /// Returns the steps per second in each of the last `count` intervals of equal length, oldest
    /// first; used for the sparkline.
    #[must_use]
    pub fn pace_over_time(&self, count: usize) -> Vec<f64> {
        let (Some(oldest), Some(newest)) = (self.recent.front(), self.recent.back()) else { return Vec::new() };
        let span = newest.time_ms.saturating_sub(oldest.time_ms);
        if span <= 0 || count == 0 {
            return Vec::new();
        }
        let mut steps = vec![0u32; count];
        for row in self.recent.iter().skip(1) {
            let share = row.time_ms.saturating_sub(oldest.time_ms) as f64 / span as f64;
            let place = (share * count as f64).max(0.0) as usize;
            steps[place.min(count - 1)] += 1;
        }
        steps.into_iter().map(|steps| f64::from(steps) * 1e3 * count as f64 / span as f64).collect()
    }

    /// Returns the milliseconds until the run's clock reaches its end at the current pace; where the end is not known, until
    /// the command ends by its own account.
    #[must_use]
    pub fn left_ms(&self, now_ms: i64) -> Option<i64> {
        let status = self.status.as_ref()?;
        let Some(total) = status.total_samples else { return status.left_ms(now_ms) };
        let left = total.saturating_sub(status.samples) as f64;
        let seconds = left / self.pace()?.units_per_s;
        (seconds.is_finite() && seconds < 1e9).then_some((seconds * 1e3) as i64)
    }
}

/// Minimum number of steps that define the usual step time.
const LEAST_STEPS: u64 = 200;
/// Number of steps over which the usual step time is measured.
const USUAL_STEPS: u64 = 10_000;
