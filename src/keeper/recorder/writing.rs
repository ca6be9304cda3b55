//! Writes recorded rows to the store. When the store refuses, everything is kept for the next try; a
//! damaged store is replaced by a new one.

use super::{Recorder, now_ms};
use crate::format::counted;
use crate::keeper::attempt::Attempt;
use crate::keeper::takeover::{self, Imported};
use crate::protocol::control::{CheckpointRow, JournalKind, Update};
use crate::protocol::worker::Level;
use crate::store::database::{WITH_LOG, WITHOUT_LOG, is_damage};
use crate::store::reserve;
use crate::store::run_dir::RunDir;
use crate::store::writer::{AttemptRow, Batch, Replaced, Writer};
use rusqlite::Result;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the fact that holds the attempt of a command, for the next keeper.
const OPEN_ATTEMPT: &str = "open_attempt";

/// Minimum interval between replacements of a damaged store.
const REPLACED_AGAIN: Duration = Duration::from_mins(1);
/// How long an ending keeper waits for a locked store.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// The store's condition.
#[derive(Debug, Default)]
pub(super) struct StoreTrouble {
    /// It refuses writes; reported once until it works again.
    pub(super) is_failing: bool,
    /// Why it refused the last write.
    why: String,
    /// When a damaged store was last replaced.
    pub(super) replaced: Option<Instant>,
    /// It was replaced: the next checkpoint restores rows that it lost.
    pub(super) refill: bool,
}

impl Recorder {
    /// Sets a fact; [`Recorder::persist`] writes it.
    pub fn put_fact<T: Serialize>(&mut self, key: &str, value: &T) {
        self.batch.put_fact(key, value);
    }

    pub(super) fn put_attempt(&mut self) {
        self.batch.attempts.insert(self.row.id, self.row.clone());
    }

    /// Writes the row of a new attempt to disk, along with everything before it: the rung and budget it starts with.
    pub(super) fn record_attempt(&mut self, rung: usize, rung_name: &str, reason: &str) -> Result<u64> {
        let id = self.read_store(Writer::next_attempt)?.max(self.attempt.id + 1);
        let (rung_name, reason) = (rung_name.to_owned(), reason.to_owned());
        let row = AttemptRow { id, rung, rung_name, reason, started_ms: now_ms(), ..AttemptRow::default() };
        self.batch.attempts.insert(id, row.clone());
        if let Err(error) = self.write(Writer::append_durably) {
            self.batch.attempts.remove(&id);
            self.note_refusal(&error);
            return Err(error);
        }
        self.note_written();
        self.row = row;
        Ok(id)
    }

    /// Stores what another keeper needs to continue with the current attempt: its row, and where its part of
    /// worker.log begins.
    pub fn keep_attempt(&mut self, log_begins: u64) {
        self.batch.put_fact(OPEN_ATTEMPT, &(&self.row, log_begins));
    }

    /// Continues with the attempt that an earlier keeper began. Returns its rung and where its part of worker.log
    /// begins; none if it was another attempt.
    pub fn continue_attempt(&mut self, id: u64) -> Option<(usize, u64)> {
        let stored = self.read_store(|store| store.fact::<(AttemptRow, u64)>(OPEN_ATTEMPT)).ok().flatten();
        let (mut row, log_begins) = stored.filter(|(row, _)| row.id == id)?;
        // The worker introduced itself after the row was kept.
        row.from_step = self.read_store(|store| store.began_from(id)).ok().flatten().or(row.from_step);
        let rung = row.rung;
        self.attempt = Attempt::new(id, rung).begun_at(now_ms());
        self.status.rung = rung;
        self.status.rung_name.clone_from(&row.rung_name);
        self.status.pid_worker = row.pid;
        self.continued = Some((self.status.step, self.status.samples));
        self.row = row;
        self.recall_evals(id);
        Some((rung, log_begins))
    }

    /// Reports whether the end of an attempt is not recorded.
    pub fn is_open(&mut self, attempt: u64) -> bool {
        self.read_store(|store| store.is_open(attempt)).unwrap_or(false)
    }

    /// Lets the attempt begin where the run is: its command trained on meanwhile.
    pub fn keep_place(&mut self) {
        self.continued = Some((self.status.step, self.status.samples));
    }

    /// Reports whether the attempt was taken over, and its worker has not introduced itself again.
    pub fn is_continued(&self) -> bool {
        self.continued.is_some()
    }

    /// Writes everything new immediately, unless the store currently refuses; then the next
    /// [`Recorder::flush`] tries again.
    pub fn persist(&mut self) {
        if !self.trouble.is_failing {
            self.flush();
        }
    }

    /// Reports whether the store takes rows; tries again if it has refused them.
    pub fn is_writable(&mut self) -> bool {
        if self.trouble.is_failing {
            self.flush();
        }
        !self.trouble.is_failing
    }

    /// Writes everything new; rows that the store refuses stay for the next call.
    pub fn flush(&mut self) {
        match self.try_flush() {
            Ok(()) => self.note_written(),
            Err(error) => self.note_refusal(&error),
        }
    }

    /// Writes everything new, for callers that cannot try again later.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn try_flush(&mut self) -> Result<()> {
        if self.dirty {
            let unplanned = self.planned.settle(Path::new(&self.status.run_dir), &mut self.status.rungs);
            if let Some(text) = unplanned {
                self.note(Level::Info, JournalKind::Note, text);
            }
            self.status.passage = self.passage.as_ref().map(|passage| passage.passage().clone());
            self.batch.put_fact("status", &self.status);
            self.dirty = false;
        }
        self.write(Writer::append)
    }

    /// Writes how the run ended. On a full disk the reserve makes room for it, and curve rows that do not
    /// fit are dropped.
    pub fn flush_last_words(&mut self, run: &RunDir) {
        if self.trouble.is_failing {
            reserve::release(run);
            self.store.wait_at_most(LAST_WORDS).ok();
            self.flush();
            if self.trouble.is_failing {
                let text =
                    format!("{} of the curve could not be written", counted(self.batch.steps.len() as u64, "row"));
                self.note(Level::Error, JournalKind::Health, text);
                (self.batch.steps, self.batch.evals, self.batch.samples) = Default::default();
                self.flush();
            }
            // Reports that the store works again.
            self.flush();
        }
        reserve::release(run);
    }

    fn note_written(&mut self) {
        self.facts.append(&mut self.batch.facts);
        self.batch = Batch::default();
        if std::mem::take(&mut self.trouble.is_failing) {
            let text = "run.db is writable again".to_owned();
            self.note(Level::Info, JournalKind::Health, text);
        }
    }

    /// Returns why the newest rows are not in the store, if it refuses them.
    pub fn unwritten(&self) -> Option<String> {
        self.trouble.is_failing.then(|| self.trouble.why.clone())
    }

    fn note_refusal(&mut self, error: &rusqlite::Error) {
        self.trouble.why = error.to_string();
        if std::mem::replace(&mut self.trouble.is_failing, true) {
            self.batch.samples.clear();
            return;
        }
        let text =
            format!("run.db cannot be written: {error}; training continues, and rows are kept for the next attempt");
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

    /// Reads from the store, or from its replacement if it turns out to be damaged.
    pub(super) fn read_store<T>(&mut self, read: impl Fn(&mut Writer) -> Result<T>) -> Result<T> {
        match read(&mut self.store) {
            Err(error) if is_damage(&error) && self.may_start_over() => {
                self.start_over(&error)?;
                read(&mut self.store)
            }
            result => result,
        }
    }

    /// Limits replacements: on a disk that damages every file, damaged stores must not pile up.
    fn may_start_over(&self) -> bool {
        self.trouble.replaced.is_none_or(|at| at.elapsed() >= REPLACED_AGAIN)
    }

    /// Replaces a damaged store by a new one. The next batch writes everything in memory to it, even if
    /// the new store cannot be created yet.
    fn start_over(&mut self, why: &rusqlite::Error) -> Result<()> {
        self.batch.checkpoints.extend(self.checkpoints.iter().map(|row| (row.step, row.clone())));
        if self.row.id > 0 {
            self.put_attempt();
        }
        for (key, value) in self.facts.clone() {
            self.batch.facts.entry(key).or_insert(value);
        }
        (self.trouble.refill, self.trouble.replaced) = (true, Some(Instant::now()));
        let replaced = self.store.replace(why)?;
        self.note(Level::Error, JournalKind::Health, describe_replacement(&replaced));
        if let Ok(run) = RunDir::open(Path::new(&self.status.run_dir)) {
            takeover::import_rows(&run, &mut self.store)?;
        }
        Ok(())
    }

    /// Imports checkpoints that workers saved without being able to report them. Returns how many there were.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn import_checkpoints(&mut self, run: &RunDir) -> Result<Imported> {
        let imported = self.read_store(|store| takeover::import_checkpoints(run, store))?;
        self.checkpoints = self.read_store(Writer::checkpoints)?;
        self.mark_best();
        self.status.durable_step = self.checkpoints.iter().filter(|row| row.kept).map(|row| row.step).max();
        self.dirty = true;
        Ok(imported)
    }

    /// Restores the rows held by a new checkpoint, after the store was lost.
    pub(super) fn refill_from(&mut self, row: &CheckpointRow) {
        if !self.trouble.refill {
            return;
        }
        let path = Path::new(&self.status.run_dir).join(&row.path);
        let rows = takeover::rows_of(&path);
        self.trouble.refill = rows.is_none();
        let rows = rows.unwrap_or_default();
        // Earlier rows come first, in the order they were taken.
        self.batch.steps.splice(0..0, rows.steps);
        self.batch.evals.splice(0..0, rows.evals);
    }

    /// Waits for a store that another process has locked no longer than a running keeper may.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn stop_waiting(&mut self) -> Result<()> {
        self.store.wait_at_most(if self.store.is_logged() { WITH_LOG } else { WITHOUT_LOG })
    }

    /// Reports whether there are updates for listeners.
    pub fn has_news(&self) -> bool {
        !self.updates.is_empty()
    }

    /// Takes the updates for listeners.
    pub fn take_updates(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.updates)
    }

    /// Returns the total lifetime of this run's workers, in seconds.
    pub fn lived_s(&mut self) -> f64 {
        self.read_store(Writer::lived_s).unwrap_or(0.0)
    }
}

/// Describes the replacement of a damaged store.
pub fn describe_replacement(replaced: &Replaced) -> String {
    let why = &replaced.why;
    let aside =
        replaced.aside.as_ref().map_or_else(String::new, |path| format!(" and was set aside as {}", path.display()));
    format!(
        "run.db was damaged ({why}){aside}; recovered {} from it, and checkpoints restore theirs",
        counted(replaced.saved as u64, "row")
    )
}
