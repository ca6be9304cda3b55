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
    /// The peak until the end.
    Constant,
}

/// Warm-up, then a decay, both measured on the clock of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The shape after warm-up.
    pub kind: ScheduleKind,
    /// The share of the run in which the rate rises linearly from 0 to its peak.
    #[serde(default)]
    pub warmup: f64,
    /// The rate at the end of the run, as a share of the peak.
    #[serde(default, rename = "final")]
    pub end: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { kind: ScheduleKind::Constant, warmup: 0.0, end: 0.0 }
    }
}

impl Schedule {
    /// Returns the learning rate of the step that **ends** when the clock shows `samples` of `total`, so that
    /// the first warm-up step does not run at a rate of 0.
    #[must_use]
    pub fn lr(&self, peak: f64, samples: u64, total: u64) -> f64 {
        self.lr_warming(peak, samples, total, 0)
    }

    /// Returns the learning rate with a warm-up that began when the clock showed `from`: the rate rises from
    /// 0 to the scheduled rate and follows the schedule from there.
    pub fn lr_warming(&self, peak: f64, samples: u64, total: u64, from: u64) -> f64 {
        let share = |units: u64| if total == 0 { 1.0 } else { (units as f64 / total as f64).min(1.0) };
        let (progress, warmed) = (share(samples), share(samples.saturating_sub(from)));
        let planned = self.decayed(peak, progress);
        if warmed < self.warmup { planned * warmed / self.warmup } else { planned }
    }

    /// Returns the clock at which the warm-up in force from `samples` on began. `before` is the previous
    /// warm-up, which began at `from`: a longer warm-up starts over, a shorter one does not.
    pub fn warmup_begin(&self, before: Option<f64>, from: u64, samples: u64) -> u64 {
        if before.is_some_and(|before| self.warmup > before) { samples } else { from }
    }

    /// Returns the rate without warm-up.
    fn decayed(&self, peak: f64, progress: f64) -> f64 {
        if progress < self.warmup {
            return peak;
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
    use proptest::prelude::*;

    #[test]
    fn the_rate_follows_warm_up_peak_and_decay() {
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

    #[test]
    fn a_longer_warm_up_restarts_at_the_shift() {
        let schedule = |warmup| Schedule { kind: ScheduleKind::Linear, warmup, end: 0.0 };
        let (short, long) = (schedule(0.1), schedule(0.2));
        assert_eq!(long.warmup_begin(Some(short.warmup), 0, 400), 400);
        assert_eq!(short.warmup_begin(Some(long.warmup), 400, 500), 400, "a shorter one does not begin again");
        assert_eq!(long.warmup_begin(Some(long.warmup), 400, 500), 400);
        assert_eq!(long.warmup_begin(None, 0, 500), 0, "nothing is known of the schedule before");
        // Halfway through the new warm-up: half of the linear schedule's rate at this point.
        let lr = long.lr_warming(1.0, 500, 1000, 400);
        assert!((lr - 0.5 * (0.5 / 0.8)).abs() < 1e-12, "{lr}");
        assert!((long.lr_warming(1.0, 600, 1000, 400) - long.lr(1.0, 600, 1000)).abs() < 1e-12);
        assert!(long.lr_warming(1.0, 410, 1000, 400) < 0.05, "it starts low");
    }

    proptest! {
        #[test]
        fn no_warm_up_goes_beyond_the_schedule_or_lasts_longer_than_it_says(
            warmup in 0.0f64..0.9, from in 0u64..1000, samples in 0u64..1000, kind in 0usize..3,
        ) {
            let kind = [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Constant][kind];
            let schedule = Schedule { kind, warmup, end: 0.1 };
            let (samples, from) = (samples.max(from), from.min(samples));
            let (warming, planned) = (schedule.lr_warming(1.0, samples, 1000, from), schedule.decayed(1.0, samples as f64 / 1000.0));
            prop_assert!((0.0..=planned).contains(&warming));
            if (samples - from) as f64 >= warmup * 1000.0 {
                prop_assert_eq!(warming.to_bits(), planned.to_bits());
            }
        }
    }
}
