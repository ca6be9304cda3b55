//! When a run counts as stalled: one rule for the keeper, `status`, `--headless` and the cockpit. The keeper sees every
//! step, so it publishes how long the next one may take; everyone else only looks at the clock.

use super::control::StepRow;
use super::pace::Pace;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Minimum time without a step before a run counts as stalled, milliseconds.
const STALL_MS: f64 = 4_000.0;
/// Minimum number of steps of an attempt that define its usual gaps.
const YOUNG: usize = 20;
/// Newest gaps that define the usual ones.
const GAPS: usize = 511;

/// The latest step that the first line of a training may name, if it began at 1.
const FIRST_PRINTED: u64 = 1_000;

/// Returns the step after which a training began, by the first step it names. One that begins far on was adopted, or
/// resumed by itself, and took its earlier steps elsewhere.
#[must_use]
pub fn began_after(first: u64) -> u64 {
    if first > FIRST_PRINTED { first - 1 } else { 0 }
}

/// When a run last took a step, and how long it usually takes to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// When the last step ended or, if that is later, the run began to train again, Unix milliseconds.
    pub since_ms: i64,
    /// The longest pause that is usual for this run, milliseconds.
    pub patience_ms: u64,
}

impl Progress {
    /// Returns the time without progress in milliseconds, if it exceeds the longest usual pause.
    #[must_use]
    pub fn stalled_ms(self, now_ms: i64) -> Option<i64> {
        let still = now_ms.saturating_sub(self.since_ms);
        u64::try_from(still).is_ok_and(|still| still > self.patience_ms).then_some(still)
    }
}

/// The newest gaps between the steps of one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gaps {
    last: Option<(u64, i64)>,
    gaps: VecDeque<i64>,
}

impl Gaps {
    /// Adds a step; a new attempt starts over.
    pub fn push(&mut self, row: &StepRow) {
        match self.last.filter(|(attempt, _)| *attempt == row.attempt) {
            Some((_, last_ms)) => self.gaps.push_back(row.time_ms.saturating_sub(last_ms)),
            None => self.gaps.clear(),
        }
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
        self.last = Some((row.attempt, row.time_ms));
    }

    /// Returns the progress at the newest step. An attempt of few steps may take as long as `young`, because its first
    /// steps still compile.
    #[must_use]
    pub fn progress(&self, pace: Option<Pace>, young: Duration) -> Option<Progress> {
        let (_, since_ms) = self.last?;
        let young_ms = || young.as_secs_f64() * 1e3;
        let patience_ms = pace.and_then(|pace| self.usual_ms(pace)).unwrap_or_else(young_ms) as u64;
        Some(Progress { since_ms, patience_ms })
    }

    fn usual_ms(&self, pace: Pace) -> Option<f64> {
        if self.gaps.len() + 1 < YOUNG {
            return None;
        }
        // Use the second longest gap: regular pauses are not stalls, but a single one may have been.
        let (_, second) = self.gaps.iter().fold((0, 0), |(longest, second), gap| match *gap {
            gap if gap > longest => (gap, longest),
            gap => (longest, second.max(gap)),
        });
        Some(STALL_MS.max(8.0 * 1e3 / pace.steps_per_s).max(2.0 * second as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::{Gaps, Progress};
    use crate::protocol::control::StepRow;
    use crate::protocol::pace::Pacer;
    use std::time::Duration;

    fn row(attempt: u64, step: u64, time_ms: i64) -> StepRow {
        StepRow { attempt, step, samples: step, loss: Some(1.0), time_ms, ..StepRow::default() }
    }

    /// Returns the progress after steps at these times.
    fn progress(rows: &[StepRow]) -> Option<Progress> {
        let mut gaps = Gaps::default();
        for row in rows {
            gaps.push(row);
        }
        gaps.progress(rows.iter().collect::<Pacer>().pace(), Duration::from_secs(10))
    }

    fn steps(attempt: u64, count: u64, apart_ms: i64) -> Vec<StepRow> {
        (1..=count).map(|step| row(attempt, step, step.cast_signed() * apart_ms)).collect()
    }

    #[test]
    fn the_usual_pauses_decide_how_long_a_step_may_take() {
        assert_eq!(progress(&[]), None);
        let patience = |rows: &[StepRow]| progress(rows).unwrap().patience_ms;
        assert_eq!(patience(&steps(1, 10, 50)), 10_000, "first steps compile");
        assert_eq!(patience(&steps(1, 100, 50)), 4_000);
        assert_eq!(patience(&steps(1, 100, 2_000)), 16_000);
        // One long pause was perhaps a stall; two are usual.
        let mut paused = steps(1, 100, 50);
        paused[50..].iter_mut().for_each(|row| row.time_ms += 20_000);
        assert_eq!(patience(&paused), 4_000);
        paused[80..].iter_mut().for_each(|row| row.time_ms += 20_000);
        assert_eq!(patience(&paused), 2 * 20_050);
        let resumed = [steps(1, 100, 50), vec![row(2, 101, 9_000)]].concat();
        assert_eq!(progress(&resumed), Some(Progress { since_ms: 9_000, patience_ms: 10_000 }));
    }

    #[test]
    fn a_run_stalls_once_a_step_takes_longer() {
        let progress = Progress { since_ms: 1_000, patience_ms: 4_000 };
        let cases = [(0, None), (5_000, None), (5_001, Some(4_001)), (61_000, Some(60_000))];
        for (now_ms, stalled) in cases {
            assert_eq!(progress.stalled_ms(now_ms), stalled, "{now_ms}");
        }
    }
}
