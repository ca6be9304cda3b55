//! The single definition of the best evaluation, shared by retention, the cockpit and the commands.

use serde::{Deserialize, Serialize};

/// How checkpoints are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The evaluation metric that ranks.
    #[serde(default)]
    pub metric: Metric,
    /// Whether lower or higher is better.
    #[serde(default)]
    pub goal: Goal,
}

/// A metric of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Metric {
    /// The validation loss.
    #[default]
    Loss,
}

/// The optimization direction of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Goal {
    /// Smaller is better.
    #[default]
    Min,
}

/// A ranking this version does not support.
#[derive(Debug, thiserror::Error)]
pub enum UnsupportedRanking {
    /// An unsupported metric.
    #[error("checkpoints cannot be ranked by `{0}`, only by the validation loss; write loss")]
    Metric(String),
    /// An unsupported goal.
    #[error("the goal for the loss cannot be `{0}`, lower is better; write min")]
    Goal(String),
}

impl TryFrom<String> for Metric {
    type Error = UnsupportedRanking;

    fn try_from(name: String) -> Result<Self, UnsupportedRanking> {
        if name == "loss" { Ok(Self::Loss) } else { Err(UnsupportedRanking::Metric(name)) }
    }
}

impl From<Metric> for String {
    fn from(metric: Metric) -> Self {
        match metric {
            Metric::Loss => "loss".to_owned(),
        }
    }
}

impl TryFrom<String> for Goal {
    type Error = UnsupportedRanking;

    fn try_from(name: String) -> Result<Self, UnsupportedRanking> {
        if name == "min" { Ok(Self::Min) } else { Err(UnsupportedRanking::Goal(name)) }
    }
}

impl From<Goal> for String {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Min => "min".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::knobs::Checkpoint;
    use crate::config::typed;
    use serde_json::json;

    #[test]
    fn only_the_lowest_loss_ranks_and_anything_else_is_refused_with_a_sentence() {
        let (read, problems) = typed::read_tree::<Checkpoint>(&json!({"best": {"metric": "loss", "goal": "min"}}));
        assert_eq!((read, problems.len()), (Some(Checkpoint::default()), 0));
        let (_, problems) = typed::read_tree::<Checkpoint>(&json!({"best": {"metric": "accuracy", "goal": "max"}}));
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            messages[0].contains("best.metric") && messages[0].contains("cannot be ranked by `accuracy`"),
            "{messages:?}"
        );
        assert!(messages[1].contains("best.goal") && messages[1].contains("write min"), "{messages:?}");
    }
}
