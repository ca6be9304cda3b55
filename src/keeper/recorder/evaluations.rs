//! Records evaluations, and follows them to report a run that no longer learns.

use super::Recorder;
use crate::config::best::Best;
use crate::keeper::retention::newest_evaluations;
use crate::protocol::control::{EvalRow, JournalKind, Update};
use crate::protocol::worker::{Eval, Level, ReducedRate};
use crate::recipe::learning::Learning;
use crate::store::writer::Writer;
use std::collections::BTreeMap;

/// The evaluations of the curve, one for each step: a command may report several data sets at one step, and a harness
/// that is taken over repeats the newest ones.
#[derive(Debug, Default)]
pub(super) struct EvaluationCurve {
    by_step: BTreeMap<u64, Eval>,
    learning: Learning,
}

impl EvaluationCurve {
    /// Creates the curve of these evaluations.
    fn of(evals: impl IntoIterator<Item = Eval>, ranking: &Best) -> Self {
        let mut curve = Self::default();
        evals.into_iter().for_each(|eval| curve.complete(&eval));
        curve.condense(ranking);
        curve
    }

    pub(super) fn record(&mut self, eval: &Eval, ranking: &Best) {
        self.complete(eval);
        self.condense(ranking);
    }

    /// Forgets the evaluations after a step.
    pub(super) fn go_back(&mut self, step: u64, ranking: &Best) {
        self.by_step.split_off(&step.saturating_add(1));
        self.condense(ranking);
    }

    /// Returns the evaluations, in order of their steps.
    pub(super) fn evaluations(&self) -> impl Iterator<Item = &Eval> {
        self.by_step.values()
    }

    /// Returns the newest reduction of the learning rate that is part of the curve.
    fn newest_reduction(&self) -> Option<&ReducedRate> {
        self.by_step.values().rev().find_map(|eval| eval.reduced.as_ref())
    }

    fn complete(&mut self, eval: &Eval) {
        let known = self.by_step.entry(eval.step).or_insert_with(|| Eval { loss: None, ..eval.clone() });
        known.update(eval);
    }

    fn condense(&mut self, ranking: &Best) {
        self.learning = ranking.follow(self.by_step.values().map(|eval| (eval.loss, &eval.metrics)));
    }
}

impl Recorder {
    /// Returns the evaluations so far, condensed.
    pub fn learning(&self) -> &Learning {
        &self.curve.learning
    }

    pub(super) fn record_eval(&mut self, eval: &Eval, time_ms: i64) {
        match &mut self.status.eval {
            Some(newest) if newest.step == eval.step => drop(newest.update(eval)),
            newest => *newest = Some(eval.clone()),
        }
        let row = EvalRow { attempt: self.attempt.id, time_ms, eval: eval.clone() };
        self.batch.evals.push(row.clone());
        self.updates.push(Update::Eval(row));
        self.measure_checkpoint(eval);
        self.curve.record(eval, &self.ranking);
        if let Some(reduced) = &eval.reduced {
            self.status.reduced = Some(reduced.clone());
            self.note(Level::Info, JournalKind::Rate, reduced.to_string());
        }
    }

    /// Starts over from the evaluations in the store up to a step, as the rung now ranks them. A worker that resumes at
    /// this step redoes those after it.
    pub(super) fn recall_learning(&mut self, up_to: u64) {
        let stored = self.read_store(Writer::evals).unwrap_or_default();
        let newest = newest_evaluations(stored.into_iter().filter(|row| row.eval.step <= up_to));
        self.curve = EvaluationCurve::of(newest.into_iter().map(|row| row.eval), &self.ranking);
        self.status.reduced = self.curve.newest_reduction().cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::EvaluationCurve;
    use crate::config::best::{Best, Goal};
    use crate::keeper::retention::newest_evaluations;
    use crate::protocol::control::EvalRow;
    use crate::protocol::worker::Eval;

    fn eval(step: u64, loss: f64) -> Eval {
        Eval { step, samples: step, loss: Some(loss), ..Eval::default() }
    }

    fn row(attempt: u64, step: u64, loss: f64) -> EvalRow {
        EvalRow { attempt, time_ms: 0, eval: eval(step, loss) }
    }

    #[test]
    fn evaluations_that_were_redone_do_not_count() {
        let stored =
            [row(1, 10, 0.5), row(1, 20, 0.1), row(1, 30, 0.2), row(2, 15, 0.4), row(2, 25, 0.3), row(2, 25, 0.3)];
        let newest = newest_evaluations(stored.into_iter());
        assert_eq!(newest.iter().map(|row| row.eval.step).collect::<Vec<_>>(), [10, 15, 25, 25]);
        let curve = EvaluationCurve::of(newest.into_iter().map(|row| row.eval), &Best::default());
        assert_eq!(curve.learning.since_best(), Some(0), "the best of attempt 1 is not part of the curve");
    }

    #[test]
    fn a_step_counts_once_however_often_it_is_reported() {
        let ranking = Best { metric: "fid".to_owned(), goal: Goal::Min };
        let mut curve = EvaluationCurve::default();
        let fid = |step| Eval { loss: None, metrics: [("fid".to_owned(), 1.0)].into(), ..eval(step, 0.0) };
        for step in 1..=3 {
            // The loss and the value that ranks come from two data sets.
            curve.record(&eval(step, 1.0), &ranking);
            curve.record(&fid(step), &ranking);
        }
        assert_eq!(curve.learning.since_best(), Some(2));
        // A harness that is taken over repeats the newest ones.
        curve.record(&fid(2), &ranking);
        curve.record(&fid(3), &ranking);
        assert_eq!(curve.learning.since_best(), Some(2));
        curve.go_back(2, &ranking);
        assert_eq!(curve.learning.since_best(), Some(1));
    }
}
