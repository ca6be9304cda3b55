//! Save timing: a fixed interval, or one derived from the cost of saves and the failure rate of workers; and a
//! warning when no save has succeeded for too long.

use downshift_core::config::units::Every;
use downshift_core::format::counted;
use downshift_core::recipe::interval::{self, Faults};
use std::time::{Duration, Instant};

/// Weight of the newest step in the running mean of step times.
const NEWEST_WEIGHT: f64 = 0.05;
/// Seconds of unsaved work that never cause a warning, however short the interval.
const NEVER_WARN_S: f64 = 10.0;

/// The cost of saves and the time of the next one.
#[derive(Debug)]
pub struct SaveTimer {
    every: Every,
    faults: Faults,
    begun: Instant,
    /// Whether a step was taken. Before that there is nothing to lose, and the first step does not count as a
    /// measurement because it compiles kernels.
    warm: bool,
    tried: Instant,
    durable: Instant,
    durable_at: (u64, u64),
    warned: bool,
    /// Mean seconds per step while no save is in flight.
    quiet_s: Option<f64>,
    /// Cost in seconds of the save in flight so far: its pause, plus the slowdown of steps.
    spent_s: Option<f64>,
    cost_s: Option<f64>,
}

impl SaveTimer {
    /// Returns the timer of an attempt that begins at this step and epoch.
    pub fn new(every: Every, faults: Faults, step: u64, epoch: u64) -> Self {
        let now = Instant::now();
        Self {
            every,
            faults,
            begun: now,
            warm: false,
            tried: now,
            durable: now,
            durable_at: (step, epoch),
            warned: false,
            quiet_s: None,
            spent_s: None,
            cost_s: None,
        }
    }

    /// Returns the seconds between saves, or `None` if saves do not follow wall-clock time.
    pub fn interval_s(&self) -> Option<f64> {
        match self.every {
            Every::Seconds(seconds) => Some(seconds),
            Every::Auto => {
                // Until a save is measured, use the shortest interval: it costs one cheap save at most.
                let mtbf_s = self.faults.mtbf_s(self.begun.elapsed().as_secs_f64());
                Some(self.cost_s.map_or(interval::SHORTEST_S, |cost_s| interval::best_interval_s(cost_s, mtbf_s)))
            }
            Every::Steps(_) | Every::Epochs(_) | Every::Never => None,
        }
    }

    /// Reports whether a save is due by wall-clock time, or `None` if saves follow another clock.
    pub fn is_due(&self) -> Option<bool> {
        self.interval_s().map(|interval_s| self.tried.elapsed().as_secs_f64() >= interval_s)
    }

    /// Records the duration of a step.
    pub fn record_step(&mut self, took: Duration) {
        if !self.warm {
            (self.warm, self.durable) = (true, Instant::now());
            return;
        }
        let took_s = took.as_secs_f64();
        match (&mut self.spent_s, self.quiet_s) {
            (Some(spent_s), Some(quiet_s)) => *spent_s += (took_s - quiet_s).max(0.0),
            (Some(_), None) => {}
            (None, quiet_s) => {
                self.quiet_s = Some(quiet_s.map_or(took_s, |mean| mean + NEWEST_WEIGHT * (took_s - mean)));
            }
        }
    }

    /// Records that a save began, and how long it paused training.
    pub fn record_save_begin(&mut self, pause: Duration) {
        self.tried = Instant::now();
        self.spent_s = Some(pause.as_secs_f64());
    }

    /// Records that no save is in flight, or no longer. `durable` is the newest durable step.
    pub fn record_save_end(&mut self, durable: Option<u64>, epoch: u64) {
        let Some(spent_s) = self.spent_s.take() else { return };
        self.cost_s = Some(spent_s);
        if let Some(step) = durable.filter(|step| *step > self.durable_at.0) {
            (self.durable, self.durable_at, self.warned) = (Instant::now(), (step, epoch), false);
        }
    }

    /// Returns a warning once the newest durable step is older than two intervals. Warns again only after a
    /// save has succeeded.
    pub fn overdue_warning(&mut self, step: u64, epoch: u64) -> Option<String> {
        self.overdue_warning_at(self.durable.elapsed().as_secs_f64(), step, epoch)
    }

    fn overdue_warning_at(&mut self, age_s: f64, step: u64, epoch: u64) -> Option<String> {
        let (durable, durable_epoch) = self.durable_at;
        let (late, interval) = match (self.interval_s(), self.every) {
            (Some(interval_s), _) => (age_s > 2.0 * interval_s, format!("{interval_s:.0} s")),
            (None, Every::Steps(steps)) => (step - durable > 2 * steps, self.every.to_string()),
            (None, Every::Epochs(epochs)) => (epoch - durable_epoch > 2 * epochs, self.every.to_string()),
            (None, _) => return None,
        };
        if !late || age_s < NEVER_WARN_S || self.warned {
            return None;
        }
        self.warned = true;
        let lost = counted(step - durable, "step");
        Some(format!(
            "no checkpoint for {age_s:.0} s, since step {durable}: more than twice the interval of {interval}; \
             a failure now would lose {lost}"
        ))
    }
}

/// Reports whether something is due after a step, given the epoch of the step and that of the position after it: after
/// the last sample of an epoch, the position is already in the next one.
pub fn is_due(every: Every, step: u64, [epoch, after]: [u64; 2], since_s: f64) -> bool {
    match every {
        Every::Seconds(seconds) => since_s >= seconds,
        Every::Steps(steps) => step.is_multiple_of(steps.max(1)),
        Every::Epochs(epochs) => after > epoch && after.is_multiple_of(epochs.max(1)),
        Every::Auto | Every::Never => false,
    }
}

#[cfg(test)]
mod tests {
    use super::SaveTimer;
    use downshift_core::config::units::Every;
    use downshift_core::recipe::interval::Faults;
    use std::time::{Duration, Instant};

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_cost_of_a_save_is_its_pause_plus_the_slowdown_of_steps() {
        let faults = Faults { count: 0, lived_s: 0.0 };
        let mut timer = SaveTimer::new(Every::Auto, faults, 0, 0);
        assert_eq!(timer.interval_s(), Some(30.0), "before anything is known");
        for _ in 0..50 {
            timer.record_step(millis(100));
        }
        timer.record_save_begin(millis(400));
        timer.record_step(millis(300));
        timer.record_step(millis(500));
        timer.record_step(millis(50));
        timer.record_save_end(Some(53), 0);
        assert!((timer.cost_s.unwrap() - 1.0).abs() < 1e-9, "{timer:?}");
        assert!((timer.interval_s().unwrap() - 147.0).abs() < 0.2);
        let shaky = SaveTimer { faults: Faults { count: 8, lived_s: 0.0 }, ..timer };
        assert!((shaky.interval_s().unwrap() - 49.0).abs() < 0.2);
    }

    #[test]
    fn the_first_step_compiles_kernels_and_is_not_measured() {
        let mut timer = SaveTimer::new(Every::Seconds(5.0), Faults::default(), 0, 0);
        timer.durable = Instant::now().checked_sub(millis(60_000)).unwrap();
        timer.record_step(millis(60_000));
        assert_eq!(timer.overdue_warning(1, 0), None, "until then there was nothing to lose");
        timer.record_step(millis(10));
        assert_eq!(timer.quiet_s, Some(0.01));
    }

    #[test]
    fn a_fixed_interval_is_kept() {
        let mut timer = SaveTimer::new(Every::Seconds(7.0), Faults::default(), 0, 0);
        timer.record_save_begin(millis(60_000));
        timer.record_save_end(Some(1), 0);
        assert_eq!(timer.interval_s(), Some(7.0));
        assert_eq!(SaveTimer::new(Every::Steps(5), Faults::default(), 0, 0).is_due(), None);
        assert_eq!(SaveTimer::new(Every::Seconds(1e-9), Faults::default(), 0, 0).is_due(), Some(true));
    }

    #[test]
    fn an_overdue_checkpoint_warns_once_until_a_save_succeeds() {
        let mut timer = SaveTimer::new(Every::Steps(5), Faults::default(), 10, 1);
        assert_eq!(timer.overdue_warning_at(60.0, 20, 1), None, "twice the interval is not more than twice");
        assert_eq!(timer.overdue_warning_at(9.0, 21, 1), None, "nine seconds are nothing");
        let text = timer.overdue_warning_at(60.0, 21, 1).unwrap();
        assert!(text.contains("since step 10") && text.contains("5 steps") && text.contains("lose 11 steps"), "{text}");
        assert_eq!(timer.overdue_warning_at(60.0, 25, 1), None, "said once");
        timer.record_save_begin(millis(1));
        timer.record_save_end(Some(10), 1);
        assert_eq!(timer.overdue_warning_at(60.0, 40, 1), None, "a save that fails changes nothing");
        timer.record_save_begin(millis(1));
        timer.record_save_end(Some(40), 1);
        assert_eq!(timer.overdue_warning_at(60.0, 50, 2), None);
        assert!(timer.overdue_warning_at(60.0, 51, 2).is_some(), "armed again");
        let mut epochs = SaveTimer::new(Every::Epochs(1), Faults::default(), 0, 0);
        assert!(epochs.overdue_warning_at(60.0, 100, 2).is_none() && epochs.overdue_warning_at(60.0, 150, 3).is_some());
        let mut by_time = SaveTimer::new(Every::Seconds(30.0), Faults::default(), 0, 0);
        assert!(by_time.overdue_warning_at(60.0, 9, 0).is_none() && by_time.overdue_warning_at(60.1, 9, 0).is_some());
        assert!(
            SaveTimer::new(Every::Never, Faults::default(), 0, 0).overdue_warning_at(1e9, 1 << 40, 1 << 20).is_none()
        );
    }
}
