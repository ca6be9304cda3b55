//! Which evaluation measured which checkpoint: that of its step, unless the harness knows better.

use super::Recorder;
use crate::keeper::retention::{Unmatched, newest_evaluations};
use crate::keeper::sentences;
use crate::protocol::control::{CheckpointRow, JournalKind};
use crate::protocol::metrics::Metrics;
use crate::protocol::worker::{Eval, Level};
use crate::store::writer::Writer;

/// The fact that the run was told why no checkpoint is deleted.
const KEEPS_ALL: &str = "keeps_all";
/// Evaluations remembered for checkpoints that are saved later.
const EVALS: usize = 64;

impl Recorder {
    /// Remembers an evaluation for its checkpoint, which may be saved before or after it: a command reports both on their
    /// own.
    pub(super) fn measure_checkpoint(&mut self, eval: &Eval) {
        let known = self.evals.entry(eval.step).or_insert_with(|| Eval { loss: None, ..eval.clone() });
        known.update(eval);
        if self.evals.len() > EVALS {
            self.evals.pop_first();
        }
        // A checkpoint of an earlier attempt at this step may hold other weights.
        let began_ms = self.row.started_ms;
        let is_measured = |row: &&CheckpointRow| {
            row.kept && row.time_ms >= began_ms && *self.measured.get(&row.step).unwrap_or(&row.step) == eval.step
        };
        let steps: Vec<u64> = self.checkpoints.iter().filter(is_measured).map(|row| row.step).collect();
        for step in steps {
            self.apply_evaluation(step, eval);
        }
    }

    /// Records that the evaluation at a step measured the weights of a checkpoint.
    pub(super) fn record_measured(&mut self, checkpoint: u64, evaluation: u64) {
        self.measured.insert(checkpoint, evaluation);
        if let Some(row) = self.checkpoints.iter_mut().find(|row| row.step == checkpoint) {
            (row.eval_loss, row.metrics) = (None, Metrics::new());
        }
        if let Some(eval) = self.evals.get(&evaluation).cloned() {
            self.apply_evaluation(checkpoint, &eval);
        }
    }

    fn apply_evaluation(&mut self, checkpoint: u64, eval: &Eval) {
        let row = self.checkpoints.iter_mut().find(|row| row.step == checkpoint);
        if row.is_some_and(|row| eval.replace_in(&mut row.eval_loss, &mut row.metrics)) {
            self.mark_best();
            self.put_checkpoint(checkpoint);
        }
    }

    /// Returns the evaluations of the curve.
    pub(super) fn evaluations_for_retention(&mut self) -> Vec<Eval> {
        let known: Vec<Eval> = self.curve.evaluations().cloned().collect();
        if !known.is_empty() {
            return known;
        }
        // Only a keeper records a curve.
        let stored = self.read_store(Writer::evals).unwrap_or_default();
        newest_evaluations(stored.into_iter()).into_iter().map(|row| row.eval).collect()
    }

    /// Notes that nothing is deleted, once in a run.
    pub(super) fn note_unmatched(&mut self, unmatched: &Unmatched) {
        if self.facts.contains_key(KEEPS_ALL) {
            return;
        }
        self.put_fact(KEEPS_ALL, &unmatched.step);
        self.note(Level::Warn, JournalKind::Checkpoint, sentences::keeps_all(unmatched));
    }

    /// Remembers the evaluations of an attempt that an earlier keeper began: their checkpoints may be saved yet.
    pub(super) fn recall_evals(&mut self, attempt: u64) {
        let stored = self.read_store(Writer::evals).unwrap_or_default();
        let newest = stored.into_iter().rev().filter(|row| row.attempt == attempt).take(EVALS);
        self.evals = newest.map(|row| (row.eval.step, row.eval)).collect();
    }
}
