//! A run in one row: its status, its times, a small curve and its labels. Reading one takes the same time
//! for a run of any length.
//!
//! A list of runs is read every few seconds, and most of its runs never change again. So [`RunIndex`] keeps
//! what it read from a run.db until the file changes; the state of processes is read anew each time.

pub mod column;

use super::claims::{Registry, place_of};
use super::command_line::overrides;
use super::labels::Labels;
use super::reader::{ATTEMPT_END, Reader, fact, live_status_of};
use super::run_dir::RunDir;
use crate::config::best::Best;
use crate::protocol::claim::Place;
use crate::protocol::control::{RunState, Status};
use rusqlite::params;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Columns of the small curve.
pub const COLUMNS: usize = 24;
/// Steps averaged for one column of it.
const STEPS: i64 = 8;

/// A run in one row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSummary {
    /// Name.
    pub name: String,
    /// Status; `None` if the run never started.
    pub status: Option<Status>,
    /// When its run file was written, Unix milliseconds.
    pub created_ms: Option<i64>,
    /// Times, as its store has them.
    pub times: Times,
    /// Losses along the run, oldest first; a column without a finite loss is left out.
    pub curve: Vec<f64>,
    /// The definition of its best evaluation.
    pub ranking: Best,
    /// Tags, note and archive mark.
    pub labels: Labels,
    /// Why the labels cannot be read, if they cannot.
    pub labels_error: Option<String>,
    /// Overrides of its run file by `--set`: `optimizer.lr=0.004`.
    pub overrides: Vec<String>,
    /// Its place in the queue, while it waits for its devices or is held.
    pub place: Option<Place>,
}

/// Times of a run, Unix milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Start of the first worker.
    pub started_ms: Option<i64>,
    /// Time of the newest journal line or step.
    pub last_ms: Option<i64>,
    /// Milliseconds that ended workers lived.
    pub ended_workers_ms: i64,
    /// Start of the worker whose end is not recorded.
    pub open_since_ms: Option<i64>,
}

impl RunSummary {
    /// Reports whether a keeper or its parent lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.status.as_ref().is_some_and(Status::is_kept)
    }

    /// Reports whether it is alive, or its command runs on without a keeper.
    #[must_use]
    pub fn runs_on(&self) -> bool {
        self.is_alive() || self.status.as_ref().is_some_and(|status| status.state == RunState::Unattended)
    }

    /// Returns how long its workers have lived in all, in milliseconds; none before the first. Waiting between
    /// two workers, such as a pause, does not count.
    #[must_use]
    pub fn duration_ms(&self, now_ms: i64) -> Option<i64> {
        self.times.started_ms?;
        let worker_lives = self.status.as_ref().is_some_and(|status| status.pid_worker.is_some());
        let open = self.times.open_since_ms.map_or(0, |since| {
            let end = if worker_lives { now_ms } else { self.times.last_ms.unwrap_or(since) };
            end.saturating_sub(since).max(0)
        });
        Some(self.times.ended_workers_ms.saturating_add(open))
    }
}

/// The part of a summary that run.db holds.
#[derive(Debug, Clone, Default)]
struct Stored {
    status: Option<Status>,
    times: Times,
    curve: Vec<f64>,
    ranking: Best,
    overrides: Vec<String>,
}

impl Stored {
    /// Reads the store as far as it can be read. Returns whether all of it could.
    fn read(run: &RunDir) -> (Self, bool) {
        let Ok(reader) = Reader::open(run) else { return (Self::default(), false) };
        let (status, times, curve) = (fact(&reader.connection, "status"), reader.times(), reader.small_curve());
        let is_whole = status.is_ok() && times.is_ok() && curve.is_ok();
        let ranking = run.run().ok().and_then(|run| Some(run.rungs.first()?.preset.checkpoint.best.clone()));
        let stored = Self {
            status: status.ok().flatten(),
            times: times.unwrap_or_default(),
            curve: curve.unwrap_or_default(),
            ranking: ranking.unwrap_or_default(),
            overrides: overrides(run),
        };
        (stored, is_whole)
    }

    fn into_summary(self, run: &RunDir, status: Option<Status>) -> RunSummary {
        let Self { times, curve, ranking, overrides, .. } = self;
        let (labels, labels_error) = match Labels::read(run) {
            Ok(labels) => (labels, None),
            Err(error) => (Labels::default(), Some(error.to_string())),
        };
        RunSummary {
            name: run.name(),
            status,
            created_ms: created_ms(run),
            times,
            curve,
            ranking,
            labels,
            labels_error,
            overrides,
            place: None,
        }
    }
}

/// Gives the waiting ones of these runs their places in the queue.
pub fn find_places<'a>(runs: impl Iterator<Item = (&'a RunDir, &'a mut RunSummary)>) {
    let waits = |run: &RunSummary| {
        let state = run.status.as_ref().map(|status| status.state);
        run.is_alive() && matches!(state, Some(RunState::AwaitingCard | RunState::Paused))
    };
    let mut waiting = runs.filter(|(_, run)| waits(run)).peekable();
    // Most lists have no such run.
    let Some(registry) = waiting.peek().and_then(|_| Registry::of_user()) else { return };
    let claims = registry.living();
    waiting.for_each(|(dir, run)| run.place = place_of(dir.path(), &claims));
}

/// Returns when a run file was written, Unix milliseconds.
fn created_ms(run: &RunDir) -> Option<i64> {
    let written = fs::metadata(run.file("run.yaml")).ok()?.modified().ok()?;
    i64::try_from(written.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// Summarizes a run whose current status is known, as it is after asking its keeper.
#[must_use]
pub fn summarize_run(run: &RunDir, status: Option<Status>) -> RunSummary {
    let (stored, _) = Stored::read(run);
    stored.into_summary(run, status)
}

/// A file's version: it changes whenever the file does.
type Stamp = [Option<(SystemTime, u64)>; 2];

fn stamp(run: &RunDir) -> Stamp {
    ["run.db", "run.db-wal"].map(|name| {
        let about = fs::metadata(run.file(name)).ok()?;
        Some((about.modified().ok()?, about.len()))
    })
}

/// The runs of a folder, with a memory of those that have not changed.
pub struct RunIndex {
    runs: PathBuf,
    known: Mutex<HashMap<PathBuf, (Stamp, Stored)>>,
}

impl RunIndex {
    /// Creates an index of a folder; nothing is read yet.
    #[must_use]
    pub fn new(runs: PathBuf) -> Self {
        Self { runs, known: Mutex::default() }
    }

    /// Summarizes every run of the folder, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<RunSummary> {
        let all = RunDir::all(&self.runs);
        let mut summaries: Vec<RunSummary> = all.iter().map(|run| self.summarize(run)).collect();
        find_places(all.iter().zip(&mut summaries));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|path, _| all.iter().any(|run| run.path() == path));
        summaries
    }

    fn summarize(&self, run: &RunDir) -> RunSummary {
        let mut stored = None;
        // The store is read after the processes, so that the status of a keeper that just ended is its last one.
        let status = live_status_of(run, || {
            let read = self.read_stored(run);
            let status = read.status.clone();
            stored = Some(read);
            status
        });
        stored.unwrap_or_default().into_summary(run, status)
    }

    /// Reads the store of a run, unless it is as it was. A stamp taken before the read can only be too old. A store that
    /// could not be read, because it was locked or the disk failed for a moment, is read again next time.
    fn read_stored(&self, run: &RunDir) -> Stored {
        let now = stamp(run);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stored)) = known().get(run.path()).filter(|(then, _)| *then == now) {
            return stored.clone();
        }
        let (stored, is_whole) = Stored::read(run);
        if is_whole {
            known().insert(run.path().to_owned(), (now, stored.clone()));
        }
        stored
    }
}

impl Reader {
    /// Returns the times of the run.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn times(&self) -> rusqlite::Result<Times> {
        let attempts = format!(
            "SELECT min(started_ms), sum(max({ATTEMPT_END} - started_ms, 0)),
                    (SELECT started_ms FROM attempts WHERE ended_ms IS NULL AND id = (SELECT max(id) FROM attempts))
             FROM attempts"
        );
        let newest = |query| self.connection.query_row(query, [], |row| row.get::<_, i64>(0)).ok();
        // A command without a companion journals nothing while it trains.
        let told = newest("SELECT time_ms FROM journal ORDER BY id DESC LIMIT 1");
        let last_ms = told.max(newest("SELECT time_ms FROM steps ORDER BY attempt DESC, step DESC LIMIT 1"));
        self.connection.query_row(&attempts, [], |row| {
            Ok(Times {
                started_ms: row.get(0)?,
                last_ms,
                ended_workers_ms: row.get::<_, Option<i64>>(1)?.unwrap_or(0),
                open_since_ms: row.get(2)?,
            })
        })
    }

    /// Returns the loss along the run in at most [`COLUMNS`] columns, each the mean of a few steps: a look-up per
    /// column, whatever the number of steps.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn small_curve(&self) -> rusqlite::Result<Vec<f64>> {
        let stretches = self.stretches()?;
        let Some(last) = stretches.last() else { return Ok(Vec::new()) };
        let (first, end) = (stretches[0].steps.start, last.steps.end);
        let columns = (end - first).min(COLUMNS as u64);
        let mut mean = self.connection.prepare(
            "SELECT avg(loss) FROM (SELECT loss FROM steps WHERE attempt = ?1 AND step >= ?2 AND step < ?3 LIMIT ?4)",
        )?;
        let mut curve = Vec::new();
        for column in 0..columns {
            let at = |column: u64| first + (u128::from(end - first) * u128::from(column) / u128::from(columns)) as u64;
            let (from, to) = (at(column), at(column + 1));
            // The newest column ends with the newest step.
            let from = if column + 1 == columns { from.max(to.saturating_sub(STEPS.unsigned_abs())) } else { from };
            let Some(stretch) = stretches.iter().find(|stretch| stretch.steps.contains(&from)) else { continue };
            let values = params![stretch.attempt as i64, from as i64, to as i64, STEPS];
            let value: Option<f64> = mean.query_row(values, |row| row.get(0))?;
            curve.extend(value.filter(|value| value.is_finite()));
        }
        Ok(curve)
    }
}

#[cfg(test)]
mod tests;
