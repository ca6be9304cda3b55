//! The state and the curve that a container of a companion carries besides its tensors: the same files as those of a
//! Burn worker, so the keeper reads them in the same way. Pure.

use crate::protocol::rows::{EvalRow, StepRow};
use crate::protocol::worker::{Eval, Event};
use crate::recipe::batch::Position;
use crate::store::checkpoint::state::{Row, TrainState};
use std::time::Duration;

/// The most rows held back while no save succeeds; older ones are dropped.
const MOST_ROWS: usize = 1 << 20;

/// The state of a training as its steps are reported, and the rows since the last container.
#[derive(Debug)]
pub struct ContainerState {
    /// The state that the attempt began with, with the attempt and its rung.
    base: TrainState,
    skipped: u64,
    skips_in_a_row: u64,
    /// The newest evaluations, oldest first.
    evals: Vec<Eval>,
    rows: Vec<Row>,
    /// Rows are collected: the companion writes containers.
    collects: bool,
}

impl ContainerState {
    /// Creates the state of an attempt. `base` is the state of the container it resumes from, or a blank one, with the
    /// attempt, its rung and the seed filled in.
    pub fn new(base: TrainState) -> Self {
        let (skipped, skips_in_a_row) = (base.skipped, base.skips_in_a_row);
        let evals = base.eval.iter().cloned().collect();
        Self { base, skipped, skips_in_a_row, evals, rows: Vec::new(), collects: false }
    }

    /// Collects rows from now on.
    pub fn collect(&mut self) {
        self.collects = true;
    }

    /// Records an event that is sent to the keeper.
    pub fn record(&mut self, event: &Event, time_ms: i64) {
        match event {
            Event::Step(_) => self.skips_in_a_row = 0,
            Event::Skipped(skipped) => {
                self.skipped += 1;
                self.skips_in_a_row += u64::from(!skipped.rescaled);
            }
            Event::Eval(eval) => {
                // An older one may belong to a checkpoint that is still being written.
                self.evals.drain(..self.evals.len().saturating_sub(3));
                self.evals.push(eval.clone());
            }
            _ => return,
        }
        if !self.collects {
            return;
        }
        let (attempt, rung) = (self.base.attempt, self.base.rung);
        let step = StepRow::from_event(event, attempt, rung, time_ms).map(Row::Step);
        let eval = match event {
            Event::Eval(eval) => Some(Row::Eval(EvalRow { attempt, time_ms, eval: eval.clone() })),
            _ => None,
        };
        if self.rows.len() >= MOST_ROWS {
            self.rows.drain(..MOST_ROWS / 8);
        }
        self.rows.extend(step.or(eval));
    }

    /// Returns the state at a step, `trained` after the attempt began, and takes the rows up to there. A companion
    /// writes in the background, so later steps may have been reported since.
    pub fn take_until(&mut self, clock: (u64, u64), epoch: u64, trained: Duration) -> (TrainState, Vec<Row>) {
        let (step, samples) = clock;
        let is_later = |row: &Row| step_of(row) > step;
        let later = self.rows.extract_if(.., |row| is_later(row)).collect();
        let rows = std::mem::replace(&mut self.rows, later);
        let eval = self.evals.iter().rev().find(|eval| eval.step <= step).cloned();
        let losses = self.evals.iter().filter(|eval| eval.step <= step).filter_map(|eval| eval.loss);
        let best_eval_loss = losses.chain(self.base.best_eval_loss).min_by(f64::total_cmp);
        self.base.best_eval_loss = best_eval_loss;
        let trained_s = self.base.trained_s + trained.as_secs_f64();
        let state = TrainState {
            step,
            position: Position { epoch, offset: 0, samples },
            optimizer_time: step.saturating_sub(self.skipped),
            skipped: self.skipped,
            skips_in_a_row: self.skips_in_a_row,
            best_eval_loss,
            trained_s,
            evaluated_at_s: eval.as_ref().map_or(0.0, |_| trained_s),
            eval,
            ..self.base.clone()
        };
        (state, rows)
    }

    /// Drops everything after a step: another process of the command trains on from there.
    pub fn go_back(&mut self, step: u64) {
        let is_skip = |row: &Row| matches!(row, Row::Step(row) if row.skipped);
        let later = self.rows.extract_if(.., |row| step_of(row) > step);
        let skipped = later.filter(is_skip).count() as u64;
        self.skipped = self.skipped.saturating_sub(skipped);
        self.skips_in_a_row = 0;
        self.evals.retain(|eval| eval.step <= step);
    }

    /// Takes back the rows of a container that was not published; they go with the next one.
    pub fn give_back(&mut self, mut rows: Vec<Row>) {
        rows.append(&mut self.rows);
        self.rows = rows;
    }
}

fn step_of(row: &Row) -> u64 {
    match row {
        Row::Step(row) => row.step,
        Row::Eval(row) => row.eval.step,
    }
}

#[cfg(test)]
mod tests {
    use super::{ContainerState, step_of};
    use crate::harness::progress::tests::step_event;
    use crate::protocol::worker::{Eval, Event, Skipped};
    use crate::store::checkpoint::state::TrainState;
    use std::time::Duration;

    fn skipped(step: u64) -> Event {
        let (what, place) = ("loss".to_owned(), String::new());
        Event::Skipped(Skipped {
            step,
            samples: step,
            epoch: 0,
            lr: 0.1,
            what,
            place,
            parameter: None,
            rescaled: false,
            applied: false,
        })
    }

    #[test]
    fn a_container_carries_the_rows_up_to_its_step_and_the_next_one_the_rest() {
        let base = TrainState {
            attempt: 3,
            rung: 1,
            skipped: 2,
            trained_s: 10.0,
            best_eval_loss: Some(0.2),
            ..TrainState::default()
        };
        let mut state = ContainerState::new(base);
        state.record(&step_event(1), 5);
        state.collect();
        for step in 2..=5 {
            state.record(&step_event(step), 5);
        }
        let eval = Eval { step: 4, samples: 4, loss: Some(0.3), ..Eval::default() };
        state.record(&Event::Eval(eval), 5);
        state.record(&Event::Eval(Eval { step: 6, loss: Some(0.1), ..Eval::default() }), 5);
        state.record(&skipped(6), 5);
        let (saved, rows) = state.take_until((4, 40), 2, Duration::from_secs(1));
        assert_eq!(rows.iter().map(step_of).collect::<Vec<_>>(), [2, 3, 4, 4], "1 was before the first container");
        assert_eq!((saved.step, saved.position.samples, saved.position.epoch), (4, 40, 2));
        assert_eq!((saved.attempt, saved.rung, saved.skipped, saved.optimizer_time), (3, 1, 3, 1));
        assert_eq!((saved.own_eval_loss(), saved.best_eval_loss, saved.trained_s), (Some(0.3), Some(0.2), 11.0));
        state.give_back(rows);
        let (saved, rows) = state.take_until((6, 60), 2, Duration::from_secs(2));
        assert_eq!(rows.iter().map(step_of).collect::<Vec<_>>(), [2, 3, 4, 4, 5, 6, 6]);
        assert_eq!((saved.own_eval_loss(), saved.best_eval_loss), (Some(0.1), Some(0.1)));
        assert!(state.take_until((7, 70), 2, Duration::ZERO).1.is_empty());
    }

    #[test]
    fn steps_after_the_one_that_another_process_resumes_from_are_in_no_container() {
        let mut state = ContainerState::new(TrainState::default());
        state.collect();
        for step in 1..=3 {
            state.record(&step_event(step), 5);
        }
        state.record(&skipped(4), 5);
        state.record(&Event::Eval(Eval { step: 4, loss: Some(0.1), ..Eval::default() }), 5);
        state.go_back(2);
        state.record(&step_event(3), 5);
        let (saved, rows) = state.take_until((3, 30), 0, Duration::ZERO);
        assert_eq!(rows.iter().map(step_of).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((saved.skipped, saved.own_eval_loss()), (0, None));
    }
}
