//! Whether a new run can begin with the checkpoint of another, found out before the run exists.

use super::lora::rank_change::adapted_layer;
use super::params::fit::Fit;
use super::params::safetensors_file::shapes_in_file;
use super::resume::find_not_finite;
use crate::store::checkpoint::classes::PictureClasses;
use crate::store::checkpoint::{MODEL, STATE, state::TrainState};
use safetensors::{SafeTensorError, SafeTensors};
use std::collections::BTreeMap;

/// Shapes of parameters by path.
type Shapes = BTreeMap<String, Vec<usize>>;

/// Why a run cannot begin with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    /// Its outputs stand for other classes.
    #[error("the classes of the data are not those of the checkpoint: {0}")]
    Classes(String),
    /// Training ended in NaN.
    #[error("{tensor} in {file} contains NaN or infinity; begin from an older step, as RUN@STEP")]
    NotFinite {
        /// The file of the checkpoint.
        file: &'static str,
        /// The first such tensor.
        tensor: String,
    },
    /// A file is missing.
    #[error("the checkpoint has no {MODEL}")]
    NoWeights,
    /// A file cannot be read.
    #[error("cannot read {MODEL}: {0}")]
    Unreadable(#[from] SafeTensorError),
    /// Its parameters are not those of the model.
    #[error("the checkpoint does not match the model: {0}")]
    Shapes(Fit),
}

/// Checks that the files of a checkpoint fit a model with these shapes and classes.
///
/// # Errors
/// Returns the first thing that does not fit.
pub fn check_fit(
    files: &BTreeMap<String, Vec<u8>>,
    shapes: &Shapes,
    classes: Option<&PictureClasses>,
) -> Result<(), Misfit> {
    let state = files.get(STATE).and_then(|text| serde_json::from_slice::<TrainState>(text).ok());
    let learned = state.and_then(|state| state.classes);
    if let Some(difference) = learned.zip(classes).and_then(|(learned, now)| learned.difference(now)) {
        return Err(Misfit::Classes(difference));
    }
    if let Some((file, tensor)) = find_not_finite(files) {
        return Err(Misfit::NotFinite { file, tensor });
    }
    let file = SafeTensors::deserialize(files.get(MODEL).ok_or(Misfit::NoWeights)?)?;
    let fit = Fit::between(&outside_adapters(shapes), &outside_adapters(&shapes_in_file(&file)));
    if fit.is_whole() { Ok(()) } else { Err(Misfit::Shapes(fit)) }
}

/// Leaves out adapters, which are converted to another rank.
fn outside_adapters(shapes: &Shapes) -> Shapes {
    let weights = shapes.iter().filter(|(path, _)| adapted_layer(path).is_none());
    weights.map(|(path, shape)| (path.clone(), shape.clone())).collect()
}
