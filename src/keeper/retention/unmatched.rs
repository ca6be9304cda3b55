//! Evaluations that match no checkpoint. A script may save and evaluate in a way that leaves open which weights were
//! measured; then the best ones may be in a checkpoint without an evaluation.

use crate::config::best::Best;
use crate::format::{count, figure};
use crate::protocol::control::{CheckpointRow, EvalRow};
use crate::protocol::worker::Eval;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An evaluation without a checkpoint that is better than all with one.
#[derive(Debug, Clone, PartialEq)]
pub struct Unmatched {
    /// Its step.
    pub step: u64,
    /// The metric that ranks.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// The checkpoints on disk without an evaluation beside this one or another such evaluation: they may hold its weights.
    pub checkpoints: BTreeSet<u64>,
}

impl fmt::Display for Unmatched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.checkpoints.iter().map(|step| count(*step)).collect();
        let (metric, value, step) = (&self.metric, figure(self.value), count(self.step));
        write!(
            formatter,
            "the evaluation at step {step} ({metric} {value}) matches no checkpoint and is better than all that do; its \
             weights may be those of checkpoint {}",
            steps.join(" or ")
        )
    }
}

/// Returns the best evaluation without a checkpoint whose weights may be on disk all the same; none if the best one with a
/// checkpoint is better.
#[must_use]
pub fn find_unmatched<'a>(
    rows: &[CheckpointRow],
    evals: impl IntoIterator<Item = &'a Eval>,
    ranking: &Best,
) -> Option<Unmatched> {
    let value_of = |row: &CheckpointRow| ranking.value(row.eval_loss, &row.metrics);
    let is_matched = |eval: &Eval| {
        rows.iter().any(|row| {
            let same = |(name, value): (&String, &f64)| row.metrics.get(name) == Some(value);
            row.eval_loss == eval.loss && eval.metrics.iter().all(same)
        })
    };
    let best = rows.iter().filter(|row| row.kept).filter_map(value_of).min_by(|a, b| ranking.compare(*a, *b));
    let is_better = |value: f64| best.is_none_or(|best| ranking.compare(value, best) == Ordering::Less);
    let mut found: Option<Unmatched> = None;
    // No checkpoint holds the weights from before the first step.
    for eval in evals.into_iter().filter(|eval| eval.step > 0 && !is_matched(eval)) {
        let Some(value) = ranking.value(eval.loss, &eval.metrics).filter(|value| is_better(*value)) else { continue };
        let before = rows.iter().filter(|row| row.step <= eval.step).max_by_key(|row| row.step);
        let behind = rows.iter().filter(|row| row.step >= eval.step).min_by_key(|row| row.step);
        let may_hold = |row: &&CheckpointRow| row.kept && value_of(row).is_none();
        let checkpoints: BTreeSet<u64> =
            before.into_iter().chain(behind).filter(may_hold).map(|row| row.step).collect();
        if checkpoints.is_empty() {
            continue;
        }
        let all = found.iter().flat_map(|found| &found.checkpoints).copied().chain(checkpoints).collect();
        let is_first = found.as_ref().is_none_or(|found| ranking.compare(value, found.value) == Ordering::Less);
        let shown =
            if is_first { (eval.step, value) } else { found.map_or((eval.step, value), |it| (it.step, it.value)) };
        found = Some(Unmatched { step: shown.0, metric: ranking.metric.clone(), value: shown.1, checkpoints: all });
    }
    found
}

/// Returns the evaluations in order of their steps, without those that a later attempt redid. They come in order of
/// attempt and step.
#[must_use]
pub fn newest_evaluations(stored: impl Iterator<Item = EvalRow>) -> Vec<EvalRow> {
    let mut known: BTreeMap<u64, Vec<EvalRow>> = BTreeMap::new();
    for row in stored {
        let redone = known.split_off(&row.eval.step);
        let same_step = redone.into_values().next().filter(|rows| is_same(rows, &row)).unwrap_or_default();
        known.entry(row.eval.step).or_insert(same_step).push(row);
    }
    known.into_values().flatten().collect()
}

/// Reports whether an evaluation completes these: a command may report several data sets at one step.
fn is_same(rows: &[EvalRow], row: &EvalRow) -> bool {
    rows.iter().all(|known| (known.attempt, known.eval.step) == (row.attempt, row.eval.step))
}

#[cfg(test)]
mod tests {
    use super::find_unmatched;
    use crate::config::best::Best;
    use crate::protocol::control::CheckpointRow;
    use crate::protocol::worker::Eval;

    fn row(step: u64, eval_loss: Option<f64>) -> CheckpointRow {
        CheckpointRow { step, eval_loss, kept: true, ..CheckpointRow::default() }
    }

    fn eval(step: u64, loss: f64) -> Eval {
        Eval { step, samples: step, loss: Some(loss), ..Eval::default() }
    }

    #[test]
    fn the_best_evaluation_may_be_that_of_a_checkpoint_without_one() {
        let found = |rows: &[CheckpointRow], evals: &[Eval]| {
            find_unmatched(rows, evals, &Best::default()).map(|found| (found.step, Vec::from_iter(found.checkpoints)))
        };
        let rows = [row(98, None), row(200, Some(0.4)), row(301, None), row(310, None)];
        // It lies between two checkpoints of unknown weights; or beside one.
        assert_eq!(found(&rows, &[eval(303, 0.3), eval(200, 0.4)]), Some((303, vec![301, 310])));
        assert_eq!(found(&rows, &[eval(100, 0.3), eval(200, 0.4)]), Some((100, vec![98])));
        assert_eq!(found(&rows, &[eval(100, 0.2), eval(303, 0.3)]), Some((100, vec![98, 301, 310])));
        // It is worse than the best that is known; or its weights were never saved; or it measured untrained weights.
        assert_eq!(found(&rows, &[eval(303, 0.5)]), None);
        assert_eq!(found(&[row(200, Some(0.4)), row(400, Some(0.6))], &[eval(300, 0.3)]), None);
        assert_eq!(found(&rows, &[eval(0, 0.1)]), None);
        // A name that counts otherwise than the output: the values tell.
        assert_eq!(found(&[row(99, Some(0.3)), row(150, None)], &[eval(100, 0.3)]), None);
        let text = find_unmatched(&rows, &[eval(303, 0.3)], &Best::default()).unwrap().to_string();
        assert_eq!(
            text,
            "the evaluation at step 303 (loss 0.300) matches no checkpoint and is better than all that do; its weights may be \
             those of checkpoint 301 or 310"
        );
    }
}
