//! What is known of the attempt under way.

use crate::protocol::control::StepRow;
use std::collections::VecDeque;
use std::time::Instant;

/// Steps that the speed is measured over.
const WINDOW: usize = 300;

/// The attempt under way.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Its number.
    pub id: u64,
    /// Its rung.
    pub rung: usize,
    began: Option<(Instant, i64)>,
    took_ms: VecDeque<f64>,
    /// What the clock showed at its first step, and how many steps and units came after it.
    first_samples: Option<u64>,
    since: (u64, u64),
}

impl Attempt {
    /// An attempt that begins.
    pub fn new(id: u64, rung: usize) -> Self {
        Self { id, rung, ..Self::default() }
    }

    /// The attempt began now, at this time of the wall clock, Unix milliseconds.
    pub fn begun_at(mut self, time_ms: i64) -> Self {
        self.began = Some((Instant::now(), time_ms));
        self
    }

    /// Its end by the wall clock of its beginning, so that the time it lived is right after a jump of that clock.
    pub fn ends_at(&self) -> Option<i64> {
        let (began, time_ms) = self.began?;
        Some(time_ms.saturating_add(i64::try_from(began.elapsed().as_millis()).ok()?))
    }

    /// A step was taken.
    pub fn stepped(&mut self, row: &StepRow) {
        match self.first_samples {
            Some(first) => self.since = (self.since.0 + 1, row.samples.saturating_sub(first)),
            None => self.first_samples = Some(row.samples),
        }
        if row.skipped {
            return;
        }
        if self.took_ms.len() == WINDOW {
            self.took_ms.pop_front();
        }
        self.took_ms.push_back(row.data_wait_ms + row.compute_ms);
    }

    /// The pace of the attempt: one over its median step, once there are a few.
    pub fn steps_per_s(&self) -> Option<f64> {
        // Sorting at each step would cost more than it tells: every sixteenth will do.
        if self.took_ms.len() < 8 || !self.took_ms.len().is_multiple_of(16) && self.took_ms.len() < WINDOW {
            return None;
        }
        let mut sorted: Vec<f64> = self.took_ms.iter().copied().collect();
        let middle = sorted.len() / 2;
        let (_, median, _) = sorted.select_nth_unstable_by(middle, f64::total_cmp);
        Some(1000.0 / median.max(1e-3))
    }

    /// Units of the run's clock in a step.
    pub fn units_per_step(&self) -> Option<f64> {
        let (steps, units) = self.since;
        (steps > 0).then(|| units as f64 / steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Attempt;

    #[test]
    fn an_attempt_lived_as_long_as_it_lived_whatever_the_wall_clock_says() {
        let attempt = Attempt::new(1, 0).begun_at(5_000);
        let ends_at = attempt.ends_at().unwrap();
        assert!((5_000..65_000).contains(&ends_at), "{ends_at}: the time of the beginning was long ago");
        assert_eq!(Attempt::default().ends_at(), None);
    }
}
