//! The schema of run.db, and how to open it.

use crate::untrusted::database::distrust_schema;
use crate::untrusted::file::{self, ReadError};
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, ffi};
use std::path::Path;
use std::time::Duration;

/// Schema version; incremented when the schema changes.
const VERSION: i64 = 2;

/// Largest store that is checked in full (3 million steps, 4 s).
const READ_THROUGH: i64 = 256 << 20;
/// Tables that stay small for a run of any length.
const SMALL_TABLES: [&str; 6] = ["facts", "attempts", "evals", "journal", "causes", "checkpoints"];

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
    loss         REAL,                  -- NULL where skipped
    lr           REAL NOT NULL,
    grad_norm    REAL,
    skipped      INTEGER NOT NULL,
    data_wait_ms REAL NOT NULL,
    compute_ms   REAL NOT NULL,
    time_ms      INTEGER NOT NULL,
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
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
    proven    INTEGER NOT NULL DEFAULT 0
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

/// Opens run.db for its only writer. The second value is false when the file system does not support a
/// write-ahead log (such as WSL's /mnt/c), and a rollback journal is used instead.
///
/// # Errors
/// Returns the error of `SQLite`, or [`NewerStore`].
pub fn open_writer(path: &Path, patience: Duration) -> rusqlite::Result<(Connection, bool)> {
    let connection = Connection::open(path)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(patience)?;
    // Check the version first: a newer store must stay unchanged.
    let found = check_version(&connection)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    let logged = mode.eq_ignore_ascii_case("wal");
    if !logged {
        connection.query_row("PRAGMA journal_mode = TRUNCATE", [], |_| Ok(()))?;
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.execute_batch(SCHEMA)?;
    if found == 1 {
        connection.execute_batch("ALTER TABLE checkpoints ADD COLUMN proven INTEGER NOT NULL DEFAULT 0")?;
    }
    if found != VERSION {
        connection.pragma_update(None, "user_version", VERSION)?;
    }
    Ok((connection, logged))
}

/// Opens run.db for reading.
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
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    check_version(&connection)?;
    Ok(connection)
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
    SMALL_TABLES.iter().try_for_each(|table| quick_check(connection, table))
}

fn quick_check(connection: &Connection, of: &str) -> rusqlite::Result<()> {
    let verdict: String = connection.query_row(&format!("PRAGMA quick_check({of})"), [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(verdict.trim().replace('\n', " "))))
}

fn check_version(connection: &Connection) -> rusqlite::Result<i64> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found > VERSION {
        return Err(Error::ToSqlConversionFailure(Box::new(NewerStore { found })));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{open_reader, open_writer};
    use rusqlite::Connection;
    use std::time::Duration;

    #[test]
    fn the_schema_of_a_store_from_elsewhere_runs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let planted = "DROP TABLE journal; CREATE VIEW journal AS
             WITH RECURSIVE endless(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM endless) SELECT id FROM endless;
             CREATE TABLE marks (mark TEXT);
             CREATE TRIGGER on_fact AFTER INSERT ON facts BEGIN INSERT INTO marks VALUES ('ran'); END;";
        drop(open_writer(&path, Duration::ZERO).unwrap());
        Connection::open(&path).unwrap().execute_batch(planted).unwrap();
        let reader = open_reader(&path).unwrap();
        let first = reader.query_row("SELECT id FROM journal", [], |row| row.get::<_, i64>(0));
        assert!(first.is_err(), "the view was read: {first:?}");
        Connection::open(&path).unwrap().execute_batch("DROP VIEW journal").unwrap();
        let (writer, _) = open_writer(&path, Duration::ZERO).unwrap();
        writer.execute("INSERT INTO facts VALUES ('a', '1')", []).unwrap();
        let marks: i64 = writer.query_row("SELECT count(*) FROM marks", [], |row| row.get(0)).unwrap();
        assert_eq!(marks, 0, "the trigger ran");
    }
}
