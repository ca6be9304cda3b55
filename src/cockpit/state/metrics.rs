//! The quantities that a run has: those of every run, and the metrics that it reports by name.

use super::State;
use crate::cockpit::quantity::Quantity;
use crate::protocol::control::{EvalRow, StepRow};
use crate::series::{Metric, MetricNames};

/// Names of the metrics that a run has reported. A name keeps its id for as long as the cockpit shows the run,
/// whatever the store does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunMetrics {
    /// Of its steps.
    pub steps: MetricNames,
    /// Of its evaluations.
    pub evals: MetricNames,
}

impl RunMetrics {
    /// Adds the names of a stored curve.
    pub fn add_names(&mut self, names: &MetricNames) {
        for (_, name) in names.iter() {
            self.steps.find_or_add(name);
        }
    }

    /// Adds the names of a step.
    pub fn add_step(&mut self, row: &StepRow) {
        for name in row.metrics.keys() {
            self.steps.find_or_add(name);
        }
    }

    /// Adds the names of an evaluation.
    pub fn add_eval(&mut self, row: &EvalRow) {
        for name in row.eval.metrics.keys() {
            self.evals.find_or_add(name);
        }
    }
}

impl State {
    /// Returns the quantities of the run, in chart order: metrics of evaluations follow the evaluation loss,
    /// those of steps follow them. A norm or a rate that no step reports is left out.
    #[must_use]
    pub fn quantities(&self) -> Vec<Quantity> {
        let metrics = &self.facts.metrics;
        let mut all = Vec::with_capacity(Quantity::ALL.len() + metrics.steps.len() + metrics.evals.len());
        for quantity in Quantity::ALL {
            all.extend(Some(quantity).filter(|quantity| self.may_report(*quantity)));
            if quantity == Quantity::Evaluation {
                all.extend(metrics.evals.iter().map(|(id, _)| Quantity::EvalNamed(id)));
                all.extend(metrics.steps.iter().map(|(id, _)| Quantity::Named(id)));
            }
        }
        all
    }

    /// Reports whether steps report a quantity, or might once there are some.
    fn may_report(&self, quantity: Quantity) -> bool {
        let metric = match quantity {
            Quantity::GradNorm => Metric::GradNorm,
            Quantity::LearningRate => Metric::Lr,
            _ => return true,
        };
        let whole = self.facts.series.aggregate();
        whole.is_none_or(|whole| whole.skipped == whole.steps || whole.extent(metric).is_some())
    }
}
