//! Reads samples and layers of a run for the cockpit.

use crate::cockpit::pictures::{PictureBox, PictureError, PictureOrder, encode};
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::samples::{SampleData, SetId, ShownSample};
use crate::config::run::Run;
use crate::series::layers::LayerHistory;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::samples::{self, MatchingFile, StoredSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a text that a screen shows; the whole may be a log of a megabyte, which takes long to wrap.
const MOST_TEXT: usize = 32 << 10;

type PictureReader = dyn Fn(&PictureOrder) -> Result<PictureBox, PictureError> + Send + Sync;

/// Readers of samples and layers; each is called on a blocking thread.
#[derive(Clone)]
pub struct SampleSources {
    /// Lists the sets, oldest first.
    pub list: Arc<dyn Fn() -> Vec<SetId> + Send + Sync>,
    /// Reads a set.
    pub read: Arc<dyn Fn(SetId) -> Result<SampleData, ReadError> + Send + Sync>,
    /// Reads and encodes a picture.
    pub picture: Arc<PictureReader>,
    /// Reads the state of the layers at all evaluations.
    pub layers: Arc<dyn Fn() -> Result<LayerHistory, ReadError> + Send + Sync>,
}

/// Returns the readers for a run.
#[must_use]
pub fn sample_sources(dir: &RunDir) -> SampleSources {
    let (listed, read, layers) = (dir.clone(), dir.clone(), dir.clone());
    SampleSources {
        list: Arc::new(move || list_sets(&listed)),
        read: Arc::new(move |id| read_set(&read, id)),
        picture: Arc::new(|order| encode::make_picture(order).map(|picture| PictureBox(Arc::new(picture)))),
        layers: Arc::new(move || read_layers(&layers)),
    }
}

/// Lists the sets of a run, oldest first.
#[must_use]
pub fn list_sets(dir: &RunDir) -> Vec<SetId> {
    let files = (!matching_files(dir).is_empty()).then_some(SetId::Files);
    samples::steps(dir.path()).into_iter().rev().map(SetId::Step).chain(files).collect()
}

/// Reads a set of a run.
///
/// # Errors
/// Returns an error when the set cannot be read.
pub fn read_set(dir: &RunDir, id: SetId) -> Result<SampleData, ReadError> {
    match id {
        SetId::Step(step) => {
            let set = samples::read(dir.path(), step, MOST_TEXT).map_err(|error| ReadError::Run(error.to_string()))?;
            Ok(shown_data([set]))
        }
        SetId::Files => Ok(shown_data(matching_files(dir).into_iter().map(|file| file.read(MOST_TEXT)))),
    }
}

fn matching_files(dir: &RunDir) -> Vec<MatchingFile> {
    let find = || -> Option<Vec<MatchingFile>> {
        let run: Run = dir.run().ok()?;
        let status = live_status(dir)?;
        let rung = run.rungs.get(status.rung)?;
        Some(samples::matching(dir.path(), run.command.as_ref()?, (&rung.name, &rung.preset), status.attempts))
    };
    find().unwrap_or_default()
}

fn shown_data(sets: impl IntoIterator<Item = StoredSet>) -> SampleData {
    let mut data = SampleData::default();
    for set in sets {
        let time_ms = set.time.map_or(0, unix_ms);
        data.confusion = data.confusion.or(set.confusion);
        let shown = set.samples.into_iter();
        data.samples.extend(shown.map(|stored| ShownSample {
            sample: stored.sample,
            picture: stored.picture,
            time_ms,
        }));
    }
    data
}

fn unix_ms(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Reads the state of the layers at all evaluations.
///
/// # Errors
/// Returns an error when the store cannot be read.
pub fn read_layers(dir: &RunDir) -> Result<LayerHistory, ReadError> {
    let reader = Reader::open(dir).map_err(ReadError::from_store)?;
    let rows = reader.layers(None).map_err(ReadError::from_store)?;
    Ok(LayerHistory::new(rows, reader.first_non_finite()))
}
