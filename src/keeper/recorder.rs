//! Remembers what happened: rows for the store, updates for whoever listens, the run at a glance.
//! It decides nothing.

mod checkpoints;
mod writing;

pub use writing::told;

use super::attempt::Attempt;
use super::passage::PassageClock;
use super::planned::Planned;
use super::proving::Proving;
use super::sentences;
use crate::protocol::cause::Cause;
use crate::protocol::control::{
    CheckpointRow, EvalRow, JournalKind, JournalRow, Passage, SampleRow, Status, StepRow, Update,
};
use crate::protocol::probe::Reading;
use crate::protocol::worker::{Event, FailureClass, Level};
use crate::store::writer::{AttemptRow, Batch, Writer};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// A note in the journal for the first skipped step of a streak, then for each so many.
const SKIP_NOTE_EVERY: u64 = 100;

/// Readings of the probe reach the store at most this often.
const STORED_EVERY: Duration = Duration::from_secs(5);

/// The keeper's memory and its pen.
pub struct Recorder {
    store: Writer,
    batch: Batch,
    updates: Vec<Update>,
    next_journal: i64,
    /// The run at a glance.
    pub status: Status,
    /// The attempt under way.
    pub attempt: Attempt,
    /// Its row.
    row: AttemptRow,
    passage: Option<PassageClock>,
    /// When the worker last took a step, or began.
    moved: Duration,
    skips_in_a_row: u64,
    failed_saves: u64,
    said: HashSet<String>,
    sampled: Option<Instant>,
    checkpoints: Vec<CheckpointRow>,
    proving: Proving,
    dirty: bool,
    planned: Planned,
    /// Facts as the store has them.
    facts: BTreeMap<String, String>,
    /// The store refuses to be written; said once until it works again.
    store_failing: bool,
    /// When a damaged store was last replaced.
    replaced: Option<Instant>,
    /// The store was replaced: the next checkpoint brings back rows that it lost.
    refill: bool,
}

impl Recorder {
    /// Goes on with what the store knows.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn new(mut store: Writer, fresh: Status) -> rusqlite::Result<Self> {
        let mut status = store.fact::<Status>("status")?.unwrap_or_else(|| fresh.clone());
        status.passage = None;
        status.exit_code = None;
        status.pid_worker = None;
        status.pid_probe = None;
        status.pid_keeper = fresh.pid_keeper;
        status.run_dir = fresh.run_dir;
        let (next_journal, facts) = (store.last_journal_id()? + 1, store.facts()?);
        Ok(Self {
            store,
            batch: Batch::default(),
            updates: Vec::new(),
            next_journal,
            status,
            attempt: Attempt::default(),
            row: AttemptRow::default(),
            passage: None,
            moved: Duration::ZERO,
            skips_in_a_row: 0,
            failed_saves: 0,
            said: HashSet::new(),
            sampled: None,
            checkpoints: Vec::new(),
            proving: Proving::default(),
            dirty: true,
            planned: Planned::default(),
            facts,
            store_failing: false,
            replaced: None,
            refill: false,
        })
    }

    /// Writes a line of the journal.
    pub fn note(&mut self, level: Level, kind: JournalKind, text: String) {
        let step = Some(self.status.step).filter(|step| *step > 0);
        let row = JournalRow { id: self.next_journal, time_ms: now_ms(), step, level, kind, text };
        self.next_journal += 1;
        self.batch.journal.push(row.clone());
        self.updates.push(Update::Journal(row));
    }

    /// An attempt begins: its row is on the disk when this returns.
    ///
    /// # Errors
    /// `SQLite`'s words; then no worker may be started.
    pub fn begin_attempt(
        &mut self,
        rung: usize,
        rung_name: &str,
        reason: &str,
        now: Duration,
    ) -> rusqlite::Result<u64> {
        let before = self.status.loss.map(|loss| (self.status.step, loss));
        let id = self.record_attempt(rung, rung_name, reason)?;
        self.attempt = Attempt::new(id, rung).begun_at(self.row.started_ms);
        self.moved = now;
        self.status.attempts = id;
        if self.status.rung != rung {
            self.status.shifts += 1;
        }
        self.status.rung = rung;
        rung_name.clone_into(&mut self.status.rung_name);
        if let Some(passage) = &mut self.passage {
            passage.cross(rung_name, before, now);
        }
        self.note(Level::Info, JournalKind::Worker, format!("attempt {id}: {reason}"));
        Ok(id)
    }

    /// A passage to another worker begins.
    pub fn begin_passage(&mut self, to: &str, first: &str, now: Duration) {
        match &mut self.passage {
            Some(passage) if !passage.arrived() => {
                passage.redirect(to);
                passage.next(first, now);
            }
            _ => self.passage = Some(PassageClock::begin(&self.status.rung_name, to, first, now)),
        }
    }

    /// A passage that began when the worker took its last step, as is known only now.
    pub fn begin_passage_late(&mut self, to: &str, first: &str) {
        match &mut self.passage {
            Some(passage) if !passage.arrived() => passage.redirect(to),
            _ => self.passage = Some(PassageClock::begin(&self.status.rung_name, to, first, self.moved)),
        }
    }

    /// The part of a passage that begins now, where there is a passage.
    pub fn passage_part(&mut self, name: &str, now: Duration) {
        if let Some(passage) = self.passage.as_mut().filter(|passage| !passage.arrived()) {
            passage.next(name, now);
        }
    }

    /// A passage that leads nowhere: the run pauses or ends.
    pub fn end_passage(&mut self) {
        self.passage = None;
    }

    /// What the worker said.
    pub fn heard(&mut self, event: &Event, now: Duration) {
        let time_ms = now_ms();
        if let Some(row) = StepRow::of(event, self.attempt.id, self.attempt.rung, time_ms) {
            self.stepped(row, now);
        }
        match event {
            Event::Hello(hello) => {
                self.status.device = Some(hello.device.clone());
                self.status.parameters = Some(hello.parameters);
                self.status.total_samples = Some(hello.total_units);
                self.status.total_steps = Some(hello.total_steps);
                self.status.epoch_samples = Some(hello.epoch_units);
                self.status.unit.clone_from(&hello.unit);
                self.status.step = hello.resumed_from.unwrap_or(0);
                self.status.samples = hello.position.samples;
                self.row.from_step = hello.resumed_from;
                self.put_attempt();
                self.note(Level::Info, JournalKind::Worker, sentences::hello(hello));
                self.passage_part("first step", now);
                self.status.durable_step = hello.resumed_from.or(self.status.durable_step);
                self.restart_proving(hello.resumed_from.unwrap_or(0));
            }
            Event::Phase { phase: crate::protocol::worker::Phase::Compiling } => self.passage_part("compile", now),
            Event::Skipped(skipped) => {
                self.skips_in_a_row += 1;
                self.status.skipped += 1;
                if self.skips_in_a_row % SKIP_NOTE_EVERY == 1 {
                    let level = if skipped.rescaled { Level::Info } else { Level::Warn };
                    self.note(level, JournalKind::Skip, sentences::skipped(skipped));
                }
            }
            Event::Eval(eval) => {
                self.status.eval = Some(*eval);
                let row = EvalRow { attempt: self.attempt.id, time_ms, eval: *eval };
                self.batch.evals.push(row);
                self.updates.push(Update::Eval(row));
            }
            Event::Saved(saved) => self.saved(saved, now),
            Event::SaveFailed { step, message } => {
                self.failed_saves += 1;
                // The first of a streak is told; how long it lasts is told by the age of the newest.
                if self.failed_saves == 1 {
                    let text = sentences::save_failed(*step, message);
                    self.note(Level::Error, JournalKind::Checkpoint, text);
                }
            }
            Event::StopRefused { .. } => self.end_passage(),
            // What each worker says again, such as why there is no GPU, is said once.
            Event::Note { level, text } => {
                if self.said.insert(text.clone()) {
                    self.note(*level, JournalKind::Note, text.clone());
                }
            }
            Event::Injected { fault, step } => {
                self.note(Level::Warn, JournalKind::Injected, format!("injected {fault} at step {step}"));
            }
            Event::Phase { .. } | Event::Step(_) | Event::Failed(_) | Event::Memory(_) | Event::Done { .. } => {}
        }
        self.dirty = true;
    }

    fn stepped(&mut self, row: StepRow, now: Duration) {
        self.status.step = row.step;
        self.status.samples = row.samples;
        self.moved = now;
        if let Some(loss) = row.loss {
            self.status.loss = Some(loss);
            if self.skips_in_a_row > 1 {
                let count = self.skips_in_a_row;
                let text =
                    format!("{count} steps in a row were skipped; step {} is a good one", sentences::grouped(row.step));
                self.note(Level::Warn, JournalKind::Skip, text);
            }
            self.skips_in_a_row = 0;
        }
        self.attempt.stepped(&row);
        self.measure_rung();
        self.batch.steps.push(row);
        match self.updates.last_mut() {
            Some(Update::Steps { rows }) => rows.push(row),
            _ => self.updates.push(Update::Steps { rows: vec![row] }),
        }
        let (Some(passage), Some(loss)) = (self.passage.as_mut(), row.loss) else { return };
        if passage.arrive((row.step, loss), now) {
            let (text, same) = (sentences::passage(passage.shown()), passage.shown().from == passage.shown().to);
            let kind = if same { JournalKind::Restart } else { JournalKind::Shift };
            self.note(Level::Info, kind, text);
        }
    }

    /// The process of the attempt under way.
    pub fn started(&mut self, pid: u32) {
        self.status.pid_worker = Some(pid);
        self.row.pid = Some(pid);
        self.put_attempt();
    }

    /// The worker is gone; `fault` when nobody asked for it.
    pub fn ended(&mut self, words: &str, fault: bool) {
        let ended_ms = self.attempt.ends_at().unwrap_or_else(now_ms);
        (self.row.ended_ms, self.row.outcome) = (Some(ended_ms), Some(words.to_owned()));
        self.put_attempt();
        self.status.pid_worker = None;
        let step = self.status.step;
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung).filter(|_| fault) {
            record.fault = Some((words.to_owned(), step));
        }
        self.dirty = true;
    }

    /// Why the attempt ended: into the store, and into the journal with what it is known by.
    pub fn concluded(&mut self, cause: &Cause) {
        self.batch.causes.insert(self.attempt.id, cause.clone());
        self.note(Level::Warn, JournalKind::Worker, sentences::cause(cause));
    }

    /// Why the attempt is in trouble; what is done about it stands in the journal.
    pub fn troubled(&mut self, class: FailureClass, evidence: String) {
        let cause = Cause { class, xid: None, restart_helps: true, evidence: vec![evidence], advice: String::new() };
        self.batch.causes.insert(self.attempt.id, cause);
    }

    /// What the probe measured.
    pub fn measured(&mut self, reading: Reading) {
        // A worker on the CPU takes none of the card that the machine may have.
        let vram = reading.gpu.as_ref().ok().and_then(|gpu| gpu.vram_worker_bytes.get()).filter(|bytes| *bytes > 0);
        let ram = reading.host.ram_worker_bytes.get();
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung).filter(|_| self.status.pid_worker.is_some())
        {
            record.vram_bytes = record.vram_bytes.max(vram);
            record.ram_bytes = record.ram_bytes.max(ram);
        }
        let row = SampleRow { time_ms: now_ms(), reading };
        // A run of days would fill the disk with readings; listeners hear every one.
        if self.sampled.is_none_or(|at| at.elapsed() >= STORED_EVERY) {
            self.sampled = Some(Instant::now());
            self.batch.samples.push(row.clone());
        }
        self.updates.push(Update::Sample(Box::new(row)));
    }

    fn measure_rung(&mut self) {
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung) {
            record.steps += 1;
            if let Some(pace) = self.attempt.pace() {
                (record.steps_per_s, record.units_per_s) = (Some(pace.steps_per_s), Some(pace.units_per_s));
            }
        }
    }

    /// The status has changed outside of what the recorder heard.
    pub fn touch(&mut self) {
        self.dirty = true;
    }

    /// The passage as it is now.
    pub fn passage(&self) -> Option<Passage> {
        self.passage.as_ref().map(|passage| passage.shown().clone())
    }

    /// Whether listeners have to be told something.
    pub fn has_news(&self) -> bool {
        !self.updates.is_empty()
    }

    /// What listeners have to be told.
    pub fn take_updates(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.updates)
    }
}

/// Unix time in milliseconds.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
