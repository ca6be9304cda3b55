//! SQLite files that may come from elsewhere.

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, ffi};
use std::time::{Duration, Instant};

/// Longest text or row that is read. The status of a run with thousands of ranks has a megabyte.
const LONGEST: i32 = 16 << 20;
/// Most bytes of text that one query may keep in memory.
const MOST_TEXT: usize = 128 << 20;
/// Instructions of `SQLite` between two looks at the clock.
const LOOK: i32 = 100_000;

/// Keeps the schema of a store, which may come from elsewhere, from running code: what we read has only tables and
/// indices.
///
/// # Errors
/// Returns an error when `SQLite` refuses a setting.
pub fn distrust_schema(connection: &Connection) -> rusqlite::Result<()> {
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

/// Bounds the length of all that a reader takes from a store, and refuses a schema with more than tables, indices and plain
/// columns: a column that is computed when it is read may take for ever.
///
/// # Errors
/// Returns an error when the schema has something else, or `SQLite` fails.
pub fn bound_reads(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    let first = |query: &str| -> rusqlite::Result<Option<String>> {
        let mut query = connection.prepare(query)?;
        let mut rows = query.query([])?;
        rows.next()?.map(|row| row.get(0)).transpose()
    };
    // Views, triggers and virtual tables have no pages.
    let strange = "SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR rootpage <= 0 LIMIT 1";
    if let Some(name) = first(strange)? {
        return Err(damaged(format!("its schema has `{name}`, which is no plain table")));
    }
    let computed = "SELECT tables.name || '.' || columns.name FROM sqlite_schema AS tables
         JOIN pragma_table_xinfo(tables.name) AS columns WHERE tables.type = 'table' AND columns.hidden <> 0 LIMIT 1";
    match first(computed)? {
        Some(name) => Err(damaged(format!("its column `{name}` is computed"))),
        None => Ok(()),
    }
}

/// Does something with a connection, and interrupts it after a limit.
///
/// # Errors
/// Returns the error of `SQLite`, also of the interruption.
pub fn within<T>(
    connection: &Connection,
    limit: Duration,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let began = Instant::now();
    connection.progress_handler(LOOK, Some(move || began.elapsed() > limit))?;
    let done = work(connection);
    connection.progress_handler(0, None::<fn() -> bool>)?;
    done
}

/// Returns the error of a store that is damaged in this way.
#[must_use]
pub fn damaged(why: String) -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(why))
}

/// The memory that the rows of one query may take.
#[derive(Debug, Default)]
pub struct TextBudget(usize);

impl TextBudget {
    /// Counts the text of a row.
    ///
    /// # Errors
    /// Returns an error when all rows together have too much.
    pub fn spend(&mut self, text: &str) -> rusqlite::Result<()> {
        self.0 += text.len();
        if self.0 <= MOST_TEXT {
            return Ok(());
        }
        let error = ffi::Error::new(ffi::SQLITE_TOOBIG);
        Err(Error::SqliteFailure(error, Some("a table has more text than any run writes".to_owned())))
    }
}
