//! `optimizer.plateau`: the learning rate is lowered when evaluations stop improving.

use super::best::{Best, Goal, InvalidRanking, MetricName};
use crate::recipe::metrics::Metrics;
use crate::recipe::plateau::{Evaluated, Rule};
use serde::{Deserialize, Serialize};

/// The rule, and the metric of evaluations that it follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Plateau {
    /// The metric and its goal.
    #[serde(flatten)]
    pub by: Best,
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
}

impl Plateau {
    /// Returns the ranking in words, which the training state keeps.
    #[must_use]
    pub fn ranking(&self) -> String {
        let goal = if self.by.goal == Goal::Max { "highest" } else { "lowest" };
        format!("{goal} {}", self.by.metric)
    }

    /// Returns an evaluation as the rule takes it in; `None` if it lacks the metric.
    #[must_use]
    pub fn measure<'a>(
        &self,
        step: u64,
        loss: Option<f64>,
        metrics: &Metrics,
        ranking: &'a str,
    ) -> Option<Evaluated<'a>> {
        let value = self.by.value(loss, metrics)?;
        let cost = if self.by.goal == Goal::Max { -value } else { value };
        Some(Evaluated { step, ranking, cost })
    }
}

/// [`Plateau`] as written in a run file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    metric: MetricName,
    goal: Option<Goal>,
    #[serde(default = "default_factor")]
    factor: f64,
    #[serde(default = "default_patience")]
    patience: u64,
    #[serde(default = "default_threshold")]
    threshold: f64,
    #[serde(default)]
    cooldown: u64,
    #[serde(default)]
    min_lr: f64,
}

impl TryFrom<Written> for Plateau {
    type Error = InvalidRanking;

    fn try_from(written: Written) -> Result<Self, InvalidRanking> {
        let Written { metric, goal, factor, patience, threshold, cooldown, min_lr } = written;
        let rule = Rule { factor, patience, threshold, cooldown, min_lr };
        Ok(Self { by: Best::of(metric, goal)?, rule })
    }
}

fn default_factor() -> f64 {
    Rule::default().factor
}

fn default_patience() -> u64 {
    Rule::default().patience
}

fn default_threshold() -> f64 {
    Rule::default().threshold
}

#[cfg(test)]
mod tests {
    use super::Plateau;
    use crate::config::knobs::Optimizer;
    use crate::config::typed;
    use crate::recipe::metrics::Metrics;
    use crate::recipe::plateau::Rule;
    use serde_json::{Value, json};

    fn read(plateau: &Value) -> (Option<Plateau>, Vec<String>) {
        let (read, problems) = typed::read_tree::<Optimizer>(&json!({ "lr": 0.1, "plateau": plateau }));
        (read.and_then(|optimizer| optimizer.plateau), problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn it_is_off_unless_written_and_reads_what_it_writes() {
        assert_eq!(read(&Value::Null), (None, Vec::new()));
        let (plain, problems) = read(&json!({}));
        assert!(problems.is_empty(), "{problems:?}");
        let plain = plain.unwrap();
        assert_eq!((plain.rule, plain.ranking().as_str()), (Rule::default(), "lowest loss"));
        let (other, _) = read(&json!({"metric": "accuracy", "factor": 0.1, "patience": 0, "min_lr": 1e-5}));
        let other = other.unwrap();
        assert_eq!(other.ranking(), "highest accuracy");
        for plateau in [plain, other] {
            assert_eq!(read(&serde_json::to_value(&plateau).unwrap()), (Some(plateau), Vec::new()));
        }
    }

    #[test]
    fn a_goal_is_never_guessed_and_a_wrong_key_is_named() {
        for (written, text) in [
            (json!({"metric": "reward"}), "goal: max"),
            (json!({"patiance": 3}), "patience"),
            (json!({"factor": "half"}), "plateau.factor"),
        ] {
            let (_, problems) = read(&written);
            assert!(problems.len() == 1 && problems[0].contains(text), "{problems:?}");
        }
    }

    #[test]
    fn an_evaluation_without_the_metric_does_not_count() {
        let plateau = read(&json!({"metric": "accuracy"})).0.unwrap();
        assert_eq!(plateau.measure(7, Some(0.5), &Metrics::new(), ""), None);
        let metrics = Metrics::from([("accuracy".to_owned(), 0.75)]);
        let measured = plateau.measure(7, Some(0.5), &metrics, "").unwrap();
        assert!(measured.step == 7 && (measured.cost + 0.75).abs() < f64::EPSILON);
    }
}
