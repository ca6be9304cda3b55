//! An evaluation: what a pass over the validation set measured.

use super::metrics::{self, Metrics};
use crate::format::{counted, learning_rate};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A pass over the validation set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "EvalFields", into = "EvalFields")]
pub struct Eval {
    /// The step after which it was measured.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// Mean loss; a command may report none.
    pub loss: Option<f64>,
    /// Anything else that was measured, by name: `accuracy` (0 to 1), `perplexity`.
    pub metrics: Metrics,
    /// The reduction of the learning rate that it caused, if any.
    pub reduced: Option<ReducedRate>,
}

/// A reduction of the learning rate because evaluations stopped improving.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReducedRate {
    /// The step after which the lower rate applies.
    pub step: u64,
    /// The rate before, as scheduled at that step.
    pub from: f64,
    /// The rate from here on.
    pub to: f64,
    /// The factor on the scheduled rate from here on, all reductions of the run included.
    pub factor: f64,
    /// The metric that did not improve.
    pub metric: String,
    /// Evaluations in a row without an improvement.
    pub evaluations: u64,
}

impl fmt::Display for ReducedRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (learning_rate(self.from), learning_rate(self.to));
        let evaluations = counted(self.evaluations, "evaluation");
        let metric = if self.metric == metrics::LOSS { "validation loss" } else { &self.metric };
        write!(formatter, "learning rate {before} → {after}: {metric} has not improved for {evaluations}")
    }
}

impl Eval {
    /// Returns the value of a metric, where `loss` is the mean loss.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        if name == metrics::LOSS { self.loss } else { self.metrics.get(name).copied() }
    }

    /// Adds the numbers of another evaluation of this step that this one lacks. Returns whether there were any.
    pub fn complete(&mut self, more: &Self) -> bool {
        more.add_missing_to(&mut self.loss, &mut self.metrics)
    }

    /// Takes over the numbers of a later report of this step's evaluation: a command may report several data sets, each on
    /// its own line, and an evaluation that prints its progress is measured once it is over. Returns whether any changed.
    pub fn update(&mut self, later: &Self) -> bool {
        self.reduced = later.reduced.clone().or(self.reduced.take());
        later.replace_in(&mut self.loss, &mut self.metrics)
    }

    /// Puts its numbers in place of those that are known of its weights. Returns whether any changed.
    pub fn replace_in(&self, loss: &mut Option<f64>, metrics: &mut Metrics) -> bool {
        let mut is_changed = self.loss.is_some_and(|own| loss.replace(own) != Some(own));
        for (name, value) in &self.metrics {
            is_changed |= metrics.insert(name.clone(), *value) != Some(*value);
        }
        is_changed
    }

    /// Adds its numbers to those that are known of its step, where they are missing. Returns whether any were.
    pub fn add_missing_to(&self, loss: &mut Option<f64>, metrics: &mut Metrics) -> bool {
        let before = (*loss, metrics.len());
        *loss = loss.or(self.loss);
        for (name, value) in &self.metrics {
            metrics.entry(name.clone()).or_insert(*value);
        }
        before != (*loss, metrics.len())
    }
}

/// An evaluation as JSON. Accuracy and perplexity were fields of their own before metrics had names, and
/// scripts read them there.
#[derive(Serialize, Deserialize)]
struct EvalFields {
    step: u64,
    samples: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accuracy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    perplexity: Option<f64>,
    #[serde(default, skip_serializing_if = "Metrics::is_empty", deserialize_with = "metrics::read_finite")]
    metrics: Metrics,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reduced: Option<ReducedRate>,
}

impl From<EvalFields> for Eval {
    fn from(fields: EvalFields) -> Self {
        let EvalFields { step, samples, loss, accuracy, perplexity, mut metrics, reduced } = fields;
        for (name, value) in [(metrics::ACCURACY, accuracy), (metrics::PERPLEXITY, perplexity)] {
            if let Some(value) = value {
                metrics.entry(name.to_owned()).or_insert(value);
            }
        }
        Self { step, samples, loss, metrics, reduced }
    }
}

impl From<Eval> for EvalFields {
    fn from(eval: Eval) -> Self {
        let (accuracy, perplexity) = (eval.value(metrics::ACCURACY), eval.value(metrics::PERPLEXITY));
        let Eval { step, samples, loss, metrics, reduced } = eval;
        Self { step, samples, loss, accuracy, perplexity, metrics, reduced }
    }
}
/// The best evaluation whose weights are on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "BestFields")]
pub struct Best {
    /// Step of its checkpoint.
    pub step: u64,
    /// Its validation loss; a command may report none.
    pub eval_loss: Option<f64>,
    /// The metric that ranks: `loss` or another one of evaluations.
    pub metric: String,
    /// Its value of that metric.
    pub value: f64,
}

/// [`Best`] as read: a status of before ranks by the loss and does not say so.
#[derive(Deserialize)]
struct BestFields {
    step: u64,
    eval_loss: Option<f64>,
    metric: Option<String>,
    value: Option<f64>,
}

impl TryFrom<BestFields> for Best {
    type Error = &'static str;

    fn try_from(fields: BestFields) -> Result<Self, Self::Error> {
        let BestFields { step, eval_loss, metric, value } = fields;
        let value = value.or(eval_loss).ok_or("the best evaluation has no value")?;
        Ok(Self { step, eval_loss, metric: metric.unwrap_or_else(|| metrics::LOSS.to_owned()), value })
    }
}
