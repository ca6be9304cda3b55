//! What the cockpit reads of a run directory: its rungs, and what the store holds.

use super::state::RungView;
use super::state::facts::History;
use crate::config::run::Run;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;

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
    let mut steps = Vec::new();
    reader.each_step(|row| steps.push(row)).map_err(words)?;
    Ok(History {
        steps,
        evals: reader.evals().map_err(words)?,
        journal: reader.journal(JOURNAL).map_err(words)?,
        checkpoints: reader.checkpoints().map_err(words)?,
        samples: reader.samples(SAMPLES).map_err(words)?,
        status: live_status(dir),
    })
}
