//! Converts a checkpoint's adapters for a model whose adapters have another rank or scale, or are on other
//! layers. Learned updates are preserved as far as the new rank allows:
//!
//! ```text
//! lower rank     the best update of that rank (svd); the original adapter goes into `cut`
//! higher rank    the same update, plus new directions that start at zero
//! other scale    B is rescaled; the product is unchanged
//! no adapter     merged into its layer's matrix
//! new adapter    fresh; changes nothing yet
//! ```

use super::svd::{Columns, truncate_rank};
use super::{A, B as LORA_B, SCALE};
use crate::params::{TensorReader, Trail, erase_rank, follow_trail};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, ExecutionError},
};
use downshift_core::format::counted;
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Replacements for a checkpoint's values by path; `None` for parameters that the model no longer has.
pub type Replaced = BTreeMap<String, Option<TensorData>>;

/// The changes made to adapters.
#[derive(Debug, Default)]
pub struct RankChange {
    /// Values that differ from the checkpoint; their moments start from zero.
    pub replaced: Replaced,
    /// The adapters truncated by a lower rank, in their original form. Restoring them restores their function exactly.
    pub cut: BTreeMap<String, TensorData>,
    /// The numbers of adapters changed in each way, for the journal.
    pub summary: Summary,
}

/// Returns the values of a model's adapters.
///
/// # Errors
/// Returns an error when the device cannot be read.
pub fn read_adapters<A: AutodiffBackend, M: Module<A>>(
    model: &M,
) -> Result<BTreeMap<String, TensorData>, ExecutionError> {
    struct Visitor<A: AutodiffBackend> {
        trail: Trail,
        reader: TensorReader<A::InnerBackend>,
    }
    impl<A: AutodiffBackend> ModuleVisitor<A> for Visitor<A> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
            let path = self.trail.path();
            if adapted_layer(&path).is_some() {
                self.reader.add(path, erase_rank(param.val().inner()));
            }
        }
    }
    let mut visitor = Visitor::<A> { trail: Trail::default(), reader: TensorReader::default() };
    model.visit(&mut visitor);
    let read = visitor.reader.read_all()?;
    Ok(read.into_iter().map(|(path, data)| (path, Arc::unwrap_or_clone(data))).collect())
}

/// Returns the path of the layer that an adapter's parameter belongs to.
#[must_use]
pub fn adapted_layer(path: &str) -> Option<&str> {
    let (layer, part) = path.rsplit_once('.')?;
    [A, LORA_B, SCALE].contains(&part).then_some(layer)
}

/// Values and their shape.
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
    fn from_parameters(layer: &str, get: &dyn Fn(&str) -> Option<Values>) -> Option<Self> {
        let of = |part: &str| get(&format!("{layer}.{part}"));
        let ((a, a_shape), (b, b_shape), (scale, _)) = (of(A)?, of(LORA_B)?, of(SCALE)?);
        let (&[from, rank], &[also, to]) = (a_shape.as_slice(), b_shape.as_slice()) else { return None };
        (rank == also).then(|| Self { a, b, scale: f64::from(scale[0]), from, rank, to })
    }

    /// Returns s·A·B, `[from, to]`.
    fn product(&self) -> Vec<f32> {
        let mut update = vec![0.0_f32; self.from * self.to];
        for (row, a) in update.chunks_mut(self.to).zip(self.a.chunks(self.rank)) {
            for (weight, b) in a.iter().zip(self.b.chunks(self.to)) {
                let weight = weight * self.scale as f32;
                row.iter_mut().zip(b).for_each(|(sum, b)| *sum += weight * b);
            }
        }
        update
    }

    /// Returns the same product, or the nearest to it, in the rank and scale of `fresh`; and the share kept.
    fn in_rank_of(&self, fresh: &Self) -> (Self, f64) {
        let ratio = (self.scale / fresh.scale) as f32;
        let (a, b, kept) = if self.rank > fresh.rank {
            let a = Columns::from_rows(&self.a, self.from, self.rank);
            let b = Columns::from_rows_transposed(&self.b, self.rank, self.to);
            let (a, b, kept) = truncate_rank(&a, &b, fresh.rank);
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

    /// Returns its parameters, below the path of its layer.
    fn into_parameters(self, layer: &str) -> [(String, TensorData); 3] {
        let Self { a, b, scale, from, rank, to } = self;
        let of = |part: &str, values: Vec<f32>, shape: Vec<usize>| {
            (format!("{layer}.{part}"), TensorData::new(values, shape))
        };
        [of(A, a, vec![from, rank]), of(LORA_B, b, vec![rank, to]), of(SCALE, vec![scale as f32], vec![1])]
    }
}

/// Counters of a rank change, for its description.
#[derive(Debug, Default)]
pub struct Summary {
    ranks: BTreeSet<(usize, usize)>,
    refitted: usize,
    kept: Vec<f64>,
    rescaled: usize,
    merged: usize,
    fresh: usize,
}

/// Makes the weights of a checkpoint fit a fresh model's adapters; returns `None` if they already do.
///
/// # Errors
/// Returns an error when the device cannot be read.
pub fn change_rank<A: AutodiffBackend, M: Module<A>>(
    model: &M,
    file: &SafeTensors<'_>,
) -> Result<Option<RankChange>, ExecutionError> {
    let fresh = read_adapters::<A, M>(model)?;
    let names = file.names();
    let layers: BTreeSet<&str> = fresh.keys().map(String::as_str).chain(names).filter_map(adapted_layer).collect();
    let of_fresh = |path: &str| {
        let data = fresh.get(path)?;
        Some((data.iter::<f32>().collect(), data.shape.to_vec()))
    };
    let of_file = |path: &str| {
        let view = file.tensor(path).ok()?;
        let values = view.data().as_chunks().0.iter().map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes)).collect();
        Some((values, view.shape().to_vec()))
    };
    let (mut change, mut summary) = (RankChange::default(), Summary::default());
    for layer in layers {
        let base = format!("{layer}.weight");
        let whole = |adapter: Adapter| adapter.into_parameters(layer).map(|(path, data)| (path, Some(data)));
        match (Adapter::from_parameters(layer, &of_file), Adapter::from_parameters(layer, &of_fresh)) {
            (Some(old), Some(new)) if (old.from, old.to) == (new.from, new.to) => {
                if old.rank == new.rank && (old.scale - new.scale).abs() <= 1e-6 * new.scale.abs() {
                    continue;
                }
                let (fitted, kept) = old.in_rank_of(&new);
                summary.record(&old, &new, kept);
                change.replaced.extend(whole(fitted));
                if old.rank > new.rank {
                    change.cut.extend(old.into_parameters(layer));
                }
            }
            (Some(old), None) => {
                let Some((values, shape)) = of_file(&base).filter(|(_, shape)| *shape == [old.from, old.to]) else {
                    continue;
                };
                let merged: Vec<f32> = values.iter().zip(old.product()).map(|(base, update)| base + update).collect();
                change.replaced.insert(base, Some(TensorData::new(merged, shape)));
                change.replaced.extend([A, LORA_B, SCALE].map(|part| (format!("{layer}.{part}"), None)));
                summary.merged += 1;
            }
            (None, Some(new)) if file.tensor(&base).is_ok() => {
                change.replaced.extend(whole(new));
                summary.fresh += 1;
            }
            _ => {}
        }
    }
    change.summary = summary;
    Ok((!change.replaced.is_empty()).then_some(change))
}

/// Adds every adapter's update to its matrix and removes the adapter.
pub fn merge_adapters(weights: &mut BTreeMap<String, TensorData>) {
    let layers: BTreeSet<String> = weights.keys().filter_map(|path| adapted_layer(path)).map(str::to_owned).collect();
    for layer in layers {
        let of = |path: &str| weights.get(path).map(|data| (data.iter().collect(), data.shape.to_vec()));
        let (adapter, base) = (Adapter::from_parameters(&layer, &of), format!("{layer}.weight"));
        if let Some((adapter, weight)) = adapter.zip(weights.get(&base)) {
            let sum: Vec<f32> =
                weight.iter::<f32>().zip(adapter.product()).map(|(base, update)| base + update).collect();
            let merged = TensorData::new(sum, weight.shape.clone());
            weights.insert(base, merged);
        }
        for part in [A, LORA_B, SCALE] {
            weights.remove(&format!("{layer}.{part}"));
        }
    }
}

impl Summary {
    fn record(&mut self, old: &Adapter, new: &Adapter, kept: f64) {
        if old.rank == new.rank {
            self.rescaled += 1;
        } else {
            self.ranks.insert((old.rank, new.rank));
            self.refitted += 1;
            self.kept.push(kept);
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.refitted > 0 {
            let ranks: Vec<String> = self.ranks.iter().map(|(old, new)| format!("{old} → {new}")).collect();
            let least = self.kept.iter().copied().fold(1.0, f64::min) * 100.0;
            let (adapters, ranks) = (counted(self.refitted as u64, "adapter"), ranks.join(", "));
            parts.push(format!("{adapters} changed from rank {ranks}, keeping at least {least:.2} % of each update"));
        }
        for (count, change) in [
            (self.rescaled, "rescaled, with the same effect"),
            (self.merged, "merged into the weights"),
            (self.fresh, "added"),
        ] {
            if count > 0 {
                parts.push(format!("{} {change}", counted(count as u64, "adapter")));
            }
        }
        write!(formatter, "{}; moments of changed parameters start at zero", parts.join("; "))
    }
}
