//! The keeper's write access to run.db.

pub use super::batch::{AttemptRow, Batch};
use super::curve::sum_up;
use super::database::{check_pages, is_damage, open_writer};
use super::step_metrics::read_names;
use super::summary::{BLOCK, MetricNames};
use super::{damaged, reader, rows};
use crate::protocol::control::{CheckpointRow, EvalRow};
use crate::protocol::time_spent::{StepTime, time_of_steps};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Default wait for a store locked by another process.
const PATIENCE: Duration = Duration::from_secs(5);

/// Newest attempts, and steps of each, among which the loss of a step is sought.
const ATTEMPTS: i64 = 64;
const STEPS: i64 = 1024;

/// Writes the store. Each run has one writer, in its keeper.
pub struct Writer {
    path: PathBuf,
    /// None between the loss of a damaged store and its replacement.
    connection: Option<Connection>,
    patience: Duration,
    logged: bool,
    /// Blocks of an attempt with rows added since their last summary.
    open: BTreeSet<(u64, u64)>,
    /// Names of the metrics in the store, once read.
    names: Option<MetricNames>,
}

/// Report on the replacement of a damaged store.
#[derive(Debug)]
pub struct Replaced {
    /// New path of the damaged store; none if it had disappeared.
    pub aside: Option<PathBuf>,
    /// The damage.
    pub why: String,
    /// Number of salvaged rows.
    pub saved: usize,
}

/// Creates a store with every readable row of a damaged one, completely on disk in a single file. Returns the
/// number of rows.
fn salvaged(damaged: &Path, into: &Path, patience: Duration) -> rusqlite::Result<usize> {
    let (mut connection, _) = open_writer(into, patience)?;
    let saved = if damaged.exists() { damaged::salvage(damaged, &mut connection)? } else { 0 };
    // Empties the write-ahead log: it would not follow the file to its new name.
    let mode: String = connection.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))?;
    connection.close().map_err(|(_, error)| error)?;
    if mode.eq_ignore_ascii_case("delete") { Ok(saved) } else { Err(rusqlite::Error::InvalidQuery) }
}

fn cannot_move(error: &io::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    rusqlite::Error::SqliteFailure(code, Some(format!("the damaged store cannot be replaced: {error}")))
}

impl Writer {
    /// Opens or creates run.db.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        damaged::settle(path);
        let (connection, logged) = open_writer(path, PATIENCE)?;
        let (open, names) = (BTreeSet::new(), None);
        Ok(Self { path: path.to_owned(), connection: Some(connection), patience: PATIENCE, logged, open, names })
    }

    /// Opens the store of a run that is about to continue: checks it in full first, and replaces it if it is damaged.
    ///
    /// # Errors
    /// Returns the error of `SQLite` for anything but damage.
    pub fn open_or_replace(path: &Path) -> rusqlite::Result<(Self, Option<Replaced>)> {
        let sound = |mut writer: Self| {
            check_pages(writer.connection()?)?;
            writer.facts()?;
            writer.last_journal_id()?;
            writer.checkpoints()?;
            Ok(writer)
        };
        match Self::open(path).and_then(sound) {
            Ok(writer) => Ok((writer, None)),
            Err(error) if is_damage(&error) => {
                let (path, open) = (path.to_owned(), BTreeSet::new());
                let mut writer = Self { path, connection: None, patience: PATIENCE, logged: false, open, names: None };
                let replaced = writer.replace(&error)?;
                Ok((writer, Some(replaced)))
            }
            Err(error) => Err(error),
        }
    }

    /// Sets the damaged store aside and continues with a new one, which receives every row that is still readable.
    /// The new one is complete before the damaged one gives up its place.
    ///
    /// # Errors
    /// Returns an error when that is not possible now; then the damaged store is still in its place.
    pub fn replace(&mut self, why: &rusqlite::Error) -> rusqlite::Result<Replaced> {
        (self.connection, self.names) = (None, None);
        self.open.clear();
        let why = why.to_string();
        let draft = damaged::draft(&self.path);
        damaged::remove(&draft);
        let saved = salvaged(&self.path, &draft, self.patience).inspect_err(|_| damaged::remove(&draft))?;
        let aside = match damaged::set_aside(&self.path) {
            Ok(aside) => Some(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot_move(&error)),
        };
        fs::rename(&draft, &self.path).map_err(|error| cannot_move(&error))?;
        self.connection()?;
        Ok(Replaced { aside, why, saved })
    }

    /// Reports whether the store uses a write-ahead log.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.logged
    }

    /// Limits how long the writer waits for another process's lock from now on.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn wait_at_most(&mut self, patience: Duration) -> rusqlite::Result<()> {
        self.patience = patience;
        self.connection()?.busy_timeout(patience)
    }

    fn connection(&mut self) -> rusqlite::Result<&mut Connection> {
        if self.connection.is_none() {
            let (connection, logged) = open_writer(&self.path, self.patience)?;
            self.logged = logged;
            return Ok(self.connection.insert(connection));
        }
        self.connection.as_mut().ok_or(rusqlite::Error::InvalidQuery)
    }

    /// Returns the number of the next attempt. It is above every attempt in any row, so that after the
    /// loss of run.db no new attempt hides behind rows restored from checkpoints.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn next_attempt(&mut self) -> rusqlite::Result<u64> {
        let newest = "SELECT max((SELECT coalesce(max(id), 0) FROM attempts),
                                 (SELECT coalesce(max(attempt), 0) FROM steps),
                                 (SELECT coalesce(max(attempt), 0) FROM evals))";
        let newest: i64 = self.connection()?.query_row(newest, [], |row| row.get(0))?;
        Ok(newest.unsigned_abs() + 1)
    }

    /// Returns the newest attempt that had begun at a time, in Unix milliseconds.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn attempt_at(&mut self, time_ms: i64) -> rusqlite::Result<Option<u64>> {
        let newest = "SELECT max(id) FROM attempts WHERE started_ms <= ?1";
        let newest: Option<i64> = self.connection()?.query_row(newest, [time_ms], |row| row.get(0))?;
        Ok(newest.map(i64::unsigned_abs))
    }

    /// Returns the total lifetime of this run's workers in seconds, over all attempts with a known end.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn lived_s(&mut self) -> rusqlite::Result<f64> {
        let lived =
            "SELECT coalesce(sum(max(ended_ms - started_ms, 0)), 0) / 1000.0 FROM attempts WHERE ended_ms IS NOT NULL";
        self.connection()?.query_row(lived, [], |row| row.get(0))
    }

    /// Writes a batch in one transaction.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails; then nothing of the batch is written.
    pub fn append(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.connection()?;
        let (Some(connection), open) = (&mut self.connection, &mut self.open) else { return Ok(()) };
        // A transaction that reads before it writes would not wait for another process's lock.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Read again after a failure, which may have taken new names back.
        let mut names = self.names.take().map_or_else(|| read_names(&transaction), Ok)?;
        batch.write(&transaction, &mut names)?;
        for (attempt, step) in &batch.went_back {
            open.retain(|(of, block)| of != attempt || *block <= step / BLOCK);
        }
        open.extend(batch.steps.iter().map(|row| (row.attempt, row.step / BLOCK)));
        // The newest block keeps growing; it is summarized when the run has left it.
        while open.len() > 1 {
            if let Some((attempt, block)) = open.pop_first() {
                sum_up(&transaction, attempt, block)?;
            }
        }
        transaction.commit()?;
        self.names = Some(names);
        Ok(())
    }

    /// Writes a batch in one transaction, flushed to disk when this returns.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails; then nothing of the batch is written.
    pub fn append_durably(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        self.connection()?.pragma_update(None, "synchronous", "FULL")?;
        let written = self.append(batch);
        self.connection()?.pragma_update(None, "synchronous", "NORMAL")?;
        written
    }

    /// Returns all checkpoints that ever existed, oldest first.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn checkpoints(&mut self) -> rusqlite::Result<Vec<CheckpointRow>> {
        rows::checkpoints(self.connection()?)
    }

    /// Returns every evaluation, by attempt and step.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn evals(&mut self) -> rusqlite::Result<Vec<EvalRow>> {
        rows::evals(self.connection()?)
    }

    /// Returns the step after which an attempt began, if it said so.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn began_from(&mut self, attempt: u64) -> rusqlite::Result<Option<u64>> {
        let from = "SELECT from_step FROM attempts WHERE id = ?1";
        let from: Option<Option<i64>> =
            self.connection()?.query_row(from, [attempt as i64], |row| row.get(0)).optional()?;
        Ok(from.flatten().map(i64::unsigned_abs))
    }

    /// Reports whether this attempt is known, and its end is not.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn is_open(&mut self, attempt: u64) -> rusqlite::Result<bool> {
        let open = "SELECT ended_ms IS NULL FROM attempts WHERE id = ?1";
        let open = self.connection()?.query_row(open, [attempt as i64], |row| row.get(0)).optional()?;
        Ok(open.unwrap_or(false))
    }

    /// Returns the newest loss among the last steps up to this one: that of the newest attempt that has one.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn loss_up_to(&mut self, step: u64) -> rusqlite::Result<Option<f64>> {
        let connection = self.connection()?;
        let attempts: Vec<i64> = connection
            .prepare_cached("SELECT id FROM attempts ORDER BY id DESC LIMIT ?1")?
            .query_map([ATTEMPTS], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut newest = connection.prepare_cached(
            "SELECT loss FROM steps WHERE attempt = ?1 AND step <= ?2 AND step > ?2 - ?3 AND loss IS NOT NULL
             ORDER BY step DESC LIMIT 1",
        )?;
        for attempt in attempts {
            let loss = newest.query_row([attempt, step as i64, STEPS], |row| row.get(0)).optional()?;
            if loss.is_some() {
                return Ok(loss);
            }
        }
        Ok(None)
    }

    /// Counts the steps taken (not skipped) after `after` and up to `until`; a redone step counts once, and steps without
    /// a row as the next that has one.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn clean_steps(&mut self, after: u64, until: u64) -> rusqlite::Result<u64> {
        let count: i64 = self.connection()?.query_row(
            "SELECT coalesce(sum(step - before), 0) FROM (
                SELECT step, min(skipped) AS skipped, lag(step, 1, ?1) OVER (ORDER BY step) AS before
                FROM steps WHERE step > ?1 AND step <= ?2 GROUP BY step
             ) WHERE skipped = 0",
            params![after as i64, until as i64],
            |row| row.get(0),
        )?;
        Ok(count.unsigned_abs())
    }

    /// Returns how many milliseconds the steps after `after` and up to `until` took; of a step that several attempts took, in the
    /// newest one.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn time_of_steps(&mut self, after: u64, until: u64) -> rusqlite::Result<f64> {
        let connection = self.connection()?;
        let mut attempts = connection.prepare_cached("SELECT id FROM attempts ORDER BY id DESC LIMIT ?1")?;
        let attempts: Vec<i64> = attempts.query_map([ATTEMPTS], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let mut steps = connection.prepare_cached(
            "SELECT step, time_ms, data_wait_ms * (compute_ms > 0) + compute_ms FROM steps
             WHERE attempt = ?1 AND step <= ?3
             AND step >= coalesce((SELECT max(step) FROM steps WHERE attempt = ?1 AND step <= ?2), 0) ORDER BY step",
        )?;
        let (mut until, mut ms) = (until, 0.0);
        for attempt in attempts {
            let rows = steps.query_map(params![attempt, after as i64, until as i64], |row| {
                Ok(StepTime { step: rows::count(row, 0)?, time_ms: row.get(1)?, own_ms: row.get(2)? })
            })?;
            let rows: Vec<StepTime> = rows.collect::<rusqlite::Result<_>>()?;
            ms += time_of_steps(&rows, after);
            until = rows.first().map_or(until, |first| first.step.saturating_sub(1).min(until));
            if until <= after {
                break;
            }
        }
        Ok(ms)
    }

    /// Returns the newest step before this one, of the newest attempt that has any.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn step_before(&mut self, step: u64) -> rusqlite::Result<Option<u64>> {
        let before = "SELECT (SELECT max(step) FROM steps WHERE attempt = attempts.id AND step < ?1) AS before
                      FROM attempts WHERE before IS NOT NULL ORDER BY id DESC LIMIT 1";
        self.connection()?.query_row(before, [step as i64], |row| rows::count(row, 0)).optional()
    }

    /// Writes a fact: a small value under a name.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn put_fact<T: Serialize>(&mut self, key: &str, value: &T) -> rusqlite::Result<()> {
        let mut batch = Batch::default();
        batch.put_fact(key, value);
        self.append(&batch)
    }

    /// Returns a fact, if it exists and is readable.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn fact<T: DeserializeOwned>(&mut self, key: &str) -> rusqlite::Result<Option<T>> {
        reader::fact(self.connection()?, key)
    }

    /// Returns every fact: JSON by name.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn facts(&mut self) -> rusqlite::Result<BTreeMap<String, String>> {
        let mut query = self.connection()?.prepare("SELECT key, value FROM facts")?;
        query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// Returns the names of the run's metrics.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn metric_names(&mut self) -> rusqlite::Result<Vec<String>> {
        let names = read_names(self.connection()?)?;
        Ok(names.iter().map(|(_, name)| name.to_owned()).collect())
    }

    /// Returns the id of the newest journal line.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn last_journal_id(&mut self) -> rusqlite::Result<i64> {
        self.connection()?.query_row("SELECT coalesce(max(id), 0) FROM journal", [], |row| row.get(0))
    }
}
