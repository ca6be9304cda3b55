//! Reads run directories for the cockpit: rungs, stored history and other runs.

use super::run::{OtherSource, Others, Sources};
use super::state::RungView;
use super::state::facts::History;
use super::state::runs::{OtherRun, RunRow};
use crate::config::run::Run;
use crate::protocol::control::StepRow;
use crate::store::curve::{Piece, Stretch};
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of probe readings loaded at the start: a few hours.
const FIRST_SAMPLES: usize = 4_000;
/// Maximum number of probe readings a replay loads: more than a day.
const SAMPLES: usize = 20_000;
/// Number of journal lines loaded at the start.
const JOURNAL: usize = 2000;
/// Returns the rungs of a run, fastest first.
#[must_use]
pub fn ladder(run: &Run) -> Vec<RungView> {
    let rungs = run.rungs.iter().enumerate().map(|(index, rung)| RungView {
        name: rung.name.clone(),
        warm_start: rung.warm_start,
        relieves: rung.relieves.clone(),
        preset: run.preset_tree(index),
    });
    rungs.collect()
}

/// Returns the readers for a run and for the other runs in the folder `runs`.
#[must_use]
pub fn sources(dir: &RunDir, runs: &Path) -> Sources {
    let (whole, few, then, now) = (dir.clone(), dir.clone(), dir.clone(), dir.clone());
    Sources {
        history: Arc::new(move || history(&whole)),
        standing: Arc::new(move || live_status(&now)),
        rows: Arc::new(move |steps| rows(&few, steps)),
        moment: Arc::new(move |until_ms| history_until(&then, until_ms)),
        others: Others { list: list(runs.to_owned()), read: read(runs.to_owned()) },
    }
}

fn words(error: impl std::fmt::Display) -> String {
    format!("run.db: {error}")
}

/// Reads the stored history of a run and its status.
///
/// # Errors
/// Returns `SQLite`'s error message.
pub fn history(dir: &RunDir) -> Result<History, String> {
    let reader = Reader::open(dir).map_err(words)?;
    let mut history = beside_the_curve(&reader, None)?;
    curve(&reader, &mut history)?;
    history.status = live_status(dir);
    Ok(history)
}

/// Reads the curve: as many whole leaves as possible, then the newest steps.
fn curve(reader: &Reader, history: &mut History) -> Result<(), String> {
    let mut rows = Vec::new();
    let series = &mut history.series;
    let take = |stretch: &Stretch, piece: Piece<'_>| match piece {
        Piece::Leaf(leaf) => series.extend(stretch.attempt, stretch.rung, leaf),
        Piece::Row(row) => rows.push(*row),
    };
    reader.curve(take).map_err(words)?;
    for row in &rows {
        history.step(row);
    }
    Ok(())
}

/// Reads the history as it was at a moment, Unix milliseconds: every step taken by then, including
/// those that were redone later.
///
/// # Errors
/// Returns `SQLite`'s error message.
pub fn history_until(dir: &RunDir, until_ms: i64) -> Result<History, String> {
    let reader = Reader::open(dir).map_err(words)?;
    let mut history = beside_the_curve(&reader, Some(until_ms))?;
    let each = |row: StepRow| {
        if row.time_ms <= until_ms {
            history.step(&row);
        }
    };
    reader.each_step(each).map_err(words)?;
    Ok(history)
}

/// Reads everything except the curve.
fn beside_the_curve(reader: &Reader, until_ms: Option<i64>) -> Result<History, String> {
    let by_then = |time_ms: i64| until_ms.is_none_or(|until| time_ms <= until);
    let mut history = History {
        evals: reader.evals().map_err(words)?,
        journal: reader.journal(if until_ms.is_some() { usize::MAX / 2 } else { JOURNAL }).map_err(words)?,
        checkpoints: reader.checkpoints().map_err(words)?,
        samples: reader.samples(if until_ms.is_some() { SAMPLES } else { FIRST_SAMPLES }).map_err(words)?,
        ..History::default()
    };
    history.evals.retain(|row| by_then(row.time_ms));
    history.journal.retain(|row| by_then(row.time_ms));
    history.checkpoints.retain(|row| by_then(row.time_ms));
    history.samples.retain(|row| by_then(row.time_ms));
    Ok(history)
}

/// Returns the rows of the curve within a range of steps; empty if the store cannot be read.
#[must_use]
pub fn rows(dir: &RunDir, steps: &Range<u64>) -> Vec<StepRow> {
    Reader::open(dir).and_then(|reader| reader.curve_rows(steps)).unwrap_or_default()
}

fn list(runs: PathBuf) -> Arc<dyn Fn() -> Vec<RunRow> + Send + Sync> {
    Arc::new(move || {
        let row = |run: &RunDir| RunRow { name: run.name(), status: live_status(run) };
        RunDir::all(&runs).iter().map(row).collect()
    })
}

fn read(runs: PathBuf) -> OtherSource {
    Arc::new(move |name, with_curve| {
        let dir = RunDir::find(&runs, Some(name)).map_err(|error| error.to_string())?;
        let run = dir.run().map_err(|error| error.to_string())?;
        let series = if with_curve {
            let mut history = History::default();
            curve(&Reader::open(&dir).map_err(words)?, &mut history)?;
            Some(history.series)
        } else {
            None
        };
        Ok(OtherRun { ladder: ladder(&run), watch: Some(run.watch.clone()), series })
    })
}
