//! The quantities that a run has: those of every run, and the metrics that it reports by name.

use super::State;
use super::chart_list::ChartGroup;
use crate::cockpit::quantity::{Quantity, Source};
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
    /// Returns the quantities of the run, group by group. A norm or a rate that no step reports is left out, and so is
    /// a sensor that the machine does not have.
    #[must_use]
    pub fn quantities(&self) -> Vec<Quantity> {
        let metrics = &self.facts.metrics;
        let mut all: Vec<Quantity> = self.reported(Quantity::ALL).collect();
        all.extend(metrics.evals.iter().map(|(id, _)| Quantity::EvalNamed(id)));
        all.extend(metrics.steps.iter().map(|(id, _)| Quantity::Named(id)));
        // The sort is stable: within a group, the order above stays.
        all.sort_by_cached_key(|quantity| ChartGroup::of(*quantity, metrics));
        all
    }

    /// Returns the charts that say most about learning beside the loss; four at most.
    #[must_use]
    pub fn learning_charts(&self) -> Vec<Quantity> {
        use Quantity::{Evaluation, GradNorm, LearningRate, StepTime, Throughput};
        let evaluated = self.facts.evals.values().any(|row| row.eval.loss.is_some());
        let wanted = [Some(Evaluation).filter(|_| evaluated), self.task_quantity()];
        let steps = [LearningRate, GradNorm, Throughput, StepTime].map(Some);
        self.reported(wanted.into_iter().chain(steps).flatten()).take(4).collect()
    }

    /// Returns the sensors to chart: those that the machine has, or before the first reading those of any machine.
    #[must_use]
    pub fn sensors(&self) -> Vec<Quantity> {
        let is_sensor = |quantity: &Quantity| matches!(quantity.source(), Source::Probe(_));
        let known: Vec<Quantity> = self.reported(Quantity::ALL.into_iter().filter(is_sensor)).collect();
        if known.is_empty() { vec![Quantity::Ram, Quantity::Cpu] } else { known }
    }

    /// Returns the sensors that no reading of the probe had; none before the first reading.
    #[must_use]
    pub fn missing_sensors(&self) -> Vec<Quantity> {
        let is_missing = |quantity: &Quantity| match quantity.source() {
            Source::Probe(gauge) => !self.facts.samples.is_empty() && !self.facts.readings.has(gauge),
            _ => false,
        };
        Quantity::ALL.into_iter().filter(is_missing).collect()
    }

    /// Keeps the quantities that the run reports, or might once there are steps.
    fn reported(&self, quantities: impl IntoIterator<Item = Quantity>) -> impl Iterator<Item = Quantity> {
        let whole = self.facts.series.aggregate();
        quantities.into_iter().filter(move |quantity| {
            let metric = match (quantity, quantity.source()) {
                (_, Source::Probe(gauge)) => return self.facts.readings.has(gauge),
                (Quantity::GradNorm, _) => Metric::GradNorm,
                (Quantity::LearningRate, _) => Metric::Lr,
                _ => return true,
            };
            whole.as_ref().is_none_or(|whole| whole.skipped == whole.steps || whole.extent(metric).is_some())
        })
    }
}
