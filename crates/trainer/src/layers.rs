//! The state of the layers, read off one update: its gradients, the weights after it, and the change between.
//!
//! ```text
//! gradient ──▶ Σ g², units whose gradient is zero ─┐
//! weights before and after ──▶ Σ w², Σ Δw² ────────┴─▶ four numbers for each parameter, one read-back ──▶ layers
//! ```
//! A unit is an output of its layer: a column of a matrix, a filter of a convolution, an element of a norm. It is
//! dead in a step if its gradient is exactly zero, summed over the whole batch: with ReLU, no sample reached it.
//! Only weights count where a module has any; its biases would count the same units again.

use burn::tensor::{
    FloatDType, Tensor,
    backend::{Backend, ExecutionError},
};
use downshift_core::protocol::samples::Layer;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// The most layers to report: deeper paths are merged until there are no more.
const MAX_LAYERS: usize = 200;
/// Sums of a parameter: of its gradient, its dead units, its weights and their change.
const SUMS: usize = 4;

/// Observes one update. The sums stay on the device until [`UpdateObserver::read`].
pub struct UpdateObserver<B: Backend> {
    parameters: Vec<(String, usize, usize)>,
    sums: Vec<Tensor<B, 1>>,
}

impl<B: Backend> Default for UpdateObserver<B> {
    fn default() -> Self {
        Self { parameters: Vec::new(), sums: Vec::new() }
    }
}

/// A parameter's part in one update.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParameterStats {
    path: String,
    rank: usize,
    units: usize,
    grad_square: f64,
    dead: f64,
    weight_square: f64,
    change_square: f64,
}

impl<B: Backend> UpdateObserver<B> {
    /// Observes the gradient of a parameter, before clipping; its change follows. All sums are in `f32`: in `f16`
    /// a sum of squares overflows.
    pub fn observe_gradient<const D: usize>(&mut self, path: &str, gradient: &Tensor<B, D>) {
        let gradient = gradient.clone().cast(FloatDType::F32);
        let sums = unit_sums(gradient.clone().abs());
        self.parameters.push((path.to_owned(), D, sums.dims()[0]));
        self.sums.push(gradient.square().sum());
        self.sums.push(sums.equal_elem(0.0).float().cast(FloatDType::F32).sum());
    }

    /// Observes the change of the parameter whose gradient was observed last.
    pub fn observe_change<const D: usize>(&mut self, before: Tensor<B, D>, after: Tensor<B, D>) {
        let (before, after) = (before.cast(FloatDType::F32), after.cast(FloatDType::F32));
        self.sums.push(after.clone().square().sum());
        self.sums.push((after - before).square().sum());
    }

    /// Waits for the sums, in the order of the parameters.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn read(self) -> Result<Vec<ParameterStats>, ExecutionError> {
        // CUDA panics on an empty read.
        if self.sums.is_empty() {
            return Ok(Vec::new());
        }
        let sums: Vec<f64> = Tensor::cat(self.sums, 0).try_into_data()?.iter::<f64>().collect();
        let stats = iter::zip(self.parameters, sums.chunks_exact(SUMS)).map(|((path, rank, units), sums)| {
            let (grad_square, dead, weight_square, change_square) = (sums[0], sums[1], sums[2], sums[3]);
            ParameterStats { path, rank, units, grad_square, dead, weight_square, change_square }
        });
        Ok(stats.collect())
    }
}

/// Returns the sum of each unit, `[units]`: of each column of a matrix, each filter of a convolution, each element
/// of a vector.
fn unit_sums<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, 1> {
    let shape = tensor.dims();
    match shape[..] {
        [_] => tensor.reshape([shape[0]]),
        [inputs, units] => tensor.reshape([inputs, units]).sum_dim(0).reshape([units]),
        [units, ..] => {
            let inputs = shape[1..].iter().product();
            tensor.reshape([units, inputs]).sum_dim(1).reshape([units])
        }
        [] => tensor.reshape([1]),
    }
}

/// Returns the layers of an update, in the order of its parameters. `non_finite` are the parameters whose gradient
/// was NaN or infinite since the evaluation before.
pub fn layers(parameters: &[ParameterStats], non_finite: &BTreeSet<String>) -> Vec<Layer> {
    let depth = layer_depth(parameters);
    let weighted: BTreeSet<&str> =
        parameters.iter().filter(|one| one.rank > 1).map(|one| module_of(&one.path)).collect();
    let mut order: Vec<&str> = Vec::new();
    let mut sums: BTreeMap<&str, ParameterStats> = BTreeMap::new();
    for parameter in parameters {
        let name = prefix(module_of(&parameter.path), depth);
        let sum = sums.entry(name).or_insert_with(|| {
            order.push(name);
            ParameterStats::default()
        });
        sum.grad_square += parameter.grad_square;
        sum.weight_square += parameter.weight_square;
        sum.change_square += parameter.change_square;
        if parameter.rank > 1 || !weighted.contains(module_of(&parameter.path)) {
            sum.units += parameter.units;
            sum.dead += parameter.dead;
        }
    }
    let failed = |name: &str| non_finite.iter().any(|path| prefix(module_of(path), depth) == name);
    order.into_iter().filter_map(|name| Some(to_layer(name, sums.get(name)?, failed(name)))).collect()
}

fn to_layer(name: &str, sum: &ParameterStats, failed: bool) -> Layer {
    let finite = |value: f64| value.is_finite().then(|| round(value));
    let norm = sum.weight_square.sqrt();
    Layer {
        name: name.to_owned(),
        weight_norm: finite(norm).unwrap_or_default(),
        grad_norm: finite(sum.grad_square.sqrt()),
        update_ratio: finite(sum.change_square.sqrt() / norm),
        dead: (sum.units > 0).then(|| (sum.dead / sum.units as f64) as f32),
        non_finite: failed || !norm.is_finite(),
    }
}

/// Returns the deepest level of module paths at which there are few enough layers.
fn layer_depth(parameters: &[ParameterStats]) -> usize {
    let deepest = parameters.iter().map(|one| module_of(&one.path).split('.').count()).max().unwrap_or(1);
    let fits = |depth: &usize| {
        let names: BTreeSet<&str> = parameters.iter().map(|one| prefix(module_of(&one.path), *depth)).collect();
        names.len() <= MAX_LAYERS
    };
    (1..=deepest).rev().find(fits).unwrap_or(1)
}

/// Returns the path of the module that holds a parameter; a parameter of the root stands for itself.
fn module_of(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(module, _)| module)
}

/// Returns the first `depth` names of a path.
fn prefix(path: &str, depth: usize) -> &str {
    path.match_indices('.').nth(depth - 1).map_or(path, |(end, _)| &path[..end])
}

/// Rounds to five digits, which is all that a colour can show.
fn round(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests;
