//! How what is remembered reaches the store. A store that refuses keeps everything for the next try; a
//! damaged one makes room for a new one.

use super::{Recorder, now_ms};
use crate::keeper::takeover;
use crate::protocol::control::{CheckpointRow, JournalKind};
use crate::protocol::worker::Level;
use crate::store::database::is_damage;
use crate::store::reserve;
use crate::store::run_dir::RunDir;
use crate::store::writer::{AttemptRow, Batch, Replaced, Writer};
use rusqlite::Result;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The keeper waits no longer than this for a store that another process has locked: meanwhile it hears
/// nothing of its worker.
const LOCKED: Duration = Duration::from_millis(20);

/// A damaged store is replaced at most once in this time.
const REPLACED_AGAIN: Duration = Duration::from_mins(1);
/// How long a keeper that ends waits for a locked store.
const LAST_WORDS: Duration = Duration::from_secs(30);

impl Recorder {
    /// Sets a fact; [`Recorder::persist`] writes it.
    pub fn put_fact<T: Serialize>(&mut self, key: &str, value: &T) {
        self.batch.put_fact(key, value);
    }

    pub(super) fn put_attempt(&mut self) {
        self.batch.attempts.insert(self.row.id, self.row.clone());
    }

    /// Writes the row of a new attempt to the disk, and everything that came before it: the rung and the
    /// budget that it starts with.
    pub(super) fn record_attempt(&mut self, rung: usize, rung_name: &str, reason: &str) -> Result<u64> {
        let id = self.reading(Writer::next_attempt)?.max(self.attempt.id + 1);
        let (rung_name, reason) = (rung_name.to_owned(), reason.to_owned());
        let row = AttemptRow { id, rung, rung_name, reason, started_ms: now_ms(), ..AttemptRow::default() };
        self.batch.attempts.insert(id, row.clone());
        if let Err(error) = self.write(Writer::append_durably) {
            self.batch.attempts.remove(&id);
            self.refused(&error);
            return Err(error);
        }
        self.written();
        self.row = row;
        Ok(id)
    }

    /// Writes at once what has come since the last call, unless the store refuses at the moment: then
    /// the next [`Recorder::flush`] tries.
    pub fn persist(&mut self) {
        if !self.store_failing {
            self.flush();
        }
    }

    /// Writes what has come since the last call; what the store refuses stays for the next one.
    pub fn flush(&mut self) {
        match self.try_flush() {
            Ok(()) => self.written(),
            Err(error) => self.refused(&error),
        }
    }

    /// The same, for those who have no next time.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn try_flush(&mut self) -> Result<()> {
        if self.dirty {
            let unplanned = self.planned.settle(Path::new(&self.status.run_dir), &mut self.status.rungs);
            if let Some(text) = unplanned {
                self.note(Level::Info, JournalKind::Note, text);
            }
            self.status.passage = self.passage.as_ref().map(|passage| passage.shown().clone());
            self.batch.put_fact("status", &self.status);
            self.dirty = false;
        }
        self.write(Writer::append)
    }

    /// Writes how the run ended. On a full disk the reserve makes room for it, and rows of the curve that
    /// do not fit are given up.
    pub fn flush_last_words(&mut self, run: &RunDir) {
        if self.store_failing {
            reserve::release(run);
            self.store.wait_at_most(LAST_WORDS).ok();
            self.flush();
            if self.store_failing {
                let text = format!("{} rows of the curve could not be written", self.batch.steps.len());
                self.note(Level::Error, JournalKind::Health, text);
                (self.batch.steps, self.batch.evals, self.batch.samples) = Default::default();
                self.flush();
            }
            // That it works again.
            self.flush();
        }
        reserve::release(run);
    }

    fn written(&mut self) {
        self.facts.append(&mut self.batch.facts);
        self.batch = Batch::default();
        if std::mem::take(&mut self.store_failing) {
            let text = "run.db is written again".to_owned();
            self.note(Level::Info, JournalKind::Health, text);
        }
    }

    fn refused(&mut self, error: &rusqlite::Error) {
        if std::mem::replace(&mut self.store_failing, true) {
            self.batch.samples.clear();
            return;
        }
        let text = format!("run.db cannot be written: {error}; training goes on, rows are kept for the next try");
        self.note(Level::Error, JournalKind::Health, text);
    }

    fn write(&mut self, write: impl Fn(&mut Writer, &Batch) -> Result<()>) -> Result<()> {
        match write(&mut self.store, &self.batch) {
            Err(error) if is_damage(&error) && self.may_start_over() => {
                self.start_over(&error)?;
                write(&mut self.store, &self.batch)
            }
            written => written,
        }
    }

    /// Reads from the store, or from its successor where it turns out to be damaged.
    pub(super) fn reading<T>(&mut self, read: impl Fn(&mut Writer) -> Result<T>) -> Result<T> {
        match read(&mut self.store) {
            Err(error) if is_damage(&error) && self.may_start_over() => {
                self.start_over(&error)?;
                read(&mut self.store)
            }
            result => result,
        }
    }

    /// On a disk that damages every file, damaged stores must not pile up.
    fn may_start_over(&self) -> bool {
        self.replaced.is_none_or(|at| at.elapsed() >= REPLACED_AGAIN)
    }

    /// Goes on with a new store in place of a damaged one. Everything that is remembered goes there with
    /// the next batch, also if the new store cannot be made yet.
    fn start_over(&mut self, why: &rusqlite::Error) -> Result<()> {
        self.batch.checkpoints.extend(self.checkpoints.iter().map(|row| (row.step, row.clone())));
        if self.row.id > 0 {
            self.put_attempt();
        }
        for (key, value) in self.facts.clone() {
            self.batch.facts.entry(key).or_insert(value);
        }
        (self.refill, self.replaced) = (true, Some(Instant::now()));
        let replaced = self.store.replace(why)?;
        self.note(Level::Error, JournalKind::Health, told(&replaced));
        if let Ok(run) = RunDir::open(Path::new(&self.status.run_dir)) {
            takeover::import_rows(&run, &mut self.store)?;
        }
        Ok(())
    }

    /// Takes over what workers saved that could not say so. Returns how many checkpoints there were.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn import_checkpoints(&mut self, run: &RunDir) -> Result<usize> {
        let imported = self.reading(|store| takeover::import_checkpoints(run, store))?;
        self.checkpoints = self.reading(Writer::checkpoints)?;
        self.mark_best();
        self.status.durable_step = self.checkpoints.iter().filter(|row| row.kept).map(|row| row.step).max();
        self.dirty = true;
        Ok(imported)
    }

    /// After a loss of the store: the rows that a new checkpoint holds.
    pub(super) fn refill_from(&mut self, row: &CheckpointRow) {
        if !self.refill {
            return;
        }
        let path = Path::new(&self.status.run_dir).join(&row.path);
        let rows = takeover::rows_of(&path);
        self.refill = rows.is_none();
        let rows = rows.unwrap_or_default();
        // Rows of before come first, as they were taken.
        self.batch.steps.splice(0..0, rows.steps);
        self.batch.evals.splice(0..0, rows.evals);
    }

    /// From now on nothing waits for a store that another process has locked.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn stop_waiting(&mut self) -> Result<()> {
        self.store.wait_at_most(LOCKED)
    }

    /// Seconds that workers of this run have lived.
    pub fn lived_s(&mut self) -> f64 {
        self.reading(Writer::lived_s).unwrap_or(0.0)
    }
}

/// A sentence about a store that was replaced.
pub fn told(replaced: &Replaced) -> String {
    let why = &replaced.why;
    let aside =
        replaced.aside.as_ref().map_or_else(String::new, |path| format!(" and was set aside as {}", path.display()));
    format!(
        "run.db was damaged ({why}){aside}; {} rows of it could be read and were kept, checkpoints give back what they hold",
        replaced.saved
    )
}
