//! The keeper's hand on run.db.

pub use super::batch::{AttemptRow, Batch};
use super::curve::sum_up;
use super::damaged;
use super::database::{check_pages, is_damage, open_writer};
use super::reader;
use super::summary::BLOCK;
use crate::protocol::control::CheckpointRow;
use rusqlite::{Connection, params};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A store that another process has locked is waited for this long, unless the owner has no time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes the store. One per run: the keeper's.
pub struct Writer {
    path: PathBuf,
    /// None between a damaged store and its successor.
    connection: Option<Connection>,
    patience: Duration,
    logged: bool,
    /// Blocks of an attempt that have gained rows since they were summed up.
    open: BTreeSet<(u64, u64)>,
}

/// A damaged store was replaced.
#[derive(Debug)]
pub struct Replaced {
    /// Where the damaged one lies; none where it was gone.
    pub aside: Option<PathBuf>,
    /// What was wrong with it.
    pub why: String,
    /// Rows of it that could still be read.
    pub saved: usize,
}

impl Writer {
    /// Opens or makes run.db.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        let (connection, logged) = open_writer(path, PATIENCE)?;
        let open = BTreeSet::new();
        Ok(Self { path: path.to_owned(), connection: Some(connection), patience: PATIENCE, logged, open })
    }

    /// The same for a store that a run is to go on with: it is read through first, and where it is
    /// damaged it makes room for a new one.
    ///
    /// # Errors
    /// `SQLite`'s words for anything but damage.
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
                let open = BTreeSet::new();
                let mut writer =
                    Self { path: path.to_owned(), connection: None, patience: PATIENCE, logged: false, open };
                let replaced = writer.replace(&error)?;
                Ok((writer, Some(replaced)))
            }
            Err(error) => Err(error),
        }
    }

    /// Sets the damaged store aside and goes on with a new one, which takes over every row that can
    /// still be read.
    ///
    /// # Errors
    /// When that cannot be done now; the next use of this writer makes a new store.
    pub fn replace(&mut self, why: &rusqlite::Error) -> rusqlite::Result<Replaced> {
        self.connection = None;
        self.open.clear();
        let why = why.to_string();
        let aside = damaged::set_aside(&self.path).ok();
        let connection = self.connection()?;
        let saved = aside.as_ref().map(|aside| damaged::salvage(aside, connection)).transpose()?.unwrap_or(0);
        Ok(Replaced { aside, why, saved })
    }

    /// Whether the file system carries a write-ahead log.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.logged
    }

    /// From now on another process's lock is waited for no longer than this.
    ///
    /// # Errors
    /// `SQLite`'s words.
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

    /// The number of the next attempt: above every attempt that any row knows of, so that after the loss
    /// of run.db nothing new hides behind rows that checkpoints brought back.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn next_attempt(&mut self) -> rusqlite::Result<u64> {
        let newest = "SELECT max((SELECT coalesce(max(id), 0) FROM attempts),
                                 (SELECT coalesce(max(attempt), 0) FROM steps),
                                 (SELECT coalesce(max(attempt), 0) FROM evals))";
        let newest: i64 = self.connection()?.query_row(newest, [], |row| row.get(0))?;
        Ok(newest.unsigned_abs() + 1)
    }

    /// Seconds that workers of this run have lived, all attempts together whose end was seen.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn lived_s(&mut self) -> rusqlite::Result<f64> {
        let lived =
            "SELECT coalesce(sum(max(ended_ms - started_ms, 0)), 0) / 1000.0 FROM attempts WHERE ended_ms IS NOT NULL";
        self.connection()?.query_row(lived, [], |row| row.get(0))
    }

    /// Writes what has come since the last call, in one transaction.
    ///
    /// # Errors
    /// `SQLite`'s words; then nothing of the batch is written.
    pub fn append(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.connection()?;
        let (Some(connection), open) = (&mut self.connection, &mut self.open) else { return Ok(()) };
        let transaction = connection.transaction()?;
        batch.write(&transaction)?;
        open.extend(batch.steps.iter().map(|row| (row.attempt, row.step / BLOCK)));
        // The newest block goes on growing; it is summed up when the run has left it.
        while open.len() > 1 {
            if let Some((attempt, block)) = open.pop_first() {
                sum_up(&transaction, attempt, block)?;
            }
        }
        transaction.commit()
    }

    /// The same, flushed to the disk when this returns.
    ///
    /// # Errors
    /// `SQLite`'s words; then nothing of the batch is written.
    pub fn append_durably(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        self.connection()?.pragma_update(None, "synchronous", "FULL")?;
        let written = self.append(batch);
        self.connection()?.pragma_update(None, "synchronous", "NORMAL")?;
        written
    }

    /// All checkpoints that ever were, oldest first.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn checkpoints(&mut self) -> rusqlite::Result<Vec<CheckpointRow>> {
        reader::checkpoints(self.connection()?)
    }

    /// Steps that were taken, not skipped, beyond `after` and up to `until`; redone ones once.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn clean_steps(&mut self, after: u64, until: u64) -> rusqlite::Result<u64> {
        let count: i64 = self.connection()?.query_row(
            "SELECT count(DISTINCT step) FROM steps WHERE skipped = 0 AND step > ?1 AND step <= ?2",
            params![after as i64, until as i64],
            |row| row.get(0),
        )?;
        Ok(count.unsigned_abs())
    }

    /// Writes a fact: a small value under a name.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn put_fact<T: Serialize>(&mut self, key: &str, value: &T) -> rusqlite::Result<()> {
        let mut batch = Batch::default();
        batch.put_fact(key, value);
        self.append(&batch)
    }

    /// A fact, if it is there and can be read.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn fact<T: DeserializeOwned>(&mut self, key: &str) -> rusqlite::Result<Option<T>> {
        reader::fact(self.connection()?, key)
    }

    /// Every fact: JSON by name.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn facts(&mut self) -> rusqlite::Result<BTreeMap<String, String>> {
        let mut query = self.connection()?.prepare("SELECT key, value FROM facts")?;
        query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// The number of the last line of the journal.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn last_journal_id(&mut self) -> rusqlite::Result<i64> {
        self.connection()?.query_row("SELECT coalesce(max(id), 0) FROM journal", [], |row| row.get(0))
    }
}
