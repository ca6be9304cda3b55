//! How fast the run goes, from its newest rows.

use super::facts::Facts;
use crate::protocol::control::StepRow;

/// The pace of the newest steps of the current attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Optimizer steps a second, pauses included.
    pub steps_per_s: f64,
    /// Units of the run's clock a second.
    pub units_per_s: f64,
    /// Share of the step spent waiting for data, 0 to 1.
    pub waiting: Option<f64>,
}

impl Facts {
    /// The pace over the newest steps: up to half a minute, at least two steps.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        let newest = self.recent.back()?;
        let near =
            |row: &&StepRow| row.attempt == newest.attempt && newest.time_ms.saturating_sub(row.time_ms) <= 30_000;
        let rows: Vec<_> = self.recent.iter().rev().take_while(near).collect();
        let oldest = rows.last()?;
        let spent: f64 = rows.iter().take(rows.len() - 1).map(|row| row.data_wait_ms + row.compute_ms).sum();
        let seconds = newest.time_ms.saturating_sub(oldest.time_ms) as f64 / 1e3;
        // Rows that waited for a keeper that did not run come all at once: what the worker says that
        // its steps took is right then.
        let seconds = if spent.is_finite() { clumped(seconds, spent / 1e3) } else { seconds };
        let steps = newest.step.saturating_sub(oldest.step);
        if seconds <= 0.0 || steps == 0 {
            return None;
        }
        let waited: f64 = rows.iter().map(|row| row.data_wait_ms).sum();
        let computed: f64 = rows.iter().map(|row| row.compute_ms).sum();
        let waiting = Some(waited / (waited + computed)).filter(|share| share.is_finite());
        let units = newest.samples.saturating_sub(oldest.samples) as f64;
        Some(Pace { steps_per_s: steps as f64 / seconds, units_per_s: units / seconds, waiting })
    }

    /// Steps a second in each of the last `count` stretches of equal length, oldest first; what a
    /// small curve beside the figure shows.
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

    /// Milliseconds until the run's clock reaches its end, at the present pace.
    #[must_use]
    pub fn left_ms(&self) -> Option<i64> {
        let status = self.status.as_ref()?;
        let left = status.total_samples?.saturating_sub(status.samples) as f64;
        let seconds = left / self.pace()?.units_per_s;
        (seconds.is_finite() && seconds < 1e9).then_some((seconds * 1e3) as i64)
    }
}

/// How long steps took in all, from the time between their rows and from what they themselves took.
fn clumped(between: f64, spent: f64) -> f64 {
    if spent > between * 3.0 { spent } else { between }
}

/// A step may take at least this long before the screen calls the run stalled, milliseconds.
const STALL_MS: f64 = 4_000.0;
/// Fewer steps of an attempt than this tell nothing about how it usually goes.
const YOUNG: usize = 20;

impl Facts {
    /// How long the run may go without a step before it counts as stalled, from how it usually
    /// goes; none while a worker is young: its first steps still compile.
    #[must_use]
    pub fn patience_ms(&self) -> Option<f64> {
        let usual = 1e3 / self.pace()?.steps_per_s;
        let attempt = self.recent.back()?.attempt;
        let own = self.recent.iter().rev().take_while(|row| row.attempt == attempt);
        if own.clone().count() < YOUNG {
            return None;
        }
        let gaps = own.clone().zip(own.skip(1)).map(|(later, row)| later.time_ms.saturating_sub(row.time_ms));
        // The second longest: pauses that come regularly are no stall, one that came once may be.
        let (_, second) = gaps.fold((0, 0), |(longest, second), gap| match gap {
            gap if gap > longest => (gap, longest),
            gap => (longest, second.max(gap)),
        });
        Some(STALL_MS.max(8.0 * usual).max(2.0 * second as f64))
    }
}
