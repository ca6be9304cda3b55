//! Records events: rows for the store, updates for listeners, and the run's status. It decides nothing.

mod checkpoints;
mod companion;
mod evaluations;
mod going_back;
mod layers;
mod measured;
mod quality;
mod readings;
mod resumed;
mod rungs;
mod skips;
mod time;
mod writing;

use evaluations::EvaluationCurve;
use writing::StoreTrouble;
pub use writing::describe_replacement;

use super::attempt::Attempt;
use super::metric_names::Admission;
use super::planned::Planned;
use super::proving::Proving;
use super::sentences;
use super::shift_timer::ShiftTimer;
use crate::config::best::Best;
use crate::protocol::cause::Cause;
use crate::protocol::control::{CheckpointRow, JournalKind, JournalRow, Passage, StageName, Status, StepRow, Update};
use crate::protocol::resumed::Resumed;
use crate::protocol::samples::FIRST_NON_FINITE;
use crate::protocol::worker::{Eval, Event, FailureClass, Hello, Level, Phase};
use crate::store::writer::{AttemptRow, Batch, Writer};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Records the run for the store and for listeners.
pub struct Recorder {
    store: Writer,
    batch: Batch,
    updates: Vec<Update>,
    next_journal: i64,
    /// Status of the run.
    pub status: Status,
    /// The current attempt.
    pub attempt: Attempt,
    /// Row of the current attempt.
    row: AttemptRow,
    /// Step and clock of an attempt that was taken over, until its worker introduces itself again.
    continued: Option<(u64, u64)>,
    passage: Option<ShiftTimer>,
    /// When the worker last took a step, or began.
    last_step_at: Duration,
    /// The rungs that this keeper has trained on, in their order.
    stretches: Vec<rungs::Stretch>,
    /// The step before an attempt whose first step has not come, if it did not say where it begins.
    before_first_step: Option<u64>,
    skips: skips::Skips,
    /// Texts that are noted once only.
    noted: HashSet<String>,
    sampled: Option<Instant>,
    checkpoints: Vec<CheckpointRow>,
    /// Step of the checkpoint that is being measured, which stays on disk.
    under_measurement: Option<u64>,
    /// How they are ranked.
    ranking: Best,
    /// Newest evaluations of this attempt, by step.
    evals: BTreeMap<u64, Eval>,
    /// The step of the evaluation that measured a checkpoint of this attempt, where that is another one.
    measured: BTreeMap<u64, u64>,
    /// All evaluations of the curve.
    curve: EvaluationCurve,
    /// Names of the run's metrics.
    admission: Admission,
    proving: Proving,
    /// The furthest step that its rung has counted.
    furthest_step: u64,
    dirty: bool,
    planned: Planned,
    /// Whether the first parameter that was not finite is in the store.
    knows_non_finite: bool,
    /// Facts as stored.
    facts: BTreeMap<String, String>,
    trouble: StoreTrouble,
    stopwatch: time::Stopwatch,
}

impl Recorder {
    /// Continues with the content of the store.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn new(mut store: Writer, fresh: Status) -> rusqlite::Result<Self> {
        let mut status = store.fact::<Status>("status")?.unwrap_or_else(|| fresh.clone());
        status.passage = None;
        status.exit_code = None;
        (status.pid_worker, status.pid_probe, status.pid_quality) = (None, None, None);
        status.ranks.clear();
        status.pid_keeper = fresh.pid_keeper;
        status.run_dir = fresh.run_dir;
        let (next_journal, facts) = (store.last_journal_id()? + 1, store.facts()?);
        let measured = status.eval.iter().flat_map(|eval| eval.metrics.keys().cloned());
        let admission = Admission::new(store.metric_names()?.into_iter().chain(measured));
        let mut recorder = Self {
            store,
            batch: Batch::default(),
            updates: Vec::new(),
            next_journal,
            skips: skips::Skips::of(&status),
            status,
            attempt: Attempt::default(),
            row: AttemptRow::default(),
            continued: None,
            passage: None,
            last_step_at: Duration::ZERO,
            stretches: Vec::new(),
            before_first_step: None,
            noted: HashSet::new(),
            sampled: None,
            checkpoints: Vec::new(),
            under_measurement: None,
            ranking: Best::default(),
            evals: BTreeMap::new(),
            measured: BTreeMap::new(),
            curve: EvaluationCurve::default(),
            admission,
            proving: Proving::default(),
            furthest_step: 0,
            dirty: true,
            planned: Planned::default(),
            knows_non_finite: facts.contains_key(FIRST_NON_FINITE),
            facts,
            trouble: StoreTrouble::default(),
            stopwatch: time::Stopwatch::default(),
        };
        recorder.account_for_gap();
        Ok(recorder)
    }

    /// Reports whether the last worker began at the step where the run is now.
    pub fn took_no_step(&self) -> bool {
        self.row.from_step.is_some_and(|from| from >= self.status.step)
    }

    /// Writes a journal line.
    pub fn note(&mut self, level: Level, kind: JournalKind, text: String) {
        let step = Some(self.status.step).filter(|step| *step > 0);
        let row = JournalRow { id: self.next_journal, time_ms: now_ms(), step, level, kind, text };
        self.next_journal += 1;
        self.batch.journal.push(row.clone());
        self.updates.push(Update::Journal(row));
    }

    /// Begins an attempt; its row is on disk when this returns.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails; then no worker may be started.
    pub fn begin_attempt(
        &mut self,
        rung: usize,
        rung_name: &str,
        reason: &str,
        now: Duration,
    ) -> rusqlite::Result<u64> {
        self.account_for_attempt();
        let before = self.status.loss.map(|loss| (self.status.step, loss));
        let id = self.record_attempt(rung, rung_name, reason)?;
        self.attempt = Attempt::new(id, rung).begun_at(self.row.started_ms);
        (self.last_step_at, self.status.progress) = (now, None);
        // The same step has other weights in another attempt.
        self.evals.clear();
        self.measured.clear();
        self.status.attempts = id;
        if self.status.rung != rung {
            self.status.shifts += 1;
        }
        self.status.rung = rung;
        rung_name.clone_into(&mut self.status.rung_name);
        self.forget_last_processes();
        if let Some(passage) = &mut self.passage {
            passage.cross(rung_name, before, now);
        }
        self.note(Level::Info, JournalKind::Worker, format!("attempt {id}: {reason}"));
        Ok(id)
    }

    /// Begins a passage to another worker.
    pub fn begin_passage(&mut self, to: &str, first: StageName, now: Duration) {
        match &mut self.passage {
            Some(passage) if !passage.arrived() => {
                passage.redirect(to);
                passage.next(first, now);
            }
            _ => self.passage = Some(ShiftTimer::begin(&self.status.rung_name, to, first, now)),
        }
    }

    /// Begins a transition retroactively, at the worker's last step.
    pub fn begin_passage_late(&mut self, to: &str, first: StageName) {
        match &mut self.passage {
            Some(passage) if !passage.arrived() => passage.redirect(to),
            _ => self.passage = Some(ShiftTimer::begin(&self.status.rung_name, to, first, self.last_step_at)),
        }
    }

    /// Begins the next part of the current transition, if there is one.
    pub fn passage_part(&mut self, name: StageName, now: Duration) {
        if let Some(passage) = self.passage.as_mut().filter(|passage| !passage.arrived()) {
            passage.next(name, now);
        }
    }

    /// Ends a transition that leads to no other worker: the run pauses or ends.
    pub fn end_passage(&mut self) {
        self.passage = None;
    }

    /// Leaves out metrics that may not enter the run, and tells the user once.
    pub fn admit_metrics(&mut self, event: &mut Event) {
        if let Some(refused) = self.admission.admit(event) {
            self.note(Level::Warn, JournalKind::Note, refused.to_string());
        }
    }

    /// Records a worker event.
    pub fn record_event(&mut self, event: &Event, now: Duration) {
        let time_ms = now_ms();
        if let Some(row) = StepRow::from_event(event, self.attempt.id, self.attempt.rung, time_ms) {
            self.record_step(row, now);
        }
        match event {
            Event::Hello(hello) => self.record_hello(hello, now),
            Event::Phase { phase: Phase::Compiling } => self.passage_part(StageName::Compile, now),
            Event::Phase { .. } => self.status.kernels = None,
            Event::Kernels(count) => self.status.kernels = Some(*count),
            Event::Skipped(skipped) => self.record_skip(skipped),
            Event::Eval(eval) => self.record_eval(eval, time_ms),
            Event::Samples { step } => self.updates.push(Update::Samples { step: *step }),
            Event::Layers(stats) => self.record_layers(stats, time_ms),
            Event::Saved(saved) => self.record_checkpoint(saved, now),
            Event::SaveFailed { step, message, .. } => self.record_failed_save(*step, message),
            Event::StopRefused { .. } => self.end_passage(),
            // Notes repeated by every worker, such as why there is no GPU, are written once.
            Event::Note { level, text } => {
                if self.noted.insert(text.clone()) {
                    self.note(*level, JournalKind::Note, text.clone());
                }
            }
            Event::Injected { fault, step } => {
                self.note(
                    Level::Warn,
                    JournalKind::Injected,
                    format!("injected {fault} at step {}", sentences::grouped(*step)),
                );
            }
            Event::Command { news } => self.record_news(news, now),
            Event::KernelsTuned | Event::Step(_) | Event::Failed(_) | Event::Memory(_) | Event::Done { .. } => {}
        }
        self.dirty = true;
    }

    /// Records a worker that introduces itself: for the first time, or again to a keeper that took it over.
    fn record_hello(&mut self, hello: &Hello, now: Duration) {
        self.status.device = Some(hello.device.clone());
        // A command's companion tells them later.
        self.status.parameters = Some(hello.parameters).filter(|known| *known > 0).or(self.status.parameters);
        self.status.total_samples = known(hello.total_units);
        self.status.total_steps = known(hello.total_steps);
        self.status.ends_ms = None;
        self.status.epoch_samples = known(hello.epoch_units);
        self.status.unit.clone_from(&hello.unit);
        let continued = self.continued.take();
        let begins_at = (hello.resumed_from.unwrap_or(0), hello.position.samples);
        let before = self.status.step;
        if let Some(place) = continued {
            self.take_back(place.0);
            self.begin_at(place, u64::MAX);
        } else {
            self.begin_resume(hello);
            self.begin_at(begins_at, begins_at.0);
            self.status.failed_saves = None;
            self.row.from_step = hello.resumed_from;
            self.put_attempt();
            // The journal line of a shift or restart tells them, too.
            let known = self.status.resumed.as_ref().is_some_and(Resumed::is_known);
            let again = if self.passage.is_some() || !known { 0 } else { before.saturating_sub(begins_at.0) };
            let text = sentences::hello(hello, self.status.resumed.as_ref(), again);
            self.note(Level::Info, JournalKind::Worker, text);
        }
        self.await_first_step(now);
        self.status.durable_step = hello.resumed_from.or(self.status.durable_step);
        self.restart_proving(self.status.step);
    }

    fn record_step(&mut self, row: StepRow, now: Duration) {
        self.place(row.step);
        self.account_for_step(row.step);
        // Once the output takes over from a companion that only watches, it tells again of steps that were counted.
        let taken = rungs::steps_taken(self.furthest_step, row.step);
        self.furthest_step = self.furthest_step.max(row.step);
        (self.status.step, self.status.samples) = (row.step, row.samples);
        self.last_step_at = now;
        self.status.unread = None;
        if let Some(loss) = row.loss {
            self.status.loss = Some(loss);
            self.end_skips();
        }
        self.attempt.stepped(&row);
        self.measure_rung(taken);
        match self.updates.last_mut() {
            Some(Update::Steps { rows }) => rows.push(row.clone()),
            _ => self.updates.push(Update::Steps { rows: vec![row.clone()] }),
        }
        let (step, loss) = (row.step, row.loss);
        self.batch.steps.push(row);
        let (Some(passage), Some(loss)) = (self.passage.as_mut(), loss) else { return };
        if passage.arrive((step, loss), now) {
            let (text, same) = (sentences::passage(passage.passage()), passage.passage().from == passage.passage().to);
            let kind = if same { JournalKind::Restart } else { JournalKind::Shift };
            self.note(Level::Info, kind, text);
        }
    }

    /// Records the process of the current attempt.
    pub fn record_worker(&mut self, pid: u32) {
        self.status.pid_worker = Some(pid);
        self.row.pid = Some(pid);
        self.put_attempt();
    }

    /// Records the worker's exit; `fault` when it was not requested.
    pub fn record_exit(&mut self, words: &str, fault: bool) {
        let ended_ms = self.attempt.ends_at().unwrap_or_else(now_ms);
        (self.row.ended_ms, self.row.outcome) = (Some(ended_ms), Some(words.to_owned()));
        self.put_attempt();
        if fault {
            self.account_for_fault();
        }
        self.status.pid_worker = None;
        self.status.ranks.clear();
        let step = self.status.step;
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung).filter(|_| fault) {
            record.fault = Some((words.to_owned(), step));
        }
        self.dirty = true;
    }

    /// Records why the attempt ended: in the store, and in the journal with the evidence.
    pub fn record_cause(&mut self, cause: &Cause) {
        self.batch.causes.insert(self.attempt.id, cause.clone());
        self.note(Level::Warn, JournalKind::Worker, sentences::cause(cause));
    }

    /// Records why the attempt is in trouble; the journal says how the keeper responds.
    pub fn record_trouble(&mut self, class: FailureClass, evidence: String) {
        self.batch.causes.insert(self.attempt.id, Cause::new(class, vec![evidence]));
    }

    /// Marks the status as changed from outside the recorder.
    pub fn mark_changed(&mut self) {
        self.dirty = true;
    }

    /// Returns the current passage.
    pub fn passage(&self) -> Option<Passage> {
        self.passage.as_ref().map(|passage| passage.passage().clone())
    }
}

/// Returns the Unix time in milliseconds.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Returns a length; 0 is an unknown one, as that of a command at its start.
fn known(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}
