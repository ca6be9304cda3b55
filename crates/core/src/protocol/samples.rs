//! Samples of the model's work, and the state of its layers, both taken at evaluations.
//!
//! A set of samples is a JSON file in the run directory, its pictures lie beside it. Layers are rows of run.db.

use serde::{Deserialize, Serialize};

/// The samples of one evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleSet {
    /// The step of the evaluation.
    pub step: u64,
    /// The samples, the most telling first.
    pub samples: Vec<Sample>,
    /// How often each class was taken for which, if the task classifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Confusion>,
}

/// One sample of the model's work. A field that does not apply is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its name, such as `validation 17`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of a picture beside the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The text that the model continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The text that the model wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The right answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The model's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The probability that the model gave its answer, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    /// The sample's loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f32>,
}

/// Counts of a classifier's answers on the validation set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// `counts[truth][answer]`: a square with a row and a column for each class.
    pub counts: Vec<Vec<u64>>,
}

/// The state of a model's layers at an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerStats {
    /// The step of the evaluation.
    pub step: u64,
    /// The trained layers, in the model's order.
    pub layers: Vec<Layer>,
}

/// The trained parameters of one module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The module's path: `blocks.0.attention.query`.
    pub name: String,
    /// Norm of its weights after the step.
    pub weight_norm: f64,
    /// Norm of its gradient in the step, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Norm of the step's change, divided by the norm of the weights before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_ratio: Option<f64>,
    /// The share of its units whose gradient was exactly zero over the whole batch of the step, 0 to 1. A unit is
    /// an output: a column of a matrix, a filter of a convolution, an element of a norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<f32>,
    /// Whether its gradient was NaN or infinite in a step since the evaluation before; that step was skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub non_finite: bool,
}

/// The fact of run.db that holds the [`NonFiniteParameter`].
pub const FIRST_NON_FINITE: &str = "first_non_finite";

/// The first parameter of a run whose gradient was NaN or infinite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonFiniteParameter {
    /// The step, which was skipped.
    pub step: u64,
    /// The parameter's path: `blocks.0.attention.query.weight`.
    pub parameter: String,
}

impl NonFiniteParameter {
    /// Reports whether the parameter belongs to a layer of this name.
    #[must_use]
    pub fn is_in(&self, layer: &str) -> bool {
        self.parameter.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::NonFiniteParameter;

    #[test]
    fn a_parameter_belongs_to_its_own_layer_only() {
        let first = NonFiniteParameter { step: 7, parameter: "blocks.1.norm.gamma".to_owned() };
        let layers = ["blocks.1.norm", "blocks.1", "blocks", "blocks.10", "blocks.1.no", "norm"];
        let holds = layers.map(|layer| first.is_in(layer));
        assert_eq!(holds, [true, true, true, false, false, false]);
    }
}
