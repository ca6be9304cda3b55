//! The evaluations in short: the metric of the task, the validation loss, and how long ago the best one was.

use super::State;
use crate::cockpit::quantity::Quantity;
use crate::config::best::Best;
use crate::protocol::control::EvalRow;
use crate::protocol::metrics::{ACCURACY, LOSS, PERPLEXITY};
use crate::recipe::learning::{Setback, restore_nan};

/// A value of evaluations over the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracked {
    /// Its name among the metrics of evaluations.
    pub metric: String,
    /// The newest value; none if it is NaN.
    pub newest: Option<f64>,
    /// The best value and its step, if it is known which direction is better.
    pub best: Option<(f64, u64)>,
}

/// The evaluations of a run in short.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningSummary {
    /// The metric of the task, if evaluations report one beside the loss.
    pub task: Option<Tracked>,
    /// The validation loss.
    pub loss: Option<Tracked>,
    /// The newest validation losses, oldest first.
    pub losses: Vec<f64>,
    /// Evaluations since the best one, as checkpoints are ranked.
    pub since_best: Option<u64>,
    /// The metric that ranks them.
    pub ranking: String,
    /// A sign that the run does not learn.
    pub setback: Option<Setback>,
}

/// Number of validation losses that are kept for a small curve.
const LOSSES: usize = 64;

impl State {
    /// Condenses the evaluations; `None` before the first one.
    #[must_use]
    pub fn learning(&self) -> Option<LearningSummary> {
        let evals = &self.facts.evals;
        evals.last_key_value()?;
        let ranking = self.ranking();
        let learning = ranking.follow(evals.values().map(|row| (row.eval.loss, &row.eval.metrics)));
        let newest = evals.values().rev().filter_map(|row| row.eval.loss).filter(|loss| loss.is_finite());
        let mut losses: Vec<f64> = newest.take(LOSSES).collect();
        losses.reverse();
        Some(LearningSummary {
            task: self.task_metric().and_then(|metric| self.track(&metric, &ranking)),
            loss: self.track(LOSS, &ranking),
            losses,
            since_best: learning.since_best(),
            ranking: ranking.metric.clone(),
            setback: learning.setback(self.watch.patience),
        })
    }

    /// Returns the sign in the evaluations that the run does not learn, if there is one.
    #[must_use]
    pub fn setback(&self) -> Option<Setback> {
        self.learning()?.setback
    }

    /// Returns the metric of the task: the one that ranks checkpoints unless that is the loss, else a well-known one,
    /// else the first by name.
    fn task_metric(&self) -> Option<String> {
        let names = &self.facts.metrics.evals;
        let ranking = self.ranking().metric;
        let known = [ranking.as_str(), ACCURACY, PERPLEXITY];
        let wanted = known.into_iter().find(|name| *name != LOSS && names.find(name).is_some());
        wanted.or_else(|| names.iter().map(|(_, name)| name).min()).map(str::to_owned)
    }

    /// Returns the quantity of the task's metric.
    #[must_use]
    pub fn task_quantity(&self) -> Option<Quantity> {
        self.facts.metrics.evals.find(&self.task_metric()?).map(Quantity::EvalNamed)
    }

    fn track(&self, metric: &str, ranking: &Best) -> Option<Tracked> {
        let value = |row: &EvalRow| row.eval.value(metric).filter(|value| value.is_finite());
        let values = || self.facts.evals.values().filter_map(|row| Some((value(row)?, row.eval.step)));
        let (finite, _) = values().next_back()?;
        let all = self.facts.evals.values().map(|row| (row.eval.loss, &row.eval.metrics));
        let newest_loss = || restore_nan(all).filter_map(|(loss, _)| loss).last();
        let newest = if metric == LOSS { newest_loss().filter(|loss| loss.is_finite()) } else { Some(finite) };
        let known = if ranking.metric == metric { Some(ranking.clone()) } else { Best::of_known(metric) };
        let best = known.and_then(|known| values().min_by(|a, b| known.compare(a.0, b.0)));
        Some(Tracked { metric: metric.to_owned(), newest, best })
    }
}

#[cfg(test)]
mod tests {
    use crate::cockpit::fixture;
    use crate::cockpit::state::State;
    use crate::protocol::control::{EvalRow, RunState, Update};
    use crate::protocol::metrics::{ACCURACY, LOSS, Metrics};
    use crate::protocol::worker::Eval;
    use crate::recipe::learning::Setback;
    use serde_json::json;

    fn evaluate(state: &mut State, step: u64, loss: Option<f64>, metrics: &[(&str, f64)]) {
        let metrics: Metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let row = EvalRow {
            attempt: 2,
            time_ms: fixture::NOW,
            eval: Eval { step, samples: step * 32, loss, metrics, ..Eval::default() },
        };
        state.facts.apply_update(Update::Eval(row), fixture::NOW);
    }

    #[test]
    fn the_metric_of_the_task_is_the_one_that_ranks_or_a_known_one() {
        let mut state = fixture::young((120, 40));
        assert_eq!(state.learning(), None);
        for (step, accuracy) in [(10u64, 0.5), (20, 0.7), (30, 0.6)] {
            evaluate(&mut state, step, Some(1.0 / step as f64), &[(ACCURACY, accuracy), ("bleu", accuracy * 10.0)]);
        }
        let summary = state.learning().unwrap();
        let task = summary.task.unwrap();
        assert_eq!((task.metric.as_str(), task.newest, task.best), (ACCURACY, Some(0.6), Some((0.7, 20))));
        assert_eq!(summary.loss.unwrap().best, Some((1.0 / 30.0, 30)));
        assert_eq!(summary.since_best, Some(0), "the loss ranks unless the run file says otherwise");
        state.ladder[0].preset["checkpoint"] = json!({"best": {"metric": "bleu", "goal": "max"}});
        let summary = state.learning().unwrap();
        assert_eq!(summary.task.unwrap().best, Some((7.0, 20)));
        assert_eq!(summary.since_best, Some(1));
    }

    #[test]
    fn a_metric_without_a_known_direction_has_no_best() {
        let mut state = fixture::young((120, 40));
        evaluate(&mut state, 10, None, &[("reward", 3.0)]);
        evaluate(&mut state, 20, None, &[("reward", 2.0)]);
        let summary = state.learning().unwrap();
        let task = summary.task.unwrap();
        assert_eq!((task.metric.as_str(), task.newest, task.best), ("reward", Some(2.0), None));
        assert_eq!((summary.loss, summary.since_best, summary.setback), (None, None, None));
        assert_eq!(state.run_state(), Some(RunState::Starting));
        assert!(summary.losses.is_empty());
    }

    #[test]
    fn several_data_sets_at_one_step_are_one_evaluation() {
        let mut state = fixture::young((120, 40));
        evaluate(&mut state, 10, Some(0.5), &[]);
        evaluate(&mut state, 10, None, &[(ACCURACY, 0.9)]);
        let summary = state.learning().unwrap();
        assert_eq!(summary.task.and_then(|task| task.newest), Some(0.9));
        assert_eq!(summary.loss.map(|loss| (loss.metric, loss.newest)), Some((LOSS.to_owned(), Some(0.5))));
    }

    #[test]
    fn an_evaluation_whose_loss_is_nan_is_not_better() {
        let mut state = fixture::young((120, 40));
        for (step, loss) in [(10, Some(0.5)), (20, Some(0.4)), (30, None), (40, None)] {
            evaluate(&mut state, step, loss, &[(ACCURACY, 0.5)]);
        }
        let summary = state.learning().unwrap();
        assert_eq!(summary.loss.map(|loss| (loss.newest, loss.best)), Some((None, Some((0.4, 20)))));
        assert_eq!(summary.since_best, Some(2));
        state.watch.patience = 2;
        assert_eq!(state.setback(), Some(Setback::Stalled { evaluations: 2 }));
    }

    #[test]
    fn the_patience_of_the_run_file_counts() {
        let mut state = fixture::young((120, 40));
        for step in 1..=6 {
            evaluate(&mut state, step, Some(if step == 1 { 0.5 } else { 0.6 }), &[]);
        }
        assert_eq!(state.setback(), None);
        state.watch.patience = 5;
        assert_eq!(state.setback(), Some(Setback::Stalled { evaluations: 5 }));
        state.watch.patience = 0;
        assert_eq!(state.setback(), None);
    }
}
