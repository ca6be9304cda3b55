//! The single definition of the best evaluation, shared by retention, the cockpit and the commands.

use super::quality;
use crate::recipe::learning::{Learning, Measured, restore_nan};
use crate::recipe::metrics::{ACCURACY, LOSS, Metrics, PERPLEXITY, QUALITY, is_name};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// How checkpoints are ranked: by a metric of the evaluation of exactly their weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Best {
    /// The metric: `loss`, or any other that evaluations report.
    pub metric: String,
    /// Whether lower or higher is better.
    pub goal: Goal,
}

impl Default for Best {
    fn default() -> Self {
        Self { metric: LOSS.to_owned(), goal: Goal::Min }
    }
}

/// The optimization direction of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Goal {
    /// Smaller is better.
    Min,
    /// Larger is better.
    Max,
}

impl Best {
    /// Returns the value that ranks an evaluation; `None` if it lacks the metric.
    #[must_use]
    pub fn value(&self, loss: Option<f64>, metrics: &Metrics) -> Option<f64> {
        let value = if self.metric == LOSS { loss } else { metrics.get(&self.metric).copied() };
        value.filter(|value| value.is_finite())
    }

    /// Condenses evaluations, one for each step, in order.
    #[must_use]
    pub fn follow<'a>(&self, evals: impl IntoIterator<Item = (Option<f64>, &'a Metrics)>) -> Learning {
        restore_nan(evals).map(|(loss, metrics)| self.measure(loss, metrics)).collect()
    }

    fn measure(&self, loss: Option<f64>, metrics: &Metrics) -> Measured {
        let value = if self.metric == LOSS { loss } else { metrics.get(&self.metric).copied() };
        let cost = value.map(|value| if self.goal == Goal::Max { -value } else { value });
        Measured { loss, cost }
    }

    /// Returns how a metric is ranked whose goal needs no words: lower losses, higher accuracies.
    #[must_use]
    pub fn of_known(metric: &str) -> Option<Self> {
        let measured = metric.strip_prefix(QUALITY);
        let goal = match measured.unwrap_or(metric) {
            LOSS | PERPLEXITY => Goal::Min,
            ACCURACY => Goal::Max,
            _ => quality::source_of(measured?)?.1,
        };
        Some(Self { metric: metric.to_owned(), goal })
    }

    /// Returns the ranking by a metric; its goal may be left out if it needs no words.
    pub(super) fn of(MetricName(metric): MetricName, goal: Option<Goal>) -> Result<Self, InvalidRanking> {
        match (goal, Self::of_known(&metric)) {
            (Some(goal), _) => Ok(Self { metric, goal }),
            (None, Some(known)) => Ok(known),
            (None, None) => Err(InvalidRanking::NoGoal(metric)),
        }
    }

    /// Orders two values; the better one is less.
    #[must_use]
    pub fn compare(&self, a: f64, b: f64) -> Ordering {
        match self.goal {
            Goal::Min => a.total_cmp(&b),
            Goal::Max => b.total_cmp(&a),
        }
    }
}

/// [`Best`] as written in a run file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    metric: MetricName,
    goal: Option<Goal>,
}

impl TryFrom<Written> for Best {
    type Error = InvalidRanking;

    fn try_from(written: Written) -> Result<Self, InvalidRanking> {
        Self::of(written.metric, written.goal)
    }
}

/// The name of a metric.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct MetricName(String);

impl Default for MetricName {
    fn default() -> Self {
        Self(LOSS.to_owned())
    }
}

impl TryFrom<String> for MetricName {
    type Error = InvalidRanking;

    fn try_from(name: String) -> Result<Self, InvalidRanking> {
        if is_name(&name) { Ok(Self(name)) } else { Err(InvalidRanking::Name(name)) }
    }
}

/// A ranking that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRanking {
    /// Not a metric's name.
    #[error("`{0}` is not a metric name; a name has at most 64 letters, digits and _ . / -")]
    Name(String),
    /// An unknown goal.
    #[error("the goal cannot be `{0}`; write min if lower is better, or max")]
    Goal(String),
    /// Nothing says whether lower or higher is better.
    #[error("which {0} is better? add goal: min for the lowest, or goal: max for the highest")]
    NoGoal(String),
}

impl TryFrom<String> for Goal {
    type Error = InvalidRanking;

    fn try_from(name: String) -> Result<Self, InvalidRanking> {
        match name.as_str() {
            "min" => Ok(Self::Min),
            "max" => Ok(Self::Max),
            _ => Err(InvalidRanking::Goal(name)),
        }
    }
}

impl From<Goal> for String {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Min => "min".to_owned(),
            Goal::Max => "max".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Best, Goal};
    use crate::config::knobs::Checkpoint;
    use crate::config::typed;
    use crate::recipe::metrics::Metrics;
    use serde_json::{Value, json};

    fn read(best: &Value) -> (Option<Best>, Vec<String>) {
        let (read, problems) = typed::read_tree::<Checkpoint>(&json!({ "best": best }));
        (read.map(|checkpoint| checkpoint.best), problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn any_metric_ranks_and_the_goal_is_never_guessed() {
        for (written, metric, goal) in [
            (json!({}), "loss", Goal::Min),
            (json!({"metric": "loss", "goal": "min"}), "loss", Goal::Min),
            (json!({"metric": "accuracy"}), "accuracy", Goal::Max),
            (json!({"metric": "perplexity"}), "perplexity", Goal::Min),
            (json!({"metric": "val/fid", "goal": "min"}), "val/fid", Goal::Min),
            (json!({"metric": "quality.calibration"}), "quality.calibration", Goal::Min),
            (json!({"metric": "quality.worst_class_accuracy"}), "quality.worst_class_accuracy", Goal::Max),
            (json!({"metric": "reward", "goal": "max"}), "reward", Goal::Max),
        ] {
            let best = Best { metric: metric.to_owned(), goal };
            assert_eq!(read(&written), (Some(best.clone()), Vec::new()), "{written}");
            assert_eq!(read(&serde_json::to_value(&best).unwrap()).0, Some(best), "run.yaml reads what it writes");
        }
        for (written, path, text) in [
            (json!({"metric": "reward"}), "best", "goal: max"),
            (json!({"metric": "quality.fid"}), "best", "goal: max"),
            (json!({"metric": "quality.inaccuracy"}), "best", "goal: max"),
            (json!({"metric": "a b"}), "best.metric", "`a b` is not a metric name"),
            (json!({"goal": "up"}), "best.goal", "write min if lower is better"),
        ] {
            let (_, problems) = read(&written);
            assert!(problems.len() == 1 && problems[0].contains(path) && problems[0].contains(text), "{problems:?}");
        }
    }

    #[test]
    fn the_better_value_is_less() {
        let best = Best { metric: "accuracy".to_owned(), goal: Goal::Max };
        let metrics = |value| Metrics::from([("accuracy".to_owned(), value)]);
        let ranked = |value| best.value(Some(0.1), &metrics(value));
        assert_eq!((ranked(0.5), ranked(f64::NAN), best.value(Some(0.1), &Metrics::new())), (Some(0.5), None, None));
        assert!(best.compare(0.9, 0.8).is_lt() && Best::default().compare(0.8, 0.9).is_lt());
    }
}
