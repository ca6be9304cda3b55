//! The schema of run.db and how it is opened.

use crate::untrusted::file::{self, ReadError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// The version of the schema; counts up when it changes.
const VERSION: i64 = 2;

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

/// Opens run.db for its only writer. The second value is false where the file system cannot carry
/// a write-ahead log (WSL's /mnt/c, for one) and a rollback journal is used instead.
///
/// # Errors
/// `SQLite`'s words, or that the file is of a newer version.
pub fn open_writer(path: &Path) -> rusqlite::Result<(Connection, bool)> {
    let connection = Connection::open(path)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    let logged = mode.eq_ignore_ascii_case("wal");
    if !logged {
        connection.query_row("PRAGMA journal_mode = TRUNCATE", [], |_| Ok(()))?;
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let found = check_version(&connection)?;
    connection.execute_batch(SCHEMA)?;
    if found == 1 {
        connection.execute_batch("ALTER TABLE checkpoints ADD COLUMN proven INTEGER NOT NULL DEFAULT 0")?;
    }
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok((connection, logged))
}

/// Opens run.db for reading.
///
/// # Errors
/// `SQLite`'s words, or that the file is of a newer version.
pub fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite would wait for ever for somebody to write into a pipe.
    if path.exists()
        && let Err(error @ ReadError::Kind(_)) = file::open(path)
    {
        return Err(rusqlite::Error::ToSqlConversionFailure(Box::new(error)));
    }
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    distrust_schema(&connection)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    check_version(&connection)?;
    Ok(connection)
}

/// A store may come from elsewhere: its schema gets to run nothing. Ours has tables and indices only.
fn distrust_schema(connection: &Connection) -> rusqlite::Result<()> {
    let switches = [
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ];
    for (switch, on) in switches {
        connection.set_db_config(switch, on)?;
    }
    Ok(())
}

fn check_version(connection: &Connection) -> rusqlite::Result<i64> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        let words = format!("run.db was written by a newer downshift (schema {version}, this one knows {VERSION})");
        return Err(rusqlite::Error::ToSqlConversionFailure(words.into()));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::{open_reader, open_writer};
    use rusqlite::Connection;

    #[test]
    fn the_schema_of_a_store_from_elsewhere_runs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let planted = "DROP TABLE journal; CREATE VIEW journal AS
             WITH RECURSIVE endless(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM endless) SELECT id FROM endless;
             CREATE TABLE marks (mark TEXT);
             CREATE TRIGGER on_fact AFTER INSERT ON facts BEGIN INSERT INTO marks VALUES ('ran'); END;";
        drop(open_writer(&path).unwrap());
        Connection::open(&path).unwrap().execute_batch(planted).unwrap();
        let reader = open_reader(&path).unwrap();
        let first = reader.query_row("SELECT id FROM journal", [], |row| row.get::<_, i64>(0));
        assert!(first.is_err(), "the view was read: {first:?}");
        Connection::open(&path).unwrap().execute_batch("DROP VIEW journal").unwrap();
        let (writer, _) = open_writer(&path).unwrap();
        writer.execute("INSERT INTO facts VALUES ('a', '1')", []).unwrap();
        let marks: i64 = writer.query_row("SELECT count(*) FROM marks", [], |row| row.get(0)).unwrap();
        assert_eq!(marks, 0, "the trigger ran");
    }
}
