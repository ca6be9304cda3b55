//! The speed of a run: one definition for the keeper, `status` and the cockpit, so that all of them
//! show the same figure.

use super::control::StepRow;
use std::collections::VecDeque;

/// Time window of the speed, in milliseconds.
pub const WINDOW_MS: i64 = 30_000;
/// Minimum distance between marks, so that a fast run needs no more of them than a slow one.
const MARK_MS: i64 = 250;
/// Ratio of reported work to the time between arrivals from which steps count as having arrived all at once.
const CLUMPED: f64 = 3.0;
/// The same ratio from which a row's time is taken for that of all steps since the last row.
const LONGER: f64 = 1.5;

/// Speed of a worker's newest steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Optimizer steps per second of wall-clock time, evaluations and saves included.
    pub steps_per_s: f64,
    /// Units of the run's clock per second.
    pub units_per_s: f64,
    /// Milliseconds per step, without anything in between; none when no step reported it.
    pub step_ms: Option<f64>,
    /// Share of the step spent waiting for data, 0 to 1.
    pub waiting: Option<f64>,
}

/// Measures the pace of the current worker from the steps it reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pacer {
    /// Steps within the window, oldest first, without the newest step.
    marks: VecDeque<Mark>,
    newest: Option<Mark>,
}

/// A step, with running totals of its attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mark {
    attempt: u64,
    step: u64,
    samples: u64,
    time_ms: i64,
    waited_ms: f64,
    computed_ms: f64,
}

impl Pacer {
    /// Adds a step. Steps arrive in order; a new attempt starts over.
    pub fn push(&mut self, row: &StepRow) {
        let before = self.newest.filter(|before| before.attempt == row.attempt && before.step < row.step);
        if before.is_none() {
            self.marks.clear();
        }
        // A command may report every tenth step only. In stores of earlier versions, its time is that since the last report.
        let steps = before.map_or(1.0, |before| (row.step - before.step) as f64);
        let between = before.map_or(0.0, |before| row.time_ms.saturating_sub(before.time_ms) as f64);
        let own = row.data_wait_ms + row.compute_ms;
        let times = if own * steps > LONGER * between.max(own) { 1.0 } else { steps };
        let sum = |so_far: Option<f64>, more: f64| so_far.unwrap_or(0.0) + (more * times).clamp(0.0, f64::MAX);
        let known = |ms: f64| if ms.is_finite() { ms } else { 0.0 };
        let mark = Mark {
            attempt: row.attempt,
            step: row.step,
            samples: row.samples,
            time_ms: row.time_ms,
            waited_ms: sum(before.map(|mark| mark.waited_ms), known(row.data_wait_ms)),
            computed_ms: sum(before.map(|mark| mark.computed_ms), known(row.compute_ms)),
        };
        if let Some(before) = before
            && self.marks.back().is_none_or(|last| before.time_ms.saturating_sub(last.time_ms) >= MARK_MS)
        {
            self.marks.push_back(before);
        }
        let is_old = |oldest: &Mark| mark.time_ms.saturating_sub(oldest.time_ms) > WINDOW_MS;
        while self.marks.len() > 1 && self.marks.front().is_some_and(is_old) {
            self.marks.pop_front();
        }
        self.newest = Some(mark);
    }

    /// Returns the pace, once there are two steps.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        let (oldest, newest) = (self.marks.front()?, self.newest?);
        let (waited, computed) = (newest.waited_ms - oldest.waited_ms, newest.computed_ms - oldest.computed_ms);
        let (spent, between) = (waited + computed, newest.time_ms.saturating_sub(oldest.time_ms));
        // Only one step is newer than the window: there was an evaluation or a pause before it, or the step
        // took that long. Steps that arrive all at once had been waiting for a keeper that did not run.
        let by_the_steps = between > WINDOW_MS || spent > between as f64 * CLUMPED;
        let ms = if by_the_steps { spent } else { between as f64 };
        let steps = newest.step.saturating_sub(oldest.step) as f64;
        if ms <= 0.0 || steps <= 0.0 {
            return None;
        }
        Some(Pace {
            steps_per_s: steps * 1e3 / ms,
            units_per_s: newest.samples.saturating_sub(oldest.samples) as f64 * 1e3 / ms,
            step_ms: (spent > 0.0).then_some(spent / steps),
            waiting: Some(waited / spent).filter(|share| share.is_finite()),
        })
    }
}

impl<'a> FromIterator<&'a StepRow> for Pacer {
    fn from_iter<T: IntoIterator<Item = &'a StepRow>>(rows: T) -> Self {
        let mut pacer = Self::default();
        rows.into_iter().for_each(|row| pacer.push(row));
        pacer
    }
}

#[cfg(test)]
mod tests {
    use super::{Pacer, StepRow, WINDOW_MS};

    /// Returns a step of 32 samples that computed for `took_ms`.
    fn row(attempt: u64, step: u64, time_ms: i64, took_ms: f64) -> StepRow {
        StepRow {
            attempt,
            rung: 0,
            step,
            samples: step * 32,
            epoch: 0,
            loss: Some(1.0),
            lr: Some(0.1),
            grad_norm: Some(1.0),
            metrics: crate::protocol::metrics::Metrics::new(),
            skipped: false,
            data_wait_ms: took_ms / 4.0,
            compute_ms: took_ms * 3.0 / 4.0,
            time_ms,
        }
    }

    fn close(seen: Option<f64>, wanted: f64) {
        assert!(seen.is_some_and(|seen| (seen / wanted - 1.0).abs() < 0.03), "{seen:?}, not {wanted}");
    }

    #[test]
    fn a_report_of_every_tenth_step_shows_the_time_of_one_also_from_a_store_that_holds_all_ten() {
        for took_ms in [100.0, 1000.0] {
            let pacer: Vec<StepRow> = (1..=9).map(|n| row(1, n * 10, n.cast_signed() * 1000, took_ms)).collect();
            let pace = pacer.iter().collect::<Pacer>().pace().unwrap();
            close(pace.step_ms, 100.0);
            close(Some(pace.steps_per_s), 10.0);
        }
    }

    #[test]
    fn pauses_count_and_the_window_is_half_a_minute_however_fast_the_steps_are() {
        let mut pacer = Pacer::default();
        let mut time_ms = 0;
        let mut go = |pacer: &mut Pacer, steps: std::ops::Range<u64>, apart_ms: i64| {
            for step in steps {
                time_ms += apart_ms;
                pacer.push(&row(1, step, time_ms, 10.0));
            }
            pacer.pace()
        };
        assert_eq!(go(&mut pacer, 1..2, 20), None, "one step says nothing");
        let pace = go(&mut pacer, 2..500, 20).unwrap();
        close(Some(pace.steps_per_s), 50.0);
        close(Some(pace.units_per_s), 1600.0);
        close(pace.step_ms, 10.0);
        close(pace.waiting, 0.25);
        // Thirty seconds at another speed leave no trace of the first.
        let slower = go(&mut pacer, 500..500 + WINDOW_MS as u64 / 100 + 2, 100);
        close(slower.map(|pace| pace.steps_per_s), 10.0);
        let bound = (WINDOW_MS / super::MARK_MS) as usize + 2;
        assert!(pacer.marks.len() <= bound, "{} marks are kept", pacer.marks.len());
    }

    #[test]
    fn neither_a_long_pause_nor_rows_that_arrive_at_once_give_a_speed() {
        let after_a_pause: Pacer = [row(1, 1, 0, 20.0), row(1, 2, 90_000, 20.0)].iter().collect();
        close(after_a_pause.pace().map(|pace| pace.steps_per_s), 50.0);
        let slow_steps: Pacer = [row(1, 1, 0, 40_000.0), row(1, 2, 40_000, 40_000.0)].iter().collect();
        close(slow_steps.pace().map(|pace| pace.steps_per_s), 0.025);
        let rows: Vec<StepRow> = (1..100).map(|step| row(1, step, step as i64 / 50, 40.0)).collect();
        close(rows.iter().collect::<Pacer>().pace().map(|pace| pace.steps_per_s), 25.0);
    }

    #[test]
    fn another_attempt_starts_over_and_odd_figures_do_no_harm() {
        let mut rows: Vec<StepRow> = (1..100).map(|step| row(1, step, step as i64 * 10, 10.0)).collect();
        rows.push(row(2, 50, 60_000, 10.0));
        assert_eq!(rows.iter().collect::<Pacer>().pace(), None);
        rows.push(row(2, 51, 60_100, f64::NAN));
        rows.push(row(2, 52, 60_200, f64::INFINITY));
        close(rows.iter().collect::<Pacer>().pace().map(|pace| pace.steps_per_s), 10.0);
    }
}
