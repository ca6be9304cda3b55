//! The learning rate as a function of the clock.

use serde::{Deserialize, Serialize};

/// The shape of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Half a cosine from the peak down to `final` (Loshchilov and Hutter, 2016, without restarts).
    Cosine,
    /// A straight line from the peak down to `final`.
    Linear,
    /// The peak to the end.
    Constant,
}

/// Warm-up, then a decay, both measured on the clock of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The shape after warm-up.
    pub kind: ScheduleKind,
    /// The share of the run in which the rate climbs linearly from 0 to its peak.
    #[serde(default)]
    pub warmup: f64,
    /// The rate at the very end, as a share of the peak.
    #[serde(default, rename = "final")]
    pub end: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { kind: ScheduleKind::Constant, warmup: 0.0, end: 0.0 }
    }
}

impl Schedule {
    /// The learning rate of the step that **ends** when the clock shows `samples` of `total`, so
    /// that the first step of a warm-up is not lost on a rate of 0.
    #[must_use]
    pub fn lr(&self, peak: f64, samples: u64, total: u64) -> f64 {
        let progress = if total == 0 { 1.0 } else { (samples as f64 / total as f64).min(1.0) };
        if progress < self.warmup {
            return peak * progress / self.warmup;
        }
        let span = 1.0 - self.warmup;
        let decayed = if span > 0.0 { (progress - self.warmup) / span } else { 1.0 };
        let share = match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Linear => 1.0 - (1.0 - self.end) * decayed,
            ScheduleKind::Cosine => self.end + (1.0 - self.end) * 0.5 * (1.0 + (std::f64::consts::PI * decayed).cos()),
        };
        peak * share
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, ScheduleKind};

    #[test]
    fn the_rate_climbs_peaks_and_ends_where_it_should() {
        let table = [
            (ScheduleKind::Cosine, 50, 0.5),
            (ScheduleKind::Cosine, 100, 1.0),
            (ScheduleKind::Cosine, 550, 0.55),
            (ScheduleKind::Cosine, 1000, 0.1),
            (ScheduleKind::Linear, 550, 0.55),
            (ScheduleKind::Linear, 1000, 0.1),
            (ScheduleKind::Constant, 1000, 1.0),
            (ScheduleKind::Cosine, 2000, 0.1),
        ];
        for (kind, samples, wanted) in table {
            let schedule = Schedule { kind, warmup: 0.1, end: 0.1 };
            let lr = schedule.lr(2.0, samples, 1000);
            assert!((lr - 2.0 * wanted).abs() < 1e-12, "{kind:?} at {samples}: {lr}");
        }
    }
}
