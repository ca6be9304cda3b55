//! Reads run.db while the keeper writes it: short, read-only queries.

use super::batch::AttemptRow;
use super::database::{NewerStore, check_foreign, open_reader};
use super::lock::Recovery;
use super::rows::{self, StepReader};
use super::run_dir::RunDir;
use super::shared_folder::lease;
use super::shared_folder::takeover::STILL;
use super::summary::MetricNames;
use super::{checkpoint, owners, without_keeper};
use crate::format::{count, counted};
use crate::protocol::cause::Cause;
use crate::protocol::control::{CheckpointRow, EvalRow, JournalRow, LayerRow, ReadingRow, RunState, Status, StepRow};
use crate::protocol::exit_code;
use crate::protocol::samples::{FIRST_NON_FINITE, NonFiniteParameter};
use crate::protocol::worker::Level;
use crate::untrusted::database::{TextBudget, damaged};
use crate::untrusted::text;
use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// Age at which the data of a live keeper counts as stale.
const STALE: std::time::Duration = std::time::Duration::from_secs(30);

/// When an attempt ended. One that died with its keeper has no end in the store; it lived until its last step at least.
/// The last attempt may still live.
pub(super) const ATTEMPT_END: &str = "coalesce(ended_ms, CASE WHEN id < (SELECT max(id) FROM attempts) THEN coalesce(
    (SELECT time_ms FROM steps WHERE attempt = id ORDER BY step DESC LIMIT 1), started_ms) END)";

/// A read-only view of a run's store.
pub struct Reader {
    pub(super) connection: Connection,
}

impl Reader {
    /// Opens run.db.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails, or the keeper has not created the store yet.
    pub fn open(run: &RunDir) -> rusqlite::Result<Self> {
        Ok(Self { connection: open_reader(&run.file("run.db"))? })
    }

    /// Opens run.db to read all of it, wherever it comes from.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails, or its pages are damaged.
    pub fn open_foreign(run: &RunDir) -> rusqlite::Result<Self> {
        let reader = Self::open(run)?;
        check_foreign(&run.file("run.db"), &reader.connection)?;
        Ok(reader)
    }

    /// Opens the store of a run that should have begun, to read all of it.
    ///
    /// # Errors
    /// Returns an error that names the problem and the fix in one sentence.
    pub fn open_begun(run: &RunDir) -> Result<Self, UnreadableStore> {
        if let Some(why) = unreadable(run) {
            return Err(why);
        }
        let file = run.file("run.db");
        if !file.exists() {
            return Err(UnreadableStore::NotBegun { run: run.name() });
        }
        Self::open_foreign(run).map_err(|source| UnreadableStore::Sqlite { file, source: Box::new(source) })
    }

    /// Returns the run's status, as last written by the keeper.
    pub fn status(&self) -> Option<Status> {
        self.fact("status")
    }

    /// Returns a fact.
    pub fn fact<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        fact(&self.connection, key).ok().flatten()
    }

    /// Calls `each` with every step of every attempt, in order of attempt and step.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn each_step(&self, mut each: impl FnMut(StepRow)) -> rusqlite::Result<()> {
        let reader = StepReader::new(&self.connection)?;
        let mut query = reader.query("ORDER BY attempt, step")?;
        let mut rows = query.query([])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            let row = reader.row(row)?;
            let place = Some((row.attempt, row.step));
            if last >= place {
                return Err(damaged("its steps are not in order".to_owned()));
            }
            last = place;
            each(row);
        }
        Ok(())
    }

    /// Returns the names of the metrics that steps report beside those that every step has.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn metric_names(&self) -> rusqlite::Result<MetricNames> {
        Ok(StepReader::new(&self.connection)?.names)
    }

    /// Returns all evaluations, in order of attempt and step.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn evals(&self) -> rusqlite::Result<Vec<EvalRow>> {
        rows::evals(&self.connection)
    }

    /// Returns the state of the layers after step `after`, or from the beginning, by attempt and step. A redone step
    /// is in several attempts; the highest one counts.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn layers(&self, after: Option<u64>) -> rusqlite::Result<Vec<LayerRow>> {
        rows::layers(&self.connection, after)
    }

    /// Returns the first parameter of the run whose gradient was NaN or infinite, if there was one.
    #[must_use]
    pub fn first_non_finite(&self) -> Option<NonFiniteParameter> {
        self.fact(FIRST_NON_FINITE)
    }

    /// Returns the last `count` probe readings, oldest first.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn samples(&self, count: usize) -> rusqlite::Result<Vec<ReadingRow>> {
        let mut query =
            self.connection.prepare("SELECT time_ms, reading FROM samples ORDER BY time_ms DESC LIMIT ?1")?;
        let rows = query.query_map(params![count as i64], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        let (mut samples, mut budget) = (Vec::new(), TextBudget::default());
        for row in rows {
            let (time_ms, reading) = row?;
            budget.spend(&reading)?;
            samples.extend(serde_json::from_str(&reading).ok().map(|reading| ReadingRow { time_ms, reading }));
        }
        samples.reverse();
        Ok(samples)
    }

    /// Returns the last `count` journal lines, oldest first.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn journal(&self, count: usize) -> rusqlite::Result<Vec<JournalRow>> {
        let mut query = self
            .connection
            .prepare("SELECT id, time_ms, step, level, kind, text FROM journal ORDER BY id DESC LIMIT ?1")?;
        let mut budget = TextBudget::default();
        let rows = query.query_map(params![count as i64], |row| {
            let (level, kind): (String, String) = (row.get(3)?, row.get(4)?);
            let text: String = row.get(5)?;
            budget.spend(&text)?;
            Ok(JournalRow {
                id: row.get(0)?,
                time_ms: row.get(1)?,
                step: row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs),
                level: serde_json::from_str(&level).unwrap_or(Level::Info),
                kind: serde_json::from_str(&kind).unwrap_or(crate::protocol::control::JournalKind::Note),
                text,
            })
        })?;
        let mut lines = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        lines.reverse();
        Ok(lines)
    }

    /// Returns every attempt, oldest first. Only the last one may have no end.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn attempts(&self) -> rusqlite::Result<Vec<AttemptRow>> {
        let mut query = self.connection.prepare(&format!(
            "SELECT id, rung, rung_name, reason, started_ms, pid, from_step, {ATTEMPT_END}, outcome
             FROM attempts ORDER BY id"
        ))?;
        let rows = query.query_map([], |row| {
            Ok(AttemptRow {
                id: rows::count(row, 0)?,
                rung: row.get::<_, i64>(1)?.unsigned_abs() as usize,
                rung_name: row.get(2)?,
                reason: row.get(3)?,
                started_ms: row.get(4)?,
                pid: row.get(5)?,
                from_step: row.get::<_, Option<i64>>(6)?.map(i64::unsigned_abs),
                ended_ms: row.get(7)?,
                outcome: row.get(8)?,
            })
        })?;
        rows.collect()
    }

    /// Returns the causes of ended attempts, with their numbers. Older stores have none.
    #[must_use]
    pub fn causes(&self) -> Vec<(u64, Cause)> {
        let rows = || -> rusqlite::Result<Vec<(i64, String)>> {
            let mut query = self.connection.prepare("SELECT attempt, cause FROM causes ORDER BY attempt")?;
            query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let read = |(attempt, cause): (i64, String)| Some((attempt.unsigned_abs(), serde_json::from_str(&cause).ok()?));
        rows().unwrap_or_default().into_iter().filter_map(read).collect()
    }

    /// Returns all checkpoints that ever existed, oldest first.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn checkpoints(&self) -> rusqlite::Result<Vec<CheckpointRow>> {
        rows::checkpoints(&self.connection)
    }
}

/// Returns a fact, if it exists and has this type.
pub(super) fn fact<T: DeserializeOwned>(connection: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    let value: Option<String> =
        connection.query_row("SELECT value FROM facts WHERE key = ?1", [key], |row| row.get(0)).optional()?;
    Ok(value.and_then(|value| serde_json::from_str(&value).ok()))
}

/// Returns the run's status with the **current** state of its processes: the stored status, corrected
/// by the lock files. A run whose keeper died before its end is `recovering` while the keeper's parent
/// is alive, and `interrupted` otherwise.
#[must_use]
pub fn live_status(run: &RunDir) -> Option<Status> {
    live_status_of(run, || Reader::open(run).ok()?.status())
}

/// Does the same with a stored status that the caller reads, or remembers.
#[must_use]
pub fn live_status_of(run: &RunDir, stored: impl FnOnce() -> Option<Status>) -> Option<Status> {
    // Check the processes first: the keeper's last status is then read after the keeper is known to be gone.
    let (keeper, parent) = (owners::keeper(run), owners::parent_record(run));
    let record = owners::keeper_record(run);
    let opening = record.as_ref().is_some_and(|record| record.opening);
    let elsewhere = owners::keeper_elsewhere(run);
    let mut status = stored()?;
    if let Some(lease) = elsewhere {
        // Processes of that host are not seen from here; the store says where they stand.
        status.pid_keeper = lease.unreadable.is_none().then_some(lease.owner.pid);
        status.host = Some(text::escape_line(&lease.host.name).into_owned());
        if let Some(age) = lease::age(run.path()).filter(|age| *age > STILL) {
            let seconds = age.as_secs();
            status.why = Some(format!("its lease has not moved for {seconds} s; that host may be down or cut off"));
        }
        return Some(status);
    }
    status.host = None;
    status.pid_keeper = keeper.map(|keeper| keeper.pid);
    status.pid_worker = owners::worker(run).map(|worker| worker.pid);
    if status.pid_worker.is_none() {
        status.ranks.clear();
    }
    if let Some(ending) = owners::unwritten_end(run).filter(|_| parent.is_some() || !status.state.is_over()) {
        // The parent holds the keeper's lock while it writes.
        (status.pid_keeper, status.pid_probe) = (None, None);
        (status.state, status.why) = if parent.is_some() {
            (RunState::Stopping, Some(ending.why))
        } else {
            (exit_code::state_of(ending.code), Some(format!("{}; run.db could not be written then", ending.why)))
        };
        status.exit_code = Some(ending.code).filter(|_| parent.is_none());
        return Some(status);
    }
    if let Some(waiting) = record.and_then(|record| record.waiting) {
        (status.state, status.why) = (RunState::Recovering, Some(waiting));
        return Some(status);
    }
    if status.pid_keeper.is_some() && !opening {
        status.why = status.why.or_else(|| stale(run).filter(|_| status.state.is_moving()));
        return Some(status);
    }
    // Checkpoints saved after the keeper died count too.
    status.durable_step = checkpoint::list(run.path()).first().map(|newest| newest.step).or(status.durable_step);
    status.pid_probe = None;
    // An end in the store may be an old one, if the keeper died before it could write that the run continues.
    let recovering = parent.as_ref().is_some_and(|record| record.recovery.is_some());
    if status.state.is_over() && !recovering {
        return Some(status);
    }
    let recovery = parent.map(|parent| parent.recovery.unwrap_or_default());
    let recovery = recovery.or_else(|| opening.then(Recovery::default));
    (status.state, status.why) = without_keeper::state_of(run, &status, recovery);
    Some(status)
}

/// Returns a sentence if the store is stale: a live keeper writes at least a probe reading every few seconds.
fn stale(run: &RunDir) -> Option<String> {
    let written = |name: &str| std::fs::metadata(run.file(name)).and_then(|made| made.modified()).ok();
    let newest = ["run.db", "run.db-wal"].into_iter().filter_map(written).max()?;
    let age = newest.elapsed().ok().filter(|age| *age > STALE)?;
    Some(format!(
        "as of {} s ago: run.db has not changed since; is the disk full, or the keeper suspended?",
        age.as_secs()
    ))
}

/// Refuses a run whose store was written by a newer version; other problems show up when the store is read.
///
/// # Errors
/// Returns that refusal.
pub fn refuse_newer(run: &RunDir) -> Result<(), NewerStore> {
    let refusal = Reader::open(run).err().and_then(|error| NewerStore::behind(&error));
    refusal.map_or(Ok(()), Err)
}

/// Reason why the store of a run cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableStore {
    /// There is neither a store nor a checkpoint.
    #[error("{run} has not begun yet; try again in a moment")]
    NotBegun {
        /// The run's name.
        run: String,
    },
    /// `SQLite` cannot open or query it.
    #[error("{}: {source}", text::path(.file))]
    Sqlite {
        /// The path of the store.
        file: PathBuf,
        /// The error of `SQLite`.
        source: Box<rusqlite::Error>,
    },
    /// The file is gone; the checkpoints are still there.
    #[error(
        "{} is missing; the run still has {} up to step {}, and `{resume}` rebuilds it",
        text::path(.file),
        counted(*.checkpoints as u64, "checkpoint"),
        count(*.step)
    )]
    Missing {
        /// The path of the store.
        file: PathBuf,
        /// Number of checkpoints.
        checkpoints: usize,
        /// Step of the newest one.
        step: u64,
        /// The command that rebuilds the store.
        resume: String,
    },
    /// A newer version wrote it.
    #[error("{}: {refusal}", text::path(.file))]
    Newer {
        /// The path of the store.
        file: PathBuf,
        /// The refusal.
        refusal: NewerStore,
    },
    /// `SQLite` cannot read it.
    #[error(
        "{} cannot be read: {source}. Checkpoints do not depend on it: `{verify}` reads them, `{resume}` replaces it \
         and continues from the newest",
        text::path(.file)
    )]
    Damaged {
        /// The path of the store.
        file: PathBuf,
        /// The error of `SQLite`.
        source: Box<rusqlite::Error>,
        /// The command that verifies the checkpoints.
        verify: String,
        /// The command that replaces the store.
        resume: String,
    },
}

/// Returns why the run's status is unknown; none if the run just has not begun.
#[must_use]
pub fn unreadable(run: &RunDir) -> Option<UnreadableStore> {
    let file = run.file("run.db");
    if !file.exists() {
        let all = checkpoint::list(run.path());
        let (checkpoints, step) = (all.len(), all.first()?.step);
        return Some(UnreadableStore::Missing { file, checkpoints, step, resume: run.command("resume") });
    }
    let begun = |reader: Reader| {
        let tables = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = reader.connection.query_row(tables, [], |row| row.get(0))?;
        if tables > 0 { fact::<Status>(&reader.connection, "status").map(drop) } else { Ok(()) }
    };
    let source = Reader::open(run).and_then(begun).err()?;
    if let Some(refusal) = NewerStore::behind(&source) {
        return Some(UnreadableStore::Newer { file, refusal });
    }
    let verify = format!("downshift checkpoints {} verify", run.name());
    Some(UnreadableStore::Damaged { file, source: Box::new(source), verify, resume: run.command("resume") })
}
