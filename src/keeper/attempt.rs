//! State of the current attempt.

use crate::protocol::control::StepRow;
use crate::protocol::pace::{Pace, Pacer};
use std::time::Instant;

/// The current attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Its number.
    pub id: u64,
    /// Its rung.
    pub rung: usize,
    began: Option<(Instant, i64)>,
    pacer: Pacer,
}

impl Attempt {
    /// Creates an attempt.
    pub fn new(id: u64, rung: usize) -> Self {
        Self { id, rung, ..Self::default() }
    }

    /// Sets the start of the attempt, in Unix milliseconds of the wall clock.
    pub fn begun_at(mut self, time_ms: i64) -> Self {
        self.began = Some((Instant::now(), time_ms));
        self
    }

    /// Returns the attempt's end on the wall clock of its start, so that its duration is right even if
    /// that clock jumped.
    pub fn ends_at(&self) -> Option<i64> {
        let (began, time_ms) = self.began?;
        Some(time_ms.saturating_add(i64::try_from(began.elapsed().as_millis()).ok()?))
    }

    /// Records a step.
    pub fn stepped(&mut self, row: &StepRow) {
        self.pacer.push(row);
    }

    /// Returns the attempt's speed, once there are two steps.
    pub fn pace(&self) -> Option<Pace> {
        self.pacer.pace()
    }
}

#[cfg(test)]
mod tests {
    use super::Attempt;

    #[test]
    fn an_attempts_duration_ignores_changes_of_the_wall_clock() {
        let attempt = Attempt::new(1, 0).begun_at(5_000);
        let ends_at = attempt.ends_at().unwrap();
        assert!((5_000..65_000).contains(&ends_at), "{ends_at}: the time of the beginning was long ago");
        assert_eq!(Attempt::default().ends_at(), None);
    }
}
