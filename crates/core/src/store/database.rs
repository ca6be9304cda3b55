//! The schema of run.db, and how to open it.

use super::file_system::is_shared;
use super::owners;
use crate::untrusted::database::{bound_reads, distrust_schema, within};
use crate::untrusted::file::{self, ReadError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, ffi};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Schema version; incremented when the schema changes.
const VERSION: i64 = 3;

/// How long the keeper waits for a store locked by another process; meanwhile it hears nothing from its worker. With a
/// rollback journal every reader locks it for a moment.
pub const WITH_LOG: Duration = Duration::from_millis(20);
/// The same with a rollback journal.
pub const WITHOUT_LOG: Duration = Duration::from_secs(1);
/// How long a reader waits for the writer.
const READER_PATIENCE: Duration = Duration::from_secs(2);
/// Interval between two attempts of a reader while a writer may be in a transaction.
const READER_INTERVAL: Duration = Duration::from_millis(20);

/// Longest check of the pages of a store, and what each mebibyte adds to it on a slow disk.
const CHECK_AT_LEAST: Duration = Duration::from_secs(10);
const CHECK_PER_MEBIBYTE: Duration = Duration::from_secs(1);

/// Largest store that is checked in full (3 million steps, 4 s).
const READ_THROUGH: i64 = 256 << 20;
/// Tables that stay small for a run of any length.
const SMALL_TABLES: [&str; 8] =
    ["facts", "attempts", "metric_names", "evals", "layers", "journal", "causes", "checkpoints"];

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS facts (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    id          INTEGER PRIMARY KEY,    -- counts up from 1
    rung        INTEGER NOT NULL,
    rung_name   TEXT NOT NULL,
    reason      TEXT NOT NULL,
    started_ms  INTEGER NOT NULL,
    pid         INTEGER,
    from_step   INTEGER,
    ended_ms    INTEGER,
    outcome     TEXT                    -- a sentence
);
CREATE TABLE IF NOT EXISTS steps (
    attempt      INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    rung         INTEGER NOT NULL,
    samples      INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    loss         REAL,                  -- NULL where skipped or not reported
    lr           REAL,
    grad_norm    REAL,
    skipped      INTEGER NOT NULL,
    data_wait_ms REAL NOT NULL,
    compute_ms   REAL NOT NULL,
    time_ms      INTEGER NOT NULL,
    metrics      BLOB,                  -- store/step_metrics.rs; NULL without named metrics
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metric_names (
    id   INTEGER PRIMARY KEY,           -- counts up from 0
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS summaries ( -- of `steps`, for charts; may lack blocks
    attempt INTEGER NOT NULL,
    block   INTEGER NOT NULL,           -- step / 1024
    leaves  BLOB NOT NULL,              -- store/summary/bytes.rs
    PRIMARY KEY (attempt, block)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evals (
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    eval    TEXT NOT NULL,              -- JSON
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS layers (
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    layers  TEXT NOT NULL,              -- JSON
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
    time_ms INTEGER PRIMARY KEY,
    reading TEXT NOT NULL               -- JSON
);
CREATE TABLE IF NOT EXISTS journal (
    id      INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    step    INTEGER,
    level   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    text    TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS causes (
    attempt INTEGER PRIMARY KEY,
    class   TEXT NOT NULL,
    cause   TEXT NOT NULL               -- JSON: class, evidence, advice
);
CREATE TABLE IF NOT EXISTS checkpoints (
    step      INTEGER PRIMARY KEY,
    samples   INTEGER NOT NULL,
    path      TEXT NOT NULL,
    bytes     INTEGER NOT NULL,
    time_ms   INTEGER NOT NULL,
    pause_ms  REAL NOT NULL,
    total_ms  REAL NOT NULL,
    eval_loss REAL,
    best      INTEGER NOT NULL,
    kept      INTEGER NOT NULL,
    proven    INTEGER NOT NULL DEFAULT 0,
    metrics   TEXT                      -- JSON: the other metrics of the evaluation
);
";

/// A store of a newer version; its rows may have another meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "run.db was written by a newer downshift (schema {found}, this one knows {VERSION}); update downshift to use it"
)]
pub struct NewerStore {
    /// The store's schema version.
    pub found: i64,
}

impl NewerStore {
    /// Returns the refusal inside an error of this module, if there is one.
    #[must_use]
    pub fn behind(error: &Error) -> Option<Self> {
        match error {
            Error::ToSqlConversionFailure(inner) => inner.downcast_ref::<Self>().copied(),
            _ => None,
        }
    }
}

/// Reports whether the file itself is damaged: no retry can read it.
#[must_use]
pub fn is_damage(error: &Error) -> bool {
    match error {
        // A cell of a type that this program never writes there.
        Error::InvalidColumnType(..)
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::Utf8Error(..) => true,
        other => {
            matches!(other.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
        }
    }
}

/// Opens run.db for its only writer. The second value is false when a rollback journal is used instead of a write-ahead
/// log: in a [shared](super::shared_folder) folder, since readers on other hosts do not see the log's index, which is
/// shared memory; and where the file system has no such memory (WSL's /mnt/c).
///
/// # Errors
/// Returns the error of `SQLite`, or [`NewerStore`].
pub fn open_writer(path: &Path, patience: Duration) -> rusqlite::Result<(Connection, bool)> {
    open_writer_in(path, patience, path.parent().is_some_and(is_shared))
}

fn open_writer_in(path: &Path, patience: Duration, shared: bool) -> rusqlite::Result<(Connection, bool)> {
    let connection = Connection::open(path)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(patience)?;
    // Check the version first: a newer store must stay unchanged.
    let found = check_version(&connection)?;
    let logged = !shared && set_journal(&connection, "WAL")?;
    if !logged && set_journal(&connection, "TRUNCATE")? {
        let busy = ffi::Error::new(ffi::SQLITE_BUSY);
        let why = "another process has it open, so its write-ahead log cannot be turned off; close that process";
        return Err(Error::SqliteFailure(busy, Some(why.to_owned())));
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    migrate(&connection, found)?;
    Ok((connection, logged))
}

/// Asks for a journal mode. Returns whether the store uses a write-ahead log then.
fn set_journal(connection: &Connection, mode: &str) -> rusqlite::Result<bool> {
    let mode: String = connection.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| row.get(0))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

/// Brings the schema of a store up to date, completely or not at all.
fn migrate(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch(SCHEMA)?;
    if found == 1 {
        transaction.execute_batch("ALTER TABLE checkpoints ADD COLUMN proven INTEGER NOT NULL DEFAULT 0")?;
    }
    if (1..3).contains(&found) {
        transaction.execute_batch(
            "ALTER TABLE steps ADD COLUMN metrics BLOB; ALTER TABLE checkpoints ADD COLUMN metrics TEXT",
        )?;
        allow_unknown_rate(&transaction)?;
    }
    if found != VERSION {
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()
}

/// Removes `NOT NULL` from the learning rate, in the text of the schema, as `SQLite` documents for constraints
/// (lang_altertable.html, section 7): no row changes, so a run of any length takes no time and no room.
fn allow_unknown_rate(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
    connection.pragma_update(None, "writable_schema", true)?;
    let edited = connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'lr           REAL NOT NULL', 'lr           REAL')
         WHERE type = 'table' AND name = 'steps'",
        [],
    );
    // A new version makes every connection read the schema again.
    let version: i64 = connection.query_row("PRAGMA schema_version", [], |row| row.get(0))?;
    connection.pragma_update(None, "schema_version", version + 1)?;
    connection.pragma_update(None, "writable_schema", false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    edited.map(drop)
}

/// Opens run.db for reading. Half a transaction that a killed writer left is taken back first, but only where no keeper can be
/// writing: locks may not reach the host of a living one, whose transaction would be taken from under it.
///
/// # Errors
/// Returns the error of `SQLite`, or [`NewerStore`].
pub fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite would wait forever for a writer on a pipe.
    if path.exists()
        && let Err(error @ ReadError::Kind(_)) = file::open(path)
    {
        return Err(Error::ToSqlConversionFailure(Box::new(error)));
    }
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    match open_for_reading(path, read_only) {
        Err(error) if needs_rollback(&error) => {
            let deadline = Instant::now() + READER_PATIENCE;
            while path.parent().is_some_and(owners::may_be_written) {
                if Instant::now() >= deadline {
                    let busy = ffi::Error::new(ffi::SQLITE_BUSY);
                    let why = "its keeper is in a transaction, or was killed in one; try again";
                    return Err(Error::SqliteFailure(busy, Some(why.to_owned())));
                }
                thread::sleep(READER_INTERVAL);
                match open_for_reading(path, read_only) {
                    Err(error) if needs_rollback(&error) => {}
                    opened => return opened,
                }
            }
            // SQLite takes it back only for those who may write.
            let any = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = open_for_reading(path, any)?;
            connection.pragma_update(None, "query_only", true)?;
            Ok(connection)
        }
        opened => opened,
    }
}

/// Reports whether a transaction has to be taken back before the store can be read.
fn needs_rollback(error: &Error) -> bool {
    matches!(error, Error::SqliteFailure(code, _) if code.extended_code == ffi::SQLITE_READONLY_ROLLBACK)
}

fn open_for_reading(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(READER_PATIENCE)?;
    check_version(&connection)?;
    bound_reads(&connection)?;
    Ok(connection)
}

/// Checks the pages of a store that may come from elsewhere, before all of it is read: pages that are used twice can make a
/// few kilobytes read as rows without end.
///
/// # Errors
/// Returns the damage that `SQLite` finds, or its error after too long.
pub fn check_foreign(path: &Path, connection: &Connection) -> rusqlite::Result<()> {
    if path.parent().is_some_and(owners::may_be_written) {
        // Its keeper has checked them.
        return Ok(());
    }
    let mebibytes = path.metadata().map_or(0, |about| about.len() >> 20);
    let limit = CHECK_AT_LEAST + CHECK_PER_MEBIBYTE.saturating_mul(u32::try_from(mebibytes).unwrap_or(u32::MAX));
    within(connection, limit, check_pages)
}

/// Reads the structure of every page. In a large store this excludes the curve and the readings, which
/// take longer to read than a start may.
///
/// # Errors
/// Returns the damage that `SQLite` finds.
pub fn check_pages(connection: &Connection) -> rusqlite::Result<()> {
    let count = |pragma| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let bytes = count("PRAGMA page_count")?.saturating_mul(count("PRAGMA page_size")?);
    if bytes <= READ_THROUGH {
        return quick_check(connection, "1");
    }
    // A store of before lacks some.
    let there = |table: &&str| connection.table_exists(None, *table).unwrap_or(true);
    SMALL_TABLES.into_iter().filter(there).try_for_each(|table| quick_check(connection, table))
}

fn quick_check(connection: &Connection, of: &str) -> rusqlite::Result<()> {
    let verdict: String = connection.query_row(&format!("PRAGMA quick_check({of})"), [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(verdict.trim().replace('\n', " "))))
}

/// Returns the schema version of an open store.
///
/// # Errors
/// Returns the error of `SQLite`.
pub fn schema_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn check_version(connection: &Connection) -> rusqlite::Result<i64> {
    let found = schema_version(connection)?;
    if found > VERSION {
        return Err(Error::ToSqlConversionFailure(Box::new(NewerStore { found })));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
