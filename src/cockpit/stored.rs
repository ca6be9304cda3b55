//! What the cockpit reads of run directories: rungs, what the store holds, and other runs.

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

/// Readings of the probe that the cockpit begins with: some hours of them.
const FIRST_SAMPLES: usize = 4_000;
/// The most that a look back reads: more than a day of them.
const SAMPLES: usize = 20_000;
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

/// Everything the cockpit reads of a run and of those beside it in the folder `runs`.
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

/// What the store holds of a run, and where the run stands.
///
/// # Errors
/// `SQLite`'s words.
pub fn history(dir: &RunDir) -> Result<History, String> {
    let reader = Reader::open(dir).map_err(words)?;
    let mut history = beside_the_curve(&reader, None)?;
    curve(&reader, &mut history)?;
    history.status = live_status(dir);
    Ok(history)
}

/// The curve: whole leaves as far as they go, then the newest steps.
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

/// What the store held at a moment, Unix milliseconds: every step that had been taken by then, also
/// those that were redone later.
///
/// # Errors
/// `SQLite`'s words.
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

/// Everything but the curve.
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

/// The rows of the curve within some steps; none where the store cannot be read.
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
