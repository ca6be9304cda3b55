//! Replaces an unreadable store by a new one, and salvages the rows that are still readable.

use super::step_metrics::{are_named, read_names};
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Row, Transaction, params_from_iter};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Salvaged tables, each with its key. The checkpoints on disk hold more than their table, and
/// summaries are computed from steps.
const TABLES: [(&str, &[&str]); 9] = [
    ("facts", &["key"]),
    ("metric_names", &["id"]),
    ("attempts", &["id"]),
    ("steps", &["attempt", "step"]),
    ("evals", &["attempt", "step"]),
    ("layers", &["attempt", "step"]),
    ("samples", &["time_ms"]),
    ("journal", &["id"]),
    ("causes", &["attempt"]),
];

/// Renames a store and its write-ahead log; returns the new path. No part of this process may have the
/// store open: `SQLite` deletes the log by name when it closes.
///
/// # Errors
/// Returns the system's error.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1..).map(|count| if count == 1 { "db.damaged".to_owned() } else { format!("db.damaged-{count}") });
    let mut free = names.map(|end| path.with_extension(end)).filter(|aside| !aside.exists());
    let aside = free.next().ok_or_else(|| io::Error::other("no name is free"))?;
    fs::rename(path, &aside)?;
    let beside = |path: &Path, end: &str| PathBuf::from(format!("{}{end}", path.display()));
    fs::rename(beside(path, "-wal"), beside(&aside, "-wal")).ok();
    fs::remove_file(beside(path, "-shm")).ok();
    Ok(aside)
}

/// Returns the path of a replacement before it takes the place of the store at `path`.
#[must_use]
pub fn draft(path: &Path) -> PathBuf {
    path.with_extension("db.new")
}

/// Removes a store and everything that `SQLite` keeps beside it.
pub fn remove(path: &Path) {
    fs::remove_file(path).ok();
    remove_beside(path);
}

fn remove_beside(path: &Path) {
    for end in ["-wal", "-shm", "-journal"] {
        fs::remove_file(format!("{}{end}", path.display())).ok();
    }
}

/// Completes or abandons a replacement that was cut short. The damaged store is set aside only once its
/// replacement is complete: where the store is missing, the replacement belongs in its place.
pub fn settle(path: &Path) {
    let draft = draft(path);
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if fs::symlink_metadata(path).is_ok() || !is_file(&draft) {
        return remove(&draft);
    }
    // A log left here belongs to the damaged store; the replacement already has its rows.
    remove_beside(path);
    fs::rename(&draft, path).ok();
}

/// Copies every readable row of a damaged store. Returns the number of rows.
///
/// # Errors
/// Returns an error when the new store cannot be written.
pub fn salvage(damaged: &Path, into: &mut Connection) -> rusqlite::Result<usize> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(from) = Connection::open_with_flags(damaged, flags) else { return Ok(0) };
    // The log stays as it is, for whoever looks into the damaged store.
    from.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).ok();
    let transaction = into.transaction()?;
    let (mut saved, mut names) = (0, 0);
    for (table, key) in TABLES {
        // A store of before lacks the newest columns.
        let known = columns(&from, table).unwrap_or_default();
        let mut columns = columns(&transaction, table)?;
        columns.retain(|column| known.is_empty() || known.contains(column));
        // Copying from both ends: a damaged page in the middle hides neither side.
        for order in ["ASC", "DESC"] {
            let order = key.iter().map(|name| format!("{name} {order}")).collect::<Vec<_>>().join(", ");
            saved += copy(&from, &transaction, (table, &columns), &order, names)?;
        }
        if table == "metric_names" {
            names = read_names(&transaction)?.len();
            transaction.execute("DELETE FROM metric_names WHERE id >= ?1", [names as i64])?;
        }
    }
    transaction.commit()?;
    Ok(saved)
}

/// A column: its name and its declared type.
type Column = (String, String);

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    let mut query = connection.prepare("SELECT name, type FROM pragma_table_info(?1)")?;
    query.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Copies rows in this order up to the first unreadable one. The only blobs are the metrics of steps: without
/// all of their `known` names they are left out, for a new name may get the id of a lost one.
fn copy(
    from: &Connection,
    into: &Transaction<'_>,
    (table, columns): (&str, &[Column]),
    order: &str,
    known: usize,
) -> rusqlite::Result<usize> {
    let names = columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let places = vec!["?"; columns.len()].join(", ");
    let mut insert = into.prepare_cached(&format!("INSERT OR IGNORE INTO {table} ({names}) VALUES ({places})"))?;
    let Ok(mut query) = from.prepare(&format!("SELECT {names} FROM {table} ORDER BY {order}")) else { return Ok(0) };
    let Ok(mut rows) = query.query([]) else { return Ok(0) };
    let mut saved = 0;
    while let Ok(Some(row)) = rows.next() {
        if let Some(mut values) = sound(row, columns) {
            for value in &mut values {
                if matches!(value, Value::Blob(bytes) if !are_named(bytes, known)) {
                    *value = Value::Null;
                }
            }
            saved += insert.execute(params_from_iter(values))?;
        }
    }
    Ok(saved)
}

/// Returns the values of a row, if each has its column's type.
fn sound(row: &Row<'_>, columns: &[Column]) -> Option<Vec<Value>> {
    let fits = |value: &Value, declared: &str| {
        matches!(
            (value, declared),
            (Value::Null, _)
                | (Value::Integer(_), "INTEGER" | "REAL")
                | (Value::Real(_), "REAL")
                | (Value::Text(_), "TEXT")
                | (Value::Blob(_), "BLOB")
        )
    };
    let values = columns.iter().enumerate().map(|(at, (_, declared))| {
        let value = row.get::<_, Value>(at).ok()?;
        fits(&value, declared).then_some(value)
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::{draft, salvage, set_aside, settle};
    use crate::protocol::control::StepRow;
    use crate::protocol::metrics::Metrics;
    use crate::store::database::{check_pages, open_reader, open_writer};
    use crate::store::reader::Reader;
    use crate::store::writer::{Batch, Writer};
    use rusqlite::Connection;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    const ROWS: i64 = 2000;

    fn store(path: &Path) -> Connection {
        open_writer(path, Duration::ZERO).unwrap().0
    }

    fn count(connection: &Connection) -> i64 {
        connection.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap()
    }

    /// Creates a store with a long journal, and closes it.
    fn filled(path: &Path) {
        let store = store(path);
        let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                    INSERT INTO journal SELECT i, i, NULL, '\"info\"', '\"run\"', 'a line of the journal' FROM n";
        store.execute(rows, [ROWS]).unwrap();
        store.execute("INSERT INTO facts VALUES ('rung', '1')", []).unwrap();
    }

    #[test]
    fn a_sound_store_is_copied_whole() {
        let place = tempfile::tempdir().unwrap();
        filled(&place.path().join("run.db"));
        let mut new = store(&place.path().join("new.db"));
        assert_eq!(salvage(&place.path().join("run.db"), &mut new).unwrap() as i64, ROWS + 1);
        assert_eq!(count(&new), ROWS);
    }

    /// Creates a store with two metrics in one step, and closes it.
    fn with_metrics(path: &Path) {
        let mut writer = Writer::open(path).unwrap();
        let metrics = Metrics::from([("accuracy".to_owned(), 0.5), ("fid".to_owned(), 12.0)]);
        let row = StepRow { attempt: 1, step: 1, metrics, ..StepRow::default() };
        writer.append(&Batch { steps: vec![row], ..Batch::default() }).unwrap();
    }

    #[test]
    fn metrics_are_kept_with_their_names_and_never_without() {
        for (lost, kept) in [("", 2), ("DELETE FROM metric_names WHERE id = 1", 0), ("DELETE FROM metric_names", 0)] {
            let place = tempfile::tempdir().unwrap();
            let (old, path) = (place.path().join("run.db"), place.path().join("new.db"));
            with_metrics(&old);
            Connection::open(&old).unwrap().execute_batch(lost).unwrap();
            salvage(&old, &mut store(&path)).unwrap();
            let row =
                StepRow { attempt: 1, step: 2, metrics: [("other".to_owned(), 1.0)].into(), ..StepRow::default() };
            Writer::open(&path).unwrap().append(&Batch { steps: vec![row], ..Batch::default() }).unwrap();
            let reader = Reader { connection: open_reader(&path).unwrap() };
            let mut found = Vec::new();
            reader.each_step(|row| found.push(row.metrics)).unwrap();
            assert_eq!((found[0].len(), found[1]["other"].to_bits()), (kept, 1f64.to_bits()), "{lost}");
        }
    }

    #[test]
    fn rows_of_an_older_store_are_salvaged() {
        let place = tempfile::tempdir().unwrap();
        let old = place.path().join("run.db");
        let first = Connection::open(&old).unwrap();
        first.execute_batch(include_str!("../../../../tests/data/schema_1.sql")).unwrap();
        first.execute("INSERT INTO steps VALUES (1, 1, 0, 32, 0, 0.5, 0.001, 1.0, 0, 0.1, 9.0, 1000)", []).unwrap();
        drop(first);
        let mut new = store(&place.path().join("new.db"));
        assert_eq!(salvage(&old, &mut new).unwrap(), 1);
    }

    #[test]
    fn a_damaged_page_costs_no_more_than_its_rows_and_no_junk_comes_along() {
        let place = tempfile::tempdir().unwrap();
        let (old, page) = (place.path().join("run.db"), 4096);
        filled(&old);
        let whole = fs::read(&old).unwrap();
        // The journal's leaves lie at the end of the file.
        let middle = whole.len() / page - 8;
        for junk in [0, 0xaa] {
            let mut bytes = whole.clone();
            bytes[middle * page..(middle + 1) * page].fill(junk);
            fs::write(&old, &bytes).unwrap();
            assert!(check_pages(&Connection::open(&old).unwrap()).is_err(), "{junk}");
            let mut new = store(&place.path().join(format!("new-{junk}.db")));
            salvage(&old, &mut new).unwrap();
            let saved = count(&new);
            assert!((ROWS - 120..ROWS).contains(&saved), "{saved} of {ROWS}");
        }
    }

    #[test]
    fn a_replacement_that_was_cut_short_is_completed_or_abandoned() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run.db");
        filled(&path);
        fs::write(draft(&path), "half of a store").unwrap();
        settle(&path);
        assert!(!draft(&path).exists(), "the store was still in its place");
        assert_eq!(count(&store(&path)), ROWS);
        fs::rename(&path, draft(&path)).unwrap();
        fs::write(place.path().join("run.db-wal"), "log of the damaged store").unwrap();
        settle(&path);
        assert!(!draft(&path).exists() && !place.path().join("run.db-wal").exists());
        assert_eq!(count(&store(&path)), ROWS);
    }

    #[test]
    fn a_second_damaged_store_does_not_replace_the_first() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run.db");
        for wanted in ["run.db.damaged", "run.db.damaged-2"] {
            fs::write(&path, wanted).unwrap();
            fs::write(place.path().join("run.db-wal"), "log").unwrap();
            let aside = set_aside(&path).unwrap();
            assert_eq!(aside, place.path().join(wanted));
            assert!(fs::read_to_string(&aside).unwrap() == wanted && !path.exists());
            assert!(place.path().join(format!("{wanted}-wal")).exists());
        }
    }
}
