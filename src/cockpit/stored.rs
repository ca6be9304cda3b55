//! What the cockpit reads of a run directory: its rungs, and what the store holds.

use super::series::Series;
use super::state::RungView;
use super::state::facts::History;
use crate::config::run::Run;
use crate::protocol::control::StepRow;
use crate::store::curve::{Piece, Stretch};
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use std::ops::Range;

/// Readings of the probe that the cockpit begins with: half an hour of them.
const SAMPLES: usize = 360;
/// Lines of the journal that the cockpit begins with.
const JOURNAL: usize = 2000;

/// The rungs of a run, fastest first.
#[must_use]
pub fn ladder(run: &Run) -> Vec<RungView> {
    let rungs = run.rungs.iter().enumerate().map(|(index, rung)| RungView {
        name: rung.name.clone(),
        relieves: rung.relieves.clone(),
        preset: run.preset_tree(index),
    });
    rungs.collect()
}

/// What the store holds of a run, and where the run stands.
///
/// # Errors
/// `SQLite`'s words.
pub fn history(dir: &RunDir) -> Result<History, String> {
    let words = |error| format!("run.db: {error}");
    let reader = Reader::open(dir).map_err(words)?;
    let (mut series, mut steps) = (Series::default(), Vec::new());
    let take = |stretch: &Stretch, piece: Piece<'_>| match piece {
        Piece::Leaf(leaf) => series.extend(stretch.attempt, stretch.rung, leaf),
        Piece::Row(row) => steps.push(*row),
    };
    reader.curve(take).map_err(words)?;
    Ok(History {
        series,
        steps,
        evals: reader.evals().map_err(words)?,
        journal: reader.journal(JOURNAL).map_err(words)?,
        checkpoints: reader.checkpoints().map_err(words)?,
        samples: reader.samples(SAMPLES).map_err(words)?,
        status: live_status(dir),
    })
}

/// The rows of the curve within some steps; none where the store cannot be read.
#[must_use]
pub fn rows(dir: &RunDir, steps: &Range<u64>) -> Vec<StepRow> {
    Reader::open(dir).and_then(|reader| reader.curve_rows(steps)).unwrap_or_default()
}
