//! Reads run directories for the cockpit: rungs, stored history and other runs.

pub mod samples;

use super::read_error::ReadError;
use super::run::{Changes, OtherSource, Others, Sources};
use super::state::RungView;
use super::state::facts::History;
use super::state::runs::OtherRun;
use super::update::{ChangeError, RunChange};
use crate::config::run::Run;
use crate::protocol::claim::QueueChange;
use crate::protocol::control::StepRow;
use crate::series::Series;
use crate::store::curve::{Piece, Stretch};
use crate::store::labels::edit_labels;
use crate::store::reader::{Reader, live_status};
use crate::store::removal::{RunSize, measure_run, remove_run};
use crate::store::run_dir::RunDir;
use crate::store::run_summary::{RunIndex, RunSummary};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of probe readings loaded at the start: a few hours.
const FIRST_SAMPLES: usize = 4_000;
/// Maximum number of probe readings a replay loads: more than a day.
const SAMPLES: usize = 20_000;
/// Number of journal lines loaded at the start.
const JOURNAL: usize = 2000;

/// Changes a run's place in the queue, as the command does, and returns the answer.
pub type ChangeInQueue = fn(&RunDir, QueueChange) -> Result<String, ChangeError>;

/// Returns the rungs of a run, fastest first.
#[must_use]
pub fn rung_views(run: &Run) -> Vec<RungView> {
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
pub fn run_sources(dir: &RunDir, runs: &Path, queue: ChangeInQueue) -> Sources {
    let (whole, few, then, now) = (dir.clone(), dir.clone(), dir.clone(), dir.clone());
    Sources {
        history: Arc::new(move || read_history(&whole)),
        status: Arc::new(move || live_status(&now)),
        rows: Arc::new(move |steps| read_rows(&few, steps)),
        moment: Arc::new(move |until_ms| read_history_until(&then, until_ms)),
        others: Others { list: list_runs(runs.to_owned()), read: read_other_run(runs.to_owned()) },
        samples: samples::sample_sources(dir),
        changes: run_changes(runs, queue),
    }
}

/// Returns what changes runs at the user's request, by the same functions as the commands.
fn run_changes(runs: &Path, queue: ChangeInQueue) -> Changes {
    let [labelled, measured, deleted, queued] = [(); 4].map(|()| runs.to_owned());
    let change = |outcome: Result<RunChange, ChangeError>| outcome.unwrap_or_else(RunChange::Refused);
    Changes {
        label: Arc::new(move |name, edit| {
            let edited = || {
                let run = find_named(&labelled, name)?;
                edit_labels(&run, edit.clone()).map_err(|error| ChangeError(error.to_string()))
            };
            change(edited().map(|_| RunChange::Labelled))
        }),
        measure: Arc::new(move |name| {
            find_named(&measured, name).map_or_else(|_| RunSize::default(), |run| measure_run(&run))
        }),
        delete: Arc::new(move |name| {
            let removed = || {
                let run = find_named(&deleted, name)?;
                remove_run(&deleted, &run).map_err(|error| ChangeError(error.to_string()))
            };
            change(removed().map(RunChange::Deleted))
        }),
        queue: Arc::new(move |name, what| {
            change(find_named(&queued, name).and_then(|run| queue(&run, what).map(RunChange::Queued)))
        }),
    }
}

/// Finds the run of exactly this name: a prefix must not lead to another one.
fn find_named(runs: &Path, name: &str) -> Result<RunDir, ChangeError> {
    let found = RunDir::open(&runs.join(name)).map_err(|error| ChangeError(error.to_string()))?;
    if found.name() == name { Ok(found) } else { Err(ChangeError(format!("{name} is gone"))) }
}

/// Reads the stored history of a run and its status.
///
/// # Errors
/// Returns an error when the store cannot be read.
pub fn read_history(dir: &RunDir) -> Result<History, ReadError> {
    let reader = Reader::open(dir).map_err(ReadError::from_store)?;
    let mut history = read_tables(&reader, None)?;
    read_curve(&reader, &mut history)?;
    history.status = live_status(dir);
    Ok(history)
}

/// Reads the curve: as many whole leaves as possible, then the newest steps.
fn read_curve(reader: &Reader, history: &mut History) -> Result<(), ReadError> {
    let mut rows = Vec::new();
    history.series = Series::with_names(reader.metric_names().map_err(ReadError::from_store)?);
    let series = &mut history.series;
    let collect = |stretch: &Stretch, piece: Piece| match piece {
        Piece::Leaf(leaf) => series.extend(stretch.attempt, stretch.rung, leaf),
        Piece::Row(row) => rows.push(row),
    };
    reader.curve(collect).map_err(ReadError::from_store)?;
    for row in &rows {
        history.push_step(row);
    }
    Ok(())
}

/// Reads the history as it was at a moment, Unix milliseconds: every step taken by then, including
/// those that were redone later.
///
/// # Errors
/// Returns an error when the store cannot be read.
pub fn read_history_until(dir: &RunDir, until_ms: i64) -> Result<History, ReadError> {
    let reader = Reader::open(dir).map_err(ReadError::from_store)?;
    let mut history = read_tables(&reader, Some(until_ms))?;
    let each = |row: StepRow| {
        if row.time_ms <= until_ms {
            history.push_step(&row);
        }
    };
    reader.each_step(each).map_err(ReadError::from_store)?;
    Ok(history)
}

/// Reads everything except the curve.
fn read_tables(reader: &Reader, until_ms: Option<i64>) -> Result<History, ReadError> {
    let by_then = |time_ms: i64| until_ms.is_none_or(|until| time_ms <= until);
    let mut history = History {
        evals: reader.evals().map_err(ReadError::from_store)?,
        journal: reader
            .journal(if until_ms.is_some() { usize::MAX / 2 } else { JOURNAL })
            .map_err(ReadError::from_store)?,
        checkpoints: reader.checkpoints().map_err(ReadError::from_store)?,
        samples: reader
            .samples(if until_ms.is_some() { SAMPLES } else { FIRST_SAMPLES })
            .map_err(ReadError::from_store)?,
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
pub fn read_rows(dir: &RunDir, steps: &Range<u64>) -> Vec<StepRow> {
    Reader::open(dir).and_then(|reader| reader.curve_rows(steps)).unwrap_or_default()
}

fn list_runs(runs: PathBuf) -> Arc<dyn Fn() -> Vec<RunSummary> + Send + Sync> {
    let index = RunIndex::new(runs);
    Arc::new(move || index.list())
}

fn read_other_run(runs: PathBuf) -> OtherSource {
    Arc::new(move |name, with_curve| {
        let dir = RunDir::find(&runs, Some(name))?;
        let run = dir.run()?;
        let mut other =
            OtherRun { ladder: rung_views(&run), watch: Some(run.watch.clone()), series: None, evals: Vec::new() };
        if with_curve {
            let reader = Reader::open(&dir).map_err(ReadError::from_store)?;
            let mut history = History::default();
            read_curve(&reader, &mut history)?;
            other.evals = reader.evals().map_err(ReadError::from_store)?;
            other.evals.retain(|row| !history.series.is_redone(row.attempt, row.eval.step));
            other.series = Some(history.series);
        }
        Ok(other)
    })
}
