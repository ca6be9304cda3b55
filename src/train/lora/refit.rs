//! Adapters of a checkpoint in a model whose adapters have another rank, another scale, or are on
//! other layers. What the adapters have learnt is kept as far as the new rank can hold it:
//!
//! ```text
//! lower rank     the best update of that rank (svd); what it loses goes into `residuals`
//! higher rank    the update as it is, beside new directions that start at zero
//! other scale    B is rescaled; the product stays
//! no adapter     merged into the matrix it belonged to
//! new adapter    fresh; it changes nothing yet
//! ```

use super::svd::{Columns, truncate};
use super::{A, B as LORA_B, SCALE};
use crate::train::params::{Reading, Trail, erase, follow_trail, to_safetensors};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor, TensorData, backend::AutodiffBackend};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was done to adapters.
#[derive(Debug, Default)]
pub struct Refit {
    /// The weights as the model can take them, a safetensors file.
    pub bytes: Vec<u8>,
    /// Parameters whose values are others than in the checkpoint: their moments start anew.
    pub changed: BTreeSet<String>,
    /// What a lower rank lost, to be added to a matrix: path and `[from, to]`.
    pub residuals: BTreeMap<String, TensorData>,
    /// What happened, for the journal.
    pub text: String,
}

/// The values of a model's adapters.
///
/// # Errors
/// When the device cannot be read.
pub fn adapters<A: AutodiffBackend, M: Module<A>>(model: &M) -> Result<BTreeMap<String, TensorData>, String> {
    struct Visitor<A: AutodiffBackend> {
        trail: Trail,
        reading: Reading<A::InnerBackend>,
    }
    impl<A: AutodiffBackend> ModuleVisitor<A> for Visitor<A> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
            let path = self.trail.path();
            if layer_of(&path).is_some() {
                self.reading.add(path, erase(param.val().inner()));
            }
        }
    }
    let mut visitor = Visitor::<A> { trail: Trail::default(), reading: Reading::default() };
    model.visit(&mut visitor);
    let read = visitor.reading.finish().map_err(|error| error.to_string())?;
    Ok(read.into_iter().map(|(path, data)| (path, Arc::unwrap_or_clone(data))).collect())
}

/// The path of the layer that a parameter of an adapter belongs to.
#[must_use]
pub fn layer_of(path: &str) -> Option<&str> {
    let (layer, part) = path.rsplit_once('.')?;
    [A, LORA_B, SCALE].contains(&part).then_some(layer)
}

/// Numbers and their shape.
type Values = (Vec<f32>, Vec<usize>);

/// One layer's adapter on the host.
struct Adapter {
    a: Vec<f32>,
    b: Vec<f32>,
    scale: f64,
    from: usize,
    rank: usize,
    to: usize,
}

impl Adapter {
    fn read(layer: &str, get: &dyn Fn(&str) -> Option<Values>) -> Option<Self> {
        let of = |part: &str| get(&format!("{layer}.{part}"));
        let ((a, a_shape), (b, b_shape), (scale, _)) = (of(A)?, of(LORA_B)?, of(SCALE)?);
        let (&[from, rank], &[also, to]) = (a_shape.as_slice(), b_shape.as_slice()) else { return None };
        (rank == also).then(|| Self { a, b, scale: f64::from(scale[0]), from, rank, to })
    }

    /// s·A·B, `[from, to]`.
    fn update(&self) -> Vec<f32> {
        let mut update = vec![0.0_f32; self.from * self.to];
        for (row, a) in update.chunks_mut(self.to).zip(self.a.chunks(self.rank)) {
            for (weight, b) in a.iter().zip(self.b.chunks(self.to)) {
                let weight = weight * self.scale as f32;
                row.iter_mut().zip(b).for_each(|(sum, b)| *sum += weight * b);
            }
        }
        update
    }

    /// The same product, or the nearest to it, in the rank and scale of `fresh`; and the share kept.
    fn fitted(&self, fresh: &Self) -> (Self, f64) {
        let ratio = (self.scale / fresh.scale) as f32;
        let (a, b, kept) = if self.rank > fresh.rank {
            let a = Columns::from_rows(&self.a, self.from, self.rank);
            let b = Columns::from_rows_transposed(&self.b, self.rank, self.to);
            let (a, b, kept) = truncate(&a, &b, fresh.rank);
            (a.to_rows(), b.to_rows_transposed(), kept)
        } else {
            let rows = self.a.chunks(self.rank).zip(fresh.a.chunks(fresh.rank));
            let a = rows.flat_map(|(old, new)| old.iter().chain(&new[self.rank..]).copied()).collect();
            let mut b = self.b.clone();
            b.resize(fresh.rank * self.to, 0.0);
            (a, b, 1.0)
        };
        let b = b.into_iter().map(|value| value * ratio).collect();
        (Self { a, b, scale: fresh.scale, from: self.from, rank: fresh.rank, to: self.to }, kept)
    }
}

/// The tally of a refit, for its sentence.
#[derive(Default)]
struct Tally {
    ranks: BTreeSet<(usize, usize)>,
    refitted: usize,
    kept: Vec<f64>,
    rescaled: usize,
    merged: usize,
    fresh: usize,
}

/// Makes the weights of a checkpoint fit a fresh model's adapters; none where they do already.
///
/// # Errors
/// When the device cannot be read.
pub fn refit<A: AutodiffBackend, M: Module<A>>(model: &M, file: &SafeTensors<'_>) -> Result<Option<Refit>, String> {
    let fresh = adapters::<A, M>(model)?;
    let names = file.names();
    let layers: BTreeSet<&str> = fresh.keys().map(String::as_str).chain(names).filter_map(layer_of).collect();
    let of_fresh = |path: &str| {
        let data = fresh.get(path)?;
        Some((data.iter::<f32>().collect(), data.shape.to_vec()))
    };
    let of_file = |path: &str| {
        let view = file.tensor(path).ok()?;
        let values = view.data().as_chunks().0.iter().map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes)).collect();
        Some((values, view.shape().to_vec()))
    };
    let (mut refit, mut tally) = (Refit::default(), Tally::default());
    let mut replaced: BTreeMap<String, Option<TensorData>> = BTreeMap::new();
    for layer in layers {
        let base = format!("{layer}.weight");
        match (Adapter::read(layer, &of_file), Adapter::read(layer, &of_fresh)) {
            (Some(old), Some(new)) if (old.from, old.to) == (new.from, new.to) => {
                if old.rank == new.rank && (old.scale - new.scale).abs() <= 1e-6 * new.scale.abs() {
                    continue;
                }
                let (fitted, kept) = old.fitted(&new);
                if old.rank > new.rank {
                    let lost = old.update().iter().zip(fitted.update()).map(|(old, new)| old - new).collect();
                    refit.residuals.insert(base, TensorData::new::<f32, _>(lost, [old.from, old.to]));
                }
                tally.note(&old, &new, kept);
                replace(&mut replaced, layer, &fitted);
            }
            (Some(old), None) => {
                let Some((values, shape)) = of_file(&base).filter(|(_, shape)| *shape == [old.from, old.to]) else {
                    continue;
                };
                let merged: Vec<f32> = values.iter().zip(old.update()).map(|(base, update)| base + update).collect();
                replaced.insert(base, Some(TensorData::new(merged, shape)));
                replaced.extend([A, LORA_B, SCALE].map(|part| (format!("{layer}.{part}"), None)));
                tally.merged += 1;
            }
            (None, Some(new)) if of_file(&base).is_some() => {
                replace(&mut replaced, layer, &new);
                tally.fresh += 1;
            }
            _ => {}
        }
    }
    if replaced.is_empty() {
        return Ok(None);
    }
    refit.changed = replaced.keys().filter(|path| !path.ends_with(SCALE)).cloned().collect();
    refit.text = tally.sentence();
    let untouched = file.names().into_iter().filter(|name| !replaced.contains_key(*name));
    let mut all: Vec<(String, TensorData)> = untouched
        .filter_map(|name| of_file(name).map(|(values, shape)| (name.to_owned(), TensorData::new(values, shape))))
        .collect();
    all.extend(replaced.into_iter().filter_map(|(path, data)| Some((path, data?))));
    refit.bytes = to_safetensors(&all)?;
    Ok(Some(refit))
}

/// Adds every adapter's update to its matrix and takes the adapter away.
pub fn merge(weights: &mut BTreeMap<String, TensorData>) {
    let layers: BTreeSet<String> = weights.keys().filter_map(|path| layer_of(path)).map(str::to_owned).collect();
    for layer in layers {
        let of = |path: &str| weights.get(path).map(|data| (data.iter().collect(), data.shape.to_vec()));
        let (adapter, base) = (Adapter::read(&layer, &of), format!("{layer}.weight"));
        if let Some((adapter, weight)) = adapter.zip(weights.get(&base)) {
            let sum: Vec<f32> =
                weight.iter::<f32>().zip(adapter.update()).map(|(base, update)| base + update).collect();
            let merged = TensorData::new(sum, weight.shape.clone());
            weights.insert(base, merged);
        }
        for part in [A, LORA_B, SCALE] {
            weights.remove(&format!("{layer}.{part}"));
        }
    }
}

fn replace(replaced: &mut BTreeMap<String, Option<TensorData>>, layer: &str, adapter: &Adapter) {
    let Adapter { a, b, scale, from, rank, to } = adapter;
    let mut put = |part: &str, data: TensorData| replaced.insert(format!("{layer}.{part}"), Some(data));
    put(A, TensorData::new(a.clone(), [*from, *rank]));
    put(LORA_B, TensorData::new(b.clone(), [*rank, *to]));
    put(SCALE, TensorData::new(vec![*scale as f32], [1]));
}

impl Tally {
    fn note(&mut self, old: &Adapter, new: &Adapter, kept: f64) {
        if old.rank == new.rank {
            self.rescaled += 1;
        } else {
            self.ranks.insert((old.rank, new.rank));
            self.refitted += 1;
            self.kept.push(kept);
        }
    }

    fn sentence(&self) -> String {
        let mut parts = Vec::new();
        if self.refitted > 0 {
            let ranks: Vec<String> = self.ranks.iter().map(|(old, new)| format!("{old} → {new}")).collect();
            let least = self.kept.iter().copied().fold(1.0, f64::min) * 100.0;
            let (layers, ranks) = (self.refitted, ranks.join(", "));
            parts.push(format!(
                "the adapters of {layers} layers go from rank {ranks} and keep {least:.2} % of their update or more"
            ));
        }
        for (count, what) in [
            (self.rescaled, "take another scale and keep their update"),
            (self.merged, "are merged into their weights"),
            (self.fresh, "start fresh"),
        ] {
            if count > 0 {
                parts.push(format!("the adapters of {count} layers {what}"));
            }
        }
        format!("{}; moments of what changed start anew", parts.join("; "))
    }
}

/// The model with what a lower rank lost added to its matrices: it computes what it did before.
pub fn with_residuals<A, M>(model: M, residuals: &BTreeMap<String, TensorData>, device: &A::Device) -> M
where
    A: AutodiffBackend,
    M: Module<A>,
{
    struct Add<'a, A: AutodiffBackend> {
        trail: Trail,
        residuals: &'a BTreeMap<String, TensorData>,
        device: &'a A::Device,
    }
    impl<A: AutodiffBackend> ModuleMapper<A> for Add<'_, A> {
        follow_trail!();
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
            let Some(data) = self.residuals.get(&self.trail.path()) else { return param };
            let (id, old, mapper) = param.consume();
            let residual = Tensor::<A, D>::from_data(data.clone(), self.device).cast(FloatDType::from(old.dtype()));
            Param::from_mapped_value(id, (old.detach() + residual).detach(), mapper)
        }
    }
    model.map(&mut Add::<A> { trail: Trail::default(), residuals, device })
}
