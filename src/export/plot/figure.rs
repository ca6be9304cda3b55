//! Figures that can be plotted, by name.

use super::Loaded;
use crate::protocol::metrics::{LOSS, is_name};
use crate::series::{Metric, MetricNames};
use std::str::FromStr;

/// A quantity shown in a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figure {
    /// A metric that every step has.
    Step(Metric),
    /// The validation loss.
    Eval,
    /// A metric that a run reports by this name: its steps, or as `eval/NAME` its evaluations.
    Named(String),
}

/// Where a run has the values of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values<'a> {
    /// In its steps.
    Steps(Metric),
    /// In its evaluations, under this name.
    Evals(&'a str),
}

impl Figure {
    /// Returns its title, with the unit.
    pub fn title(&self) -> &str {
        match self {
            Self::Step(Metric::Loss) => "Loss",
            Self::Step(Metric::GradNorm) => "Gradient norm",
            Self::Step(Metric::StepMs) => "Step time, ms",
            Self::Step(Metric::Lr) => "Learning rate",
            Self::Step(Metric::DataWaitMs) => "Waiting for data, ms",
            Self::Step(Metric::ComputeMs) => "Computing, ms",
            Self::Step(Metric::Waiting) => "Waiting for data, share of the step",
            Self::Step(Metric::Named(_)) => "",
            Self::Eval => "Validation loss",
            Self::Named(name) => name,
        }
    }

    /// Returns its name on the command line.
    pub fn name(&self) -> &str {
        const FIXED: &[(Metric, &str)] = &[
            (Metric::Loss, "loss"),
            (Metric::GradNorm, "grad_norm"),
            (Metric::StepMs, "step_ms"),
            (Metric::Lr, "lr"),
            (Metric::DataWaitMs, "data_wait_ms"),
            (Metric::ComputeMs, "compute_ms"),
            (Metric::Waiting, "waiting"),
        ];
        match self {
            Self::Step(metric) => FIXED.iter().find(|(known, _)| known == metric).map_or("", |(_, name)| name),
            Self::Eval => "eval",
            Self::Named(name) => name,
        }
    }

    /// Reports whether smoothing makes sense: not for a schedule.
    pub fn is_noisy(&self) -> bool {
        !matches!(self, Self::Eval | Self::Step(Metric::Lr))
    }

    /// Returns where a run has its values; `None` if it has none under this name.
    pub(super) fn find_in<'a>(&'a self, run: &Loaded) -> Option<Values<'a>> {
        match self {
            Self::Step(metric) => Some(Values::Steps(*metric)),
            Self::Eval => Some(Values::Evals(LOSS)),
            Self::Named(name) => {
                run.series.names().find(name).map(|id| Values::Steps(Metric::Named(id))).or_else(|| {
                    let name = name.strip_prefix(EVAL)?;
                    run.evals.iter().any(|row| row.eval.metrics.contains_key(name)).then_some(Values::Evals(name))
                })
            }
        }
    }
}

/// Begins the names of evaluations' metrics.
const EVAL: &str = "eval/";

/// Returns the names of all figures of some runs.
pub(super) fn figure_names(runs: &[Loaded]) -> Vec<String> {
    let every = MetricNames::default();
    let mut names: Vec<String> = Metric::ALL.iter().map(|metric| metric.name(&every).to_owned()).collect();
    names.push("eval".to_owned());
    let of_steps = runs.iter().flat_map(|run| run.series.names().iter().map(|(_, name)| name.to_owned()));
    let evals = runs.iter().flat_map(|run| &run.evals);
    let evals = evals.flat_map(|row| row.eval.metrics.keys().map(|name| format!("{EVAL}{name}")));
    for name in of_steps.chain(evals) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A name that no metric can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a metric's name has at most 64 letters, digits and _ . / -")]
pub struct BadName;

impl FromStr for Figure {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let steps = Metric::find(text, &MetricNames::default()).map(Self::Step);
        let eval = (text == "eval").then_some(Self::Eval);
        let named = || is_name(text).then(|| Self::Named(text.to_owned()));
        steps.or(eval).or_else(named).ok_or(BadName)
    }
}
