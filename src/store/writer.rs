//! The keeper's hand on run.db.

use super::curve::sum_up;
use super::database::open_writer;
use super::summary::BLOCK;
use crate::protocol::cause::Cause;
use crate::protocol::control::{CheckpointRow, EvalRow, JournalRow, SampleRow, StepRow};
use rusqlite::{Connection, ErrorCode, params};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Writes the store. One per run: the keeper's.
pub struct Writer {
    connection: Connection,
    /// Blocks of an attempt that have gained rows since they were summed up.
    open: BTreeSet<(u64, u64)>,
}

/// An attempt that is about to begin.
pub struct NewAttempt<'a> {
    /// Its rung.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: &'a str,
    /// Why it is started: a sentence.
    pub reason: &'a str,
    /// When.
    pub started_ms: i64,
}

impl Writer {
    /// Opens or makes run.db. The second value is false where it cannot have a write-ahead log.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn open(path: &Path) -> rusqlite::Result<(Self, bool)> {
        let (connection, logged) = open_writer(path)?;
        Ok((Self { connection, open: BTreeSet::new() }, logged))
    }

    /// The same; a file that is no database (any more) is set aside first. The third value is where it
    /// lies then, and what was wrong with it.
    ///
    /// # Errors
    /// `SQLite`'s words for anything else.
    pub fn open_or_replace(path: &Path) -> rusqlite::Result<(Self, bool, Option<String>)> {
        let error = match Self::open(path) {
            Ok((writer, logged)) => return Ok((writer, logged, None)),
            Err(error) => error,
        };
        let damaged = [ErrorCode::NotADatabase, ErrorCode::DatabaseCorrupt];
        let aside = path.with_extension("db.damaged");
        if !error.sqlite_error_code().is_some_and(|code| damaged.contains(&code)) || fs::rename(path, &aside).is_err() {
            return Err(error);
        }
        for end in ["-wal", "-shm"] {
            fs::remove_file(path.with_extension(format!("db{end}"))).ok();
        }
        let (writer, logged) = Self::open(path)?;
        let text = format!(
            "run.db could not be read ({error}) and was set aside as {}; of the curve there is what checkpoints hold, \
             the journal begins here",
            aside.display()
        );
        Ok((writer, logged, Some(text)))
    }

    /// Records an attempt **before** its worker is started, flushed to the disk: whatever happens
    /// next, the start has been counted. Returns its number.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn begin_attempt(&mut self, attempt: &NewAttempt<'_>) -> rusqlite::Result<u64> {
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let inserted = self.connection.execute(
            "INSERT INTO attempts (rung, rung_name, reason, started_ms) VALUES (?1, ?2, ?3, ?4)",
            params![attempt.rung as i64, attempt.rung_name, attempt.reason, attempt.started_ms],
        );
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        inserted?;
        Ok(self.connection.last_insert_rowid().unsigned_abs())
    }

    /// Notes the process of an attempt.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn attempt_started(&mut self, id: u64, pid: Option<u32>) -> rusqlite::Result<()> {
        self.connection.execute("UPDATE attempts SET pid = ?2 WHERE id = ?1", params![id as i64, pid])?;
        Ok(())
    }

    /// Notes the step an attempt went on from.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn attempt_resumed(&mut self, id: u64, from_step: Option<u64>) -> rusqlite::Result<()> {
        let from = from_step.map(|step| step as i64);
        self.connection.execute("UPDATE attempts SET from_step = ?2 WHERE id = ?1", params![id as i64, from])?;
        Ok(())
    }

    /// Notes how an attempt ended.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn end_attempt(&mut self, id: u64, ended_ms: i64, outcome: &str) -> rusqlite::Result<()> {
        self.connection.execute(
            "UPDATE attempts SET ended_ms = ?2, outcome = ?3 WHERE id = ?1",
            params![id as i64, ended_ms, outcome],
        )?;
        Ok(())
    }

    /// Notes why an attempt ended.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn put_cause(&mut self, attempt: u64, cause: &Cause) -> rusqlite::Result<()> {
        self.connection.execute(
            "INSERT OR REPLACE INTO causes VALUES (?1, ?2, ?3)",
            params![attempt as i64, cause.class.word(), json(cause)],
        )?;
        Ok(())
    }

    /// Seconds that workers of this run have lived, all attempts together whose end was seen.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn lived_s(&self) -> rusqlite::Result<f64> {
        let lived =
            "SELECT coalesce(sum(max(ended_ms - started_ms, 0)), 0) / 1000.0 FROM attempts WHERE ended_ms IS NOT NULL";
        self.connection.query_row(lived, [], |row| row.get(0))
    }

    /// Writes rows that came since the last call, in one transaction. Rows that are known already
    /// are left as they are.
    ///
    /// # Errors
    /// `SQLite`'s words; then nothing of the batch is written.
    pub fn append(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        {
            let mut step = transaction.prepare_cached(
                "INSERT OR IGNORE INTO steps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?;
            for row in &batch.steps {
                step.execute(params![
                    row.attempt as i64,
                    row.step as i64,
                    row.rung as i64,
                    row.samples as i64,
                    row.epoch as i64,
                    row.loss,
                    row.lr,
                    row.grad_norm,
                    row.skipped,
                    row.data_wait_ms,
                    row.compute_ms,
                    row.time_ms
                ])?;
            }
            let mut eval = transaction.prepare_cached("INSERT OR IGNORE INTO evals VALUES (?1, ?2, ?3, ?4)")?;
            for row in &batch.evals {
                eval.execute(params![row.attempt as i64, row.eval.step as i64, row.time_ms, json(&row.eval)])?;
            }
            let mut sample = transaction.prepare_cached("INSERT OR REPLACE INTO samples VALUES (?1, ?2)")?;
            for row in &batch.samples {
                sample.execute(params![row.time_ms, json(&row.reading)])?;
            }
            let mut line =
                transaction.prepare_cached("INSERT OR IGNORE INTO journal VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            for row in &batch.journal {
                let step = row.step.map(|step| step as i64);
                line.execute(params![row.id, row.time_ms, step, json(&row.level), json(&row.kind), row.text])?;
            }
        }
        self.open.extend(batch.steps.iter().map(|row| (row.attempt, row.step / BLOCK)));
        // The newest block goes on growing; it is summed up when the run has left it.
        while self.open.len() > 1 {
            if let Some((attempt, block)) = self.open.pop_first() {
                sum_up(&transaction, attempt, block)?;
            }
        }
        transaction.commit()
    }

    /// Writes or rewrites what is known of a checkpoint.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn put_checkpoint(&mut self, row: &CheckpointRow) -> rusqlite::Result<()> {
        self.connection.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                row.step as i64,
                row.samples as i64,
                row.path,
                row.bytes as i64,
                row.time_ms,
                row.pause_ms,
                row.total_ms,
                row.eval_loss,
                row.best,
                row.kept,
                row.proven
            ],
        )?;
        Ok(())
    }

    /// All checkpoints that ever were, oldest first.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn checkpoints(&self) -> rusqlite::Result<Vec<CheckpointRow>> {
        super::reader::checkpoints(&self.connection)
    }

    /// Steps that were taken, not skipped, beyond `after` and up to `until`; redone ones once.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn clean_steps(&self, after: u64, until: u64) -> rusqlite::Result<u64> {
        let count: i64 = self.connection.query_row(
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
        self.connection.execute("INSERT OR REPLACE INTO facts VALUES (?1, ?2)", params![key, json(value)])?;
        Ok(())
    }

    /// Reads a fact.
    pub fn fact<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        super::reader::fact(&self.connection, key)
    }

    /// The number of the last line of the journal.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn last_journal_id(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("SELECT coalesce(max(id), 0) FROM journal", [], |row| row.get(0))
    }
}

/// Rows on their way to the store.
#[derive(Debug, Default)]
pub struct Batch {
    /// Optimizer steps.
    pub steps: Vec<StepRow>,
    /// Evaluations.
    pub evals: Vec<EvalRow>,
    /// Readings of the probe.
    pub samples: Vec<SampleRow>,
    /// Lines of the journal.
    pub journal: Vec<JournalRow>,
}

impl Batch {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evals.is_empty() && self.samples.is_empty() && self.journal.is_empty()
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
