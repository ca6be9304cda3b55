//! Trackio's store: SQLite, a row of `metrics` for each call to `log`. The file is read as it is, without a lock that
//! its writer would wait for.

use super::Reading;
use super::error::FileError;
use super::jsonl::{add_object, parse_object};
use super::record::Record;
use crate::untrusted::{database, file};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row};
use std::path::{Path, PathBuf};

/// The first bytes of every SQLite file.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Rows read in one poll.
const MAX_ROWS: usize = 10_000;
/// Bytes of one row's metrics; longer ones hold tables.
const MAX_BYTES: usize = 256 << 10;

/// The place within the rows of the newest run of a file.
#[derive(Debug)]
pub struct Trackio {
    path: PathBuf,
    last: i64,
    run: Option<String>,
}

impl Trackio {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), last: 0, run: None }
    }

    /// Returns the number of the row read last.
    pub fn position(&self) -> u64 {
        self.last.unsigned_abs()
    }

    /// Reads the rows added since the last poll to the newest run.
    pub fn poll(&mut self, out: &mut dyn FnMut(Reading)) -> Result<(), FileError> {
        // Refuses what is not a regular file before SQLite opens it.
        file::open(&self.path).map_err(|source| FileError::Read { path: self.path.clone(), source })?;
        match self.read_rows(out) {
            Err(rusqlite::Error::SqliteFailure(error, _))
                if matches!(error.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) =>
            {
                Ok(())
            }
            Err(source) => Err(FileError::Database { path: self.path.clone(), source: Box::new(source) }),
            Ok(()) => Ok(()),
        }
    }

    fn read_rows(&mut self, out: &mut dyn FnMut(Reading)) -> rusqlite::Result<()> {
        let connection = open(&self.path)?;
        let Some(column) = run_column(&connection)? else { return Ok(()) };
        let newest = connection
            .query_row(&format!("SELECT id, {column} FROM metrics ORDER BY id DESC LIMIT 1"), [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })
            .optional()?;
        let Some((newest, run)) = newest else { return Ok(()) };
        if newest < self.last || self.run.as_ref() != Some(&run) {
            (self.last, self.run) = (0, Some(run.clone()));
        }
        let mut query = connection.prepare(&format!(
            "SELECT id, step, metrics FROM metrics WHERE id > ?1 AND {column} = ?2 AND length(metrics) <= {MAX_BYTES}
             ORDER BY id LIMIT {MAX_ROWS}"
        ))?;
        let mut rows = query.query(rusqlite::params![self.last, run])?;
        while let Some(row) = rows.next()? {
            self.last = row.get(0)?;
            if let Some(reading) = read_row(row) {
                out(reading);
            }
        }
        Ok(())
    }
}

/// Opens a file that may come from anywhere, read-only.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    database::distrust_schema(&connection)?;
    database::bound_reads(&connection)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    Ok(connection)
}

/// Returns the column that names the run: older versions only knew its name. None if there is no such table.
fn run_column(connection: &Connection) -> rusqlite::Result<Option<&'static str>> {
    let mut query = connection.prepare("SELECT name FROM pragma_table_info('metrics')")?;
    let columns: Vec<String> = query.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(["run_id", "run_name"].into_iter().find(|name| columns.iter().any(|column| column == name)))
}

fn read_row(row: &Row<'_>) -> Option<Reading> {
    let step: Option<i64> = row.get(1).ok();
    let (ValueRef::Text(json) | ValueRef::Blob(json)) = row.get_ref(2).ok()? else { return None };
    let mut record = Record::of_step(step.and_then(|step| u64::try_from(step).ok()));
    add_object(&mut record, "", &parse_object(std::str::from_utf8(json).ok()?)?);
    record.finish()
}
