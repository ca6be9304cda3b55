//! Models in Hugging Face format: a folder with `config.json`, `model.safetensors` (or shards with an index)
//! and `tokenizer.json`; and adapters in PEFT format.
//!
//! ```text
//! config.json ─ config ─▶ Shape ─ names ─▶ required names and shapes of the weights
//! *.safetensors ─ weights ─▶ header, checked against them; then values, by downshift's paths
//! ```

pub mod config;
pub mod export;
pub mod names;
pub mod peft;
pub mod weights;

use super::shape::Shape;
use crate::params::fit::Fit;
use crate::task::{DataError, Weights};
use crate::tasks::files::{self, data_error};
use burn::tensor::TensorData;
use downshift_core::untrusted::file::Limit;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weights::TensorFiles;

/// The name of the pretrained model shipped with downshift; `assets/README.md` describes it.
pub const SHIPPED: &str = "embedded:tiny-llama";
static SHIPPED_CONFIG: &[u8] = include_bytes!("../../../assets/tiny-llama/config.json");
static SHIPPED_WEIGHTS: &[u8] = include_bytes!("../../../assets/tiny-llama/model.safetensors");

/// The location of a pretrained model.
pub enum ModelSource {
    /// Embedded in the program.
    Shipped,
    /// A folder, and the file in it if one was named.
    Folder(PathBuf, Option<PathBuf>),
}

impl ModelSource {
    /// Returns the location that `model.init_from` names: a folder, a safetensors file or an index of shards.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        let file = Path::new(path);
        if path == SHIPPED {
            Self::Shipped
        } else if file.is_dir() || file.extension().is_none() {
            Self::Folder(file.to_owned(), None)
        } else {
            Self::Folder(file.parent().unwrap_or(Path::new(".")).to_owned(), Some(file.to_owned()))
        }
    }

    /// Reads a small file of the model.
    ///
    /// # Errors
    /// Returns an error that names the file that cannot be read.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>, DataError> {
        match self {
            Self::Shipped if name == config::FILE => Ok(SHIPPED_CONFIG.to_vec()),
            Self::Shipped => Err(data_error(Path::new(SHIPPED), format!("it has no {name}"))),
            Self::Folder(folder, _) => files::read_file_within(&folder.join(name), Limit::Record),
        }
    }

    /// Returns the path of a file of the model, if it exists.
    #[must_use]
    pub fn path_of(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Shipped => None,
            Self::Folder(folder, _) => Some(folder.join(name)).filter(|path| path.is_file()),
        }
    }

    fn open_tensors(&self) -> Result<TensorFiles, DataError> {
        match self {
            Self::Shipped => TensorFiles::from_bytes(SHIPPED, SHIPPED_WEIGHTS),
            Self::Folder(folder, file) => TensorFiles::open(folder, file.as_deref()),
        }
    }
}

/// Checks that the weights fit a shape, without reading their values.
///
/// # Errors
/// Returns an error that lists everything missing, unexpected or of another shape by its name in the file.
pub fn check_weights(source: &ModelSource, shape: &Shape) -> Result<(), DataError> {
    match_tensors(&source.open_tensors()?, shape).map(|_| ())
}

/// Reads the weights by downshift's paths.
///
/// # Errors
/// Returns an error as [`check_weights`] does, or when values cannot be read.
pub fn load_weights(source: &ModelSource, shape: &Shape) -> Result<Weights, DataError> {
    let mut tensors = source.open_tensors()?;
    let prefix = match_tensors(&tensors, shape)?;
    let mut weights = Weights::new();
    for entry in names::tensor_entries(shape) {
        let values = tensors.read_tensor(&prefix.file_name(&entry.name))?;
        weights.extend(entry.split(values));
    }
    Ok(weights)
}

/// The name prefix that a bare model's file lacks; `None` for a whole model.
struct Prefix(Option<&'static str>);

impl Prefix {
    fn file_name(&self, name: &str) -> String {
        let bare = self.0.and_then(|prefix| name.strip_prefix(prefix));
        bare.unwrap_or(name).to_owned()
    }
}

fn match_tensors(tensors: &TensorFiles, shape: &Shape) -> Result<Prefix, DataError> {
    let first = names::name_prefix(shape.family);
    let bare = !tensors.shapes().keys().any(|name| name.starts_with(first));
    let prefix = Prefix(bare.then_some(first));
    let entries = names::tensor_entries(shape).into_iter();
    let wanted: BTreeMap<String, Vec<usize>> =
        entries.map(|entry| (prefix.file_name(&entry.name), entry.dims)).collect();
    let ignored = |name: &str| names::is_buffer(name) || (shape.tied && name == names::HEAD);
    let found = tensors.shapes().into_iter().filter(|(name, _)| wanted.contains_key(name) || !ignored(name)).collect();
    let fit = Fit::between(&wanted, &found);
    if fit.is_whole() {
        return Ok(prefix);
    }
    let message = format!("the weights do not match config.json: {fit}; use both from the same model");
    Err(data_error(tensors.path(), message))
}

/// Transposes `[rows, columns]`, stored row by row.
pub(super) fn transpose(data: &TensorData) -> TensorData {
    let (rows, columns) = (data.shape[0], data.shape[1]);
    let values: Vec<f32> = data.iter().collect();
    let order = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c)));
    TensorData::new(order.map(|(r, c)| values[r * columns + c]).collect::<Vec<f32>>(), [columns, rows])
}

#[cfg(test)]
mod tests;
