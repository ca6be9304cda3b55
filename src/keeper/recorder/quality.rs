//! Records the quality of a checkpoint, which is measured later than its evaluation.

use super::{Recorder, now_ms};
use crate::protocol::control::{CheckpointRow, EvalRow, Update};
use crate::protocol::metrics::Metrics;
use crate::protocol::worker::{Eval, Event};
use crate::store::writer::Writer;
use std::collections::BTreeSet;

impl Recorder {
    /// Returns the newest checkpoint on disk, except these.
    pub fn newest_checkpoint(&self, except: &BTreeSet<u64>) -> Option<&CheckpointRow> {
        // They are in the order of their saves, and none that is kept is beyond a later one.
        self.checkpoints.iter().rev().find(|row| row.kept && row.step > 0 && !except.contains(&row.step))
    }

    /// Returns the run's clock at the step of a checkpoint.
    pub fn samples_at(&self, step: u64) -> u64 {
        self.checkpoints.iter().find(|row| row.step == step).map_or(0, |row| row.samples)
    }

    /// Keeps a checkpoint on disk while it is measured.
    pub fn hold(&mut self, step: Option<u64>) {
        self.under_measurement = step;
    }

    /// Returns the attempt that wrote a checkpoint: the newest that had begun by then.
    pub fn attempt_of(&mut self, checkpoint: &CheckpointRow) -> u64 {
        let time_ms = checkpoint.time_ms;
        if time_ms >= self.row.started_ms {
            return self.attempt.id;
        }
        self.read_store(|store: &mut Writer| store.attempt_at(time_ms)).ok().flatten().unwrap_or(self.attempt.id)
    }

    /// Records metrics of a checkpoint's weights as a part of the evaluation of its step.
    pub fn record_quality(&mut self, checkpoint: &CheckpointRow, attempt: u64, metrics: Metrics) {
        let eval = Eval { step: checkpoint.step, samples: checkpoint.samples, loss: None, metrics, reduced: None };
        let mut event = Event::Eval(eval);
        self.admit_metrics(&mut event);
        let Event::Eval(eval) = event else { return };
        let row = EvalRow { attempt, time_ms: now_ms(), eval };
        self.batch.evals.push(row.clone());
        self.updates.push(Update::Eval(row.clone()));
        let eval = row.eval;
        // The step may have been saved once more meanwhile; in another attempt it may hold other weights.
        let now = self.checkpoints.iter().find(|row| row.kept && row.step == eval.step).cloned();
        let is_same = now.is_some_and(|row| self.attempt_of(&row) == attempt);
        let saved = self.checkpoints.iter_mut().find(|row| is_same && row.kept && row.step == eval.step);
        if saved.is_some_and(|row| eval.add_missing_to(&mut row.eval_loss, &mut row.metrics)) {
            self.mark_best();
            self.put_checkpoint(eval.step);
        }
        if attempt == self.attempt.id {
            // The step may be saved once more.
            self.evals.entry(eval.step).or_insert_with(|| eval.clone()).complete(&eval);
        }
        match &mut self.status.eval {
            Some(newest) if newest.step == eval.step => drop(newest.complete(&eval)),
            Some(_) => {}
            None => self.status.eval = Some(eval.clone()),
        }
        self.curve.record(&eval, &self.ranking);
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::Recorder;
    use crate::config::best::{Best, Goal};
    use crate::protocol::blank;
    use crate::protocol::worker::{Eval, Event, Saved};
    use crate::store::writer::Writer;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn event(event: &Event, recorder: &mut Recorder) {
        recorder.record_event(event, Duration::ZERO);
    }

    fn saved(step: u64) -> Event {
        let path = format!("checkpoints/step-{step:09}");
        Event::Saved(Saved { path, step, samples: step, ..Saved::default() })
    }

    #[test]
    fn quality_completes_the_evaluation_of_its_step_in_the_attempt_that_wrote_the_checkpoint() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), blank::status()).unwrap();
        recorder.ranking = Best { metric: "quality.fid".to_owned(), goal: Goal::Min };
        let fid = |value: f64| [("quality.fid".to_owned(), value)].into();
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        let loss = Eval { step: 1, samples: 1, loss: Some(0.5), ..Eval::default() };
        for happened in [Event::Eval(loss), saved(1), saved(2)] {
            event(&happened, &mut recorder);
        }
        recorder.flush();
        // Both are measured after the next attempt has begun.
        recorder.row.started_ms -= 20;
        recorder.checkpoints.iter_mut().for_each(|row| row.time_ms -= 10);
        recorder.put_attempt();
        recorder.flush();
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        for (step, value) in [(2, 7.0), (1, 5.0)] {
            let row = recorder.checkpoints.iter().find(|row| row.step == step).cloned().unwrap();
            let attempt = recorder.attempt_of(&row);
            assert_eq!(attempt, 1);
            recorder.record_quality(&row, attempt, fid(value));
        }
        recorder.flush();
        let best = recorder.status.best.as_ref().map(|best| (best.step, best.value, best.eval_loss));
        assert_eq!(best, Some((1, 5.0, Some(0.5))));
        assert_eq!(recorder.status.eval.as_ref().map(|eval| (eval.step, eval.metrics.len())), Some((1, 1)));
        let rows = recorder.store.evals().unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.attempt, row.eval.step, row.eval.loss, row.eval.metrics["quality.fid"]))
            .collect();
        assert_eq!(rows, [(1, 1, Some(0.5), 5.0), (1, 2, None, 7.0)]);
        assert_eq!(recorder.learning().since_best(), Some(1), "5.0 at step 1 is better than 7.0 at step 2");
        assert_eq!(recorder.newest_checkpoint(&BTreeSet::from([2])).map(|row| row.step), Some(1));
    }
}
