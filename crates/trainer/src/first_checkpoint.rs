//! Whether a new run can begin with the checkpoint of another, found out before the run exists.

use super::lora::rank_change::adapted_layer;
use super::params::fit::Fit;
use super::params::safetensors_file::shapes_in_file;
use super::resume::find_not_finite;
use downshift_core::config::knobs::Training;
use downshift_core::recipe::batch::BatchPlan;
use downshift_core::store::checkpoint::classes::PictureClasses;
use downshift_core::store::checkpoint::{MODEL, state::TrainState};
use safetensors::{SafeTensorError, SafeTensors};
use std::collections::BTreeMap;

/// The files of a checkpoint by name.
type Files = BTreeMap<String, Vec<u8>>;
/// Shapes of parameters by path.
type Shapes = BTreeMap<String, Vec<usize>>;

/// Why a run cannot begin with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    /// Its outputs stand for other classes.
    #[error("the classes of the data are not those of the checkpoint: {0}; give this run the data of that one")]
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
    /// The new run would have no step left.
    #[error(
        "it has trained for {trained} {unit}, and this run ends after {total}; training.{unit} counts those before the checkpoint, \
         so give a larger number"
    )]
    Over {
        /// The part that was trained.
        trained: u64,
        /// The length of the run.
        total: u64,
        /// `steps` or `epochs`.
        unit: &'static str,
    },
    /// Its parameters are not those of the model.
    #[error(
        "the checkpoint does not match the model: {0}; give this run the model of that one, or begin on a rung with `warm_start: true`"
    )]
    Shapes(Fit),
}

impl Misfit {
    /// Returns the exit code of a run that begins so.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Over { .. } => 13,
            Self::Classes(_) => 15,
            _ => 14,
        }
    }
}

/// Checks that the files of a checkpoint fit a model with these shapes and classes.
///
/// # Errors
/// Returns the first thing that does not fit.
pub fn check_fit(files: &Files, shapes: &Shapes, classes: Option<&PictureClasses>) -> Result<(), Misfit> {
    let learned = TrainState::in_files(files).and_then(|state| state.classes);
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

/// Checks that a run of this length has steps left after a checkpoint.
///
/// # Errors
/// Returns an error when it has none.
pub fn check_length(files: &Files, training: &Training, plan: &BatchPlan) -> Result<(), Misfit> {
    let Some(state) = TrainState::in_files(files) else { return Ok(()) };
    let clock = state.position.samples;
    let (end, trained, total, unit) = match (training.epochs, training.steps) {
        (Some(epochs), _) => {
            let epoch = plan.epoch_units().max(1);
            (epochs.saturating_mul(epoch), clock / epoch, epochs, "epochs")
        }
        (None, Some(steps)) => {
            let known = state.length.filter(|known| known.steps == steps).map(|known| known.units);
            (known.unwrap_or_else(|| plan.units_of_steps(steps)), state.step, steps, "steps")
        }
        (None, None) => return Ok(()),
    };
    if clock < end { Ok(()) } else { Err(Misfit::Over { trained, total, unit }) }
}

/// Leaves out adapters, which are converted to another rank.
fn outside_adapters(shapes: &Shapes) -> Shapes {
    let weights = shapes.iter().filter(|(path, _)| adapted_layer(path).is_none());
    weights.map(|(path, shape)| (path.clone(), shape.clone())).collect()
}
