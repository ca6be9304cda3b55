//! What is known of the attempt under way.

use crate::protocol::control::StepRow;
use crate::protocol::pace::{Pace, Pacer};
use std::time::Instant;

/// The attempt under way.
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
        self.pacer.push(row);
    }

    /// Its speed, once there are two steps.
    pub fn pace(&self) -> Option<Pace> {
        self.pacer.pace()
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
