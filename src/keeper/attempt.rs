//! State of the current attempt.

use crate::protocol::control::StepRow;
use crate::protocol::pace::{Pace, Pacer};
use crate::protocol::progress::{Gaps, Progress};
use std::time::{Duration, Instant};

/// The current attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Its number.
    pub id: u64,
    /// Its rung.
    pub rung: usize,
    began: Option<(Instant, i64)>,
    pacer: Pacer,
    gaps: Gaps,
    /// When it last began to train, after a phase without steps, Unix milliseconds.
    trains_since_ms: Option<i64>,
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
        self.gaps.push(row);
    }

    /// Records that the worker trains, after a phase without steps.
    pub fn trains_again(&mut self, time_ms: i64) {
        self.trains_since_ms = Some(time_ms);
    }

    /// Returns its progress, once there is a step. Its first steps may take as long as `young`.
    pub fn progress(&self, young: Duration) -> Option<Progress> {
        let progress = self.gaps.progress(self.pace(), young)?;
        let since_ms = progress.since_ms.max(self.trains_since_ms.unwrap_or(i64::MIN));
        Some(Progress { since_ms, ..progress })
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
