//! Whether a run still learns, judged by its evaluations: one verdict for keeper, `status` and cockpit.

use super::metrics::{Metrics, is_quality};
use crate::format::counted;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Evaluations in a row with a higher loss that count as rising. Fewer happen by chance on a plateau.
const RISING: u64 = 4;
/// Share of its lowest value by which a rising loss must exceed it: below that, it is noise.
const MARGIN: f64 = 0.02;

/// An evaluation, as far as it matters for learning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Its loss.
    pub loss: Option<f64>,
    /// The value that ranks it, where lower is better; NaN if it has none although it should.
    pub cost: Option<f64>,
}

/// Restores losses that are NaN, in evaluations by step: no message can hold NaN, so such a loss is missing. It was NaN if
/// the evaluation reports nothing that the last one with a loss did not report too; else it is of another kind.
pub fn restore_nan<'a>(
    evals: impl IntoIterator<Item = (Option<f64>, &'a Metrics)>,
) -> impl Iterator<Item = (Option<f64>, &'a Metrics)> {
    let mut with_loss: Option<&Metrics> = None;
    evals.into_iter().map(move |(loss, metrics)| {
        if loss.is_some() {
            with_loss = Some(metrics);
        }
        // Quality is measured later, on some checkpoints: alone, it is an evaluation of another kind.
        let mut own = metrics.keys().filter(|name| !is_quality(name)).peekable();
        let is_quality_alone = own.peek().is_none() && !metrics.is_empty();
        let is_same_kind = with_loss.is_some_and(|known| own.all(|name| known.contains_key(name))) && !is_quality_alone;
        (loss.or(is_same_kind.then_some(f64::NAN)), metrics)
    })
}

/// The evaluations so far, in order, condensed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Learning {
    /// The lowest cost.
    best: Option<f64>,
    /// Evaluations since that one.
    since_best: u64,
    /// The lowest loss.
    lowest: Option<f64>,
    /// The newest loss.
    newest: Option<f64>,
    /// Newest evaluations in a row with a higher loss than the one before.
    rising: u64,
}

impl Learning {
    /// Takes in the next evaluation.
    pub fn record(&mut self, eval: Measured) {
        if let Some(cost) = eval.cost {
            let better = cost.is_finite() && self.best.is_none_or(|best| cost < best);
            self.since_best = if better { 0 } else { self.since_best + 1 };
            self.best = if better { Some(cost) } else { self.best };
        }
        if let Some(loss) = eval.loss.filter(|loss| loss.is_finite()) {
            let rose = self.newest.is_some_and(|before| loss > before);
            self.rising = if rose { self.rising + 1 } else { 0 };
            self.lowest = Some(self.lowest.map_or(loss, |lowest| lowest.min(loss)));
            self.newest = Some(loss);
        }
    }

    /// Returns the number of evaluations since the best one; `None` before the first that can be ranked.
    #[must_use]
    pub fn since_best(&self) -> Option<u64> {
        self.best.map(|_| self.since_best)
    }

    /// Judges the run: `patience` is the number of evaluations without a better one that are reported; 0 = never.
    #[must_use]
    pub fn setback(&self, patience: u64) -> Option<Setback> {
        // A loss that rises while the metric that ranks still improves is not a setback.
        let rising = if self.best.is_some() { self.rising.min(self.since_best) } else { self.rising };
        let clear =
            self.newest.zip(self.lowest).is_some_and(|(newest, lowest)| newest - lowest > lowest.abs() * MARGIN);
        match patience {
            0 => None,
            _ if rising >= RISING && clear => Some(Setback::Rising { evaluations: rising }),
            _ if self.since_best >= patience => Some(Setback::Stalled { evaluations: self.since_best }),
            _ => None,
        }
    }
}

impl Extend<Measured> for Learning {
    fn extend<I: IntoIterator<Item = Measured>>(&mut self, evals: I) {
        evals.into_iter().for_each(|eval| self.record(eval));
    }
}

impl FromIterator<Measured> for Learning {
    fn from_iter<I: IntoIterator<Item = Measured>>(evals: I) -> Self {
        let mut learning = Self::default();
        learning.extend(evals);
        learning
    }
}

/// A sign that the run does not learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sign", rename_all = "snake_case")]
pub enum Setback {
    /// The validation loss rises.
    Rising {
        /// Evaluations in a row with a higher loss.
        evaluations: u64,
    },
    /// No evaluation is better than the best one.
    Stalled {
        /// Evaluations since the best one.
        evaluations: u64,
    },
}

impl fmt::Display for Setback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rising { evaluations } => {
                write!(f, "validation loss rising for {}", counted(*evaluations, "evaluation"))
            }
            Self::Stalled { evaluations } => write!(f, "no better evaluation in the last {evaluations}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Learning, Measured, Setback, restore_nan};
    use crate::recipe::metrics::Metrics;

    fn by_loss(losses: &[f64]) -> Learning {
        losses.iter().map(|loss| Measured { loss: Some(*loss), cost: Some(*loss) }).collect()
    }

    #[test]
    fn a_stall_is_reported_from_the_patience_on() {
        let mut losses = vec![1.0, 0.5];
        for since in 1..=12u64 {
            // Noise above the best, never four rises in a row.
            losses.push(0.5 + 0.01 * (since % 3) as f64);
            let learning = by_loss(&losses);
            assert_eq!(learning.since_best(), Some(since));
            let expected = (since >= 10).then_some(Setback::Stalled { evaluations: since });
            assert_eq!((learning.setback(10), learning.setback(0)), (expected, None), "{since}");
        }
        losses.push(0.49);
        assert_eq!((by_loss(&losses).since_best(), by_loss(&losses).setback(10)), (Some(0), None));
    }

    #[test]
    fn a_rise_is_reported_before_the_patience_ends_and_noise_is_not() {
        assert_eq!(by_loss(&[1.0, 0.5, 0.6, 0.7, 0.8]).setback(10), None, "three may be chance");
        let rising = by_loss(&[1.0, 0.5, 0.6, 0.7, 0.8, 0.9]).setback(10);
        assert_eq!(rising, Some(Setback::Rising { evaluations: 4 }));
        assert_eq!(rising.unwrap().to_string(), "validation loss rising for 4 evaluations");
        assert_eq!(by_loss(&[1.0, 0.5, 0.501, 0.502, 0.503, 0.504]).setback(10), None, "within a fiftieth");
        assert_eq!(by_loss(&[-1.0, -5.0, -4.0, -3.0, -2.0, -1.5]).setback(10), rising, "a loss below zero");
    }

    #[test]
    fn a_loss_that_is_missing_was_nan_unless_the_evaluation_is_of_another_kind() {
        let metrics = |names: &[&str]| -> Metrics { names.iter().map(|name| ((*name).to_owned(), 0.5)).collect() };
        let (none, both, reward) = (metrics(&[]), metrics(&["accuracy", "perplexity"]), metrics(&["reward"]));
        let evals =
            [(None, &none), (Some(0.5), &both), (None, &both), (None, &none), (None, &reward), (Some(0.4), &both)];
        let restored: Vec<Option<bool>> = restore_nan(evals).map(|(loss, _)| loss.map(f64::is_nan)).collect();
        assert_eq!(restored, [None, Some(false), Some(true), Some(true), None, Some(false)]);
        // Quality was measured at the step of the first, and alone at a later one; the loss of the last was NaN.
        let (joined, alone) = (metrics(&["accuracy", "quality.fid"]), metrics(&["quality.fid"]));
        let evals = [(Some(0.5), &joined), (None, &alone), (None, &metrics(&["accuracy"])), (None, &joined)];
        let restored: Vec<bool> = restore_nan(evals).map(|(loss, _)| loss.is_some_and(f64::is_nan)).collect();
        assert_eq!(restored, [false, false, true, true]);
        let nan = Measured { loss: Some(f64::NAN), cost: Some(f64::NAN) };
        let mut learning = by_loss(&[0.5]);
        learning.extend([nan; 10]);
        assert_eq!(learning.since_best(), Some(10));
        assert_eq!(learning.setback(10), Some(Setback::Stalled { evaluations: 10 }));
    }

    #[test]
    fn the_metric_that_ranks_decides_what_is_better() {
        // The loss rises, the accuracy too: cost is its negative.
        let eval = |loss: f64, accuracy: f64| Measured { loss: Some(loss), cost: Some(-accuracy) };
        let rising = [(0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.81), (0.9, 0.82)];
        let mut learning: Learning = rising.iter().map(|(loss, accuracy)| eval(*loss, *accuracy)).collect();
        assert_eq!((learning.since_best(), learning.setback(10)), (Some(0), None));
        learning.extend((0..5).map(|more| eval(1.0 + f64::from(more), 0.8)));
        assert_eq!(learning.setback(10), Some(Setback::Rising { evaluations: 5 }));
        // An evaluation that lacks the metric says nothing about the best; one that is NaN is not better.
        learning.extend([Measured { loss: None, cost: None }, Measured { loss: Some(f64::NAN), cost: Some(f64::NAN) }]);
        assert_eq!((learning.since_best(), learning.setback(10)), (Some(6), Some(Setback::Rising { evaluations: 6 })));
        let unranked = [0.5, 0.6, 0.7, 0.8, 0.9].map(|loss| Measured { loss: Some(loss), cost: None });
        let unranked: Learning = unranked.into_iter().collect();
        assert_eq!((unranked.since_best(), unranked.setback(3)), (None, Some(Setback::Rising { evaluations: 4 })));
    }
}
