//! Steps of a keeper before it trusts the run directory: it makes sure that no worker of an earlier
//! keeper is alive, and imports that worker's checkpoints.

use super::author::Author;
use super::batch_job::describe_job;
use super::detach::Asked;
use super::environment;
use super::failure::KeeperError;
use super::keeper_state::Keeper;
use super::perform::ENDED_BY_SIGNAL;
use super::quality::CLOSING;
use super::recorder::now_ms;
use super::retention::is_adopted;
use super::sentences::grouped;
use crate::format::{age, count, counted};
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::Outcome;
use crate::policy::reason::Reason;
use crate::protocol::control::{CheckpointRow, JournalKind, RunState, Status};
use crate::protocol::worker::{Eval, Level};
use crate::store::adopted;
use crate::store::checkpoint;
use crate::store::checkpoint::state::{self, Row, TrainState};
use crate::store::foreign::ForeignProcess;
use crate::store::identity::Identity;
use crate::store::owners;
use crate::store::run_dir::RunDir;
use crate::store::writer::{Batch, Writer};
use rustix::process::{Signal, getppid};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Time for an orphaned worker, which saves and ends on its own within five seconds.
const ORPHAN_GRACE: Duration = Duration::from_secs(8);
/// How long to wait for the probe's first reading, which gives the GPU's baseline.
const BASELINE: Duration = Duration::from_secs(2);
const TERM_GRACE: Duration = Duration::from_secs(5);
const KILL_GRACE: Duration = Duration::from_secs(10);

/// Waits for a worker left behind by an earlier keeper, and kills it if it does not end.
///
/// # Errors
/// Returns the process that cannot be killed: then no other worker may be started.
pub async fn end_orphan(run: &RunDir) -> Result<bool, Identity> {
    let Some(orphan) = owners::worker(run) else { return Ok(false) };
    if gone_within(&orphan, ORPHAN_GRACE).await {
        return Ok(true);
    }
    for (signal, grace) in [(Signal::TERM, TERM_GRACE), (Signal::KILL, KILL_GRACE)] {
        let _ = orphan.signal_group(signal);
        if gone_within(&orphan, grace).await {
            return Ok(true);
        }
    }
    Err(orphan)
}

async fn gone_within(process: &Identity, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while process.is_alive() {
        if Instant::now() >= deadline {
            return false;
        }
        // A worker of an earlier keeper is not a child of this one, so its end sends no SIGCHLD.
        sleep(Duration::from_millis(50)).await;
    }
    true
}

/// The differences between a store and the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Checkpoints that the store did not know.
    pub new: usize,
    /// Steps of containers that are no longer on disk.
    pub gone: Vec<u64>,
}

/// Imports the rows and the record of every checkpoint that the store does not know: those saved while
/// no keeper listened, and those of workers killed before they could report.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn import_checkpoints(run: &RunDir, store: &mut Writer) -> rusqlite::Result<Imported> {
    let on_disk = checkpoint::list(run.path());
    let adopted = adopted::list(run.path());
    let is_there = |step| on_disk.iter().any(|entry| entry.step == step) || adopted.iter().any(|it| it.step == step);
    let mut imported = Imported::default();
    let known = store.checkpoints()?;
    let mut gone = Batch::default();
    for row in known.iter().filter(|row| row.kept && !is_there(row.step)) {
        // A script deletes its own files.
        imported.gone.extend(Some(row.step).filter(|_| !is_adopted(row)));
        gone.checkpoints.insert(row.step, CheckpointRow { kept: false, best: false, ..row.clone() });
    }
    store.append(&gone)?;
    let mut missing = Batch::default();
    let evals = store.evals()?;
    for adopted in adopted.iter().filter(|it| !known.iter().any(|row| row.kept && row.step == it.step)) {
        // The newest attempt that evaluated this step wrote the checkpoint.
        let eval = evals.iter().rev().find(|row| row.eval.step == adopted.step).map(|row| &row.eval);
        missing.checkpoints.insert(adopted.step, adopted_row(adopted, eval));
        imported.new += 1;
    }
    store.append(&missing)?;
    for entry in on_disk.iter().rev().filter(|entry| !known.iter().any(|row| row.kept && row.step == entry.step)) {
        let Ok(loaded) = checkpoint::load(&entry.path) else { continue };
        let rows = loaded.files.get("steps.jsonl").map(|text| Row::read_all(text)).unwrap_or_default();
        let state: Option<TrainState> =
            loaded.files.get("state.json").and_then(|text| serde_json::from_slice(text).ok());
        let mut batch = batch_of(rows);
        let row = CheckpointRow {
            step: entry.step,
            samples: loaded.manifest.samples,
            path: checkpoint::relative_path(entry.step),
            bytes: loaded.manifest.bytes(),
            time_ms: modified_ms(&entry.path.join("manifest.json")),
            pause_ms: 0.0,
            total_ms: 0.0,
            eval_loss: state.as_ref().and_then(TrainState::own_eval_loss),
            metrics: state.as_ref().and_then(TrainState::own_eval).map(|eval| eval.metrics.clone()).unwrap_or_default(),
            best: false,
            kept: true,
            proven: false,
        };
        batch.checkpoints.insert(row.step, row);
        store.append(&batch)?;
        imported.new += 1;
    }
    Ok(imported)
}

/// Imports the curve rows held by checkpoints; rows already in the store stay unchanged.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn import_rows(run: &RunDir, store: &mut Writer) -> rusqlite::Result<()> {
    let oldest_first = checkpoint::list(run.path()).into_iter().rev();
    oldest_first.filter_map(|entry| rows_of(&entry.path)).try_for_each(|rows| store.append(&rows))
}

/// Returns the curve rows held by a checkpoint, if it is readable.
pub fn rows_of(path: &Path) -> Option<Batch> {
    state::rows_of(path).ok().map(batch_of)
}

/// Returns a sentence if a run has trained but its store does not show it.
pub fn lost_store(run: &RunDir, store: &mut Writer) -> rusqlite::Result<Option<String>> {
    let newest = checkpoint::list(run.path()).first().map(|newest| newest.step).filter(|step| *step > 0);
    let Some(newest) = newest else { return Ok(None) };
    Ok(store.fact::<Status>("status")?.is_none().then(|| {
        format!(
            "run.db is empty, but there is a checkpoint of step {}: run.db was deleted or truncated, or this is a copy. \
             The curve is restored from the checkpoints; the journal starts here",
            count(newest)
        )
    }))
}

impl Keeper {
    /// Ends workers of an earlier keeper, waits for the GPU's baseline, and begins.
    pub(super) async fn take_over_run(&mut self, asked: Option<&Asked>, socket: &Path) -> Result<(), KeeperError> {
        let (before, by_person) = (self.note_start(asked), asked.is_some());
        // From here on the store says where the run stands. Clients in another environment find the socket
        // through this.
        let listens =
            self.files.lock.update(|record| (record.opening, record.socket) = (false, Some(socket.to_owned())));
        if let Err(error) = listens {
            self.recorder.note(Level::Warn, JournalKind::Health, format!("keeper.lock cannot be written: {error}"));
        }
        self.note_recovery(by_person);
        let stays_paused = before == RunState::Paused && !by_person;
        self.join_registry();
        // Training goes on if the user asks for it.
        let finished = self.quality.left_outcome().filter(|_| !by_person);
        if !stays_paused && finished.is_none() {
            self.claim_devices();
        }
        if let Some(why) = self.refusal_to_wait().filter(|_| by_person) {
            self.perform(vec![Effect::Finish(Outcome::Refused(why))], None);
            return Ok(());
        }
        if self.run.command.is_some() && self.adopt_command().await {
            self.take_over_checkpoints()?;
            self.recorder.stop_waiting()?;
            self.policy.set_durable_step(self.recorder.status.durable_step);
            return Ok(());
        }
        match end_orphan(&self.run_dir).await {
            Ok(false) => self.note_cut_off(before, by_person),
            Ok(true) => {
                let text = "a worker of the previous keeper was still alive; it has saved and ended".to_owned();
                self.recorder.note(Level::Warn, JournalKind::Run, text);
            }
            Err(orphan) => {
                let why = Reason::Unkillable(Some(orphan.pid));
                self.perform(vec![Effect::Finish(Outcome::NeedsPerson(why))], None);
                return Ok(());
            }
        }
        checkpoint::clean(self.run_dir.path());
        self.take_over_checkpoints()?;
        self.recorder.stop_waiting()?;
        self.policy.set_durable_step(self.recorder.status.durable_step);
        // An adopted process may outlive the watch.
        let has_ended = self.recorder.status.attempts > 0 && ForeignProcess::living(&self.run_dir).is_none();
        let lost = self.policy.end_of_lost_command().filter(|_| has_ended);
        if let Some(outcome) = finished.or(lost) {
            self.perform(vec![Effect::Finish(outcome)], None);
            return Ok(());
        }
        if stays_paused {
            self.policy.stay_paused();
            return Ok(());
        }
        let first = timeout(BASELINE, self.first_reading()).await;
        if let Ok(Some(input)) = first {
            self.handle_input(input);
        }
        // A stop may have ended the run meanwhile.
        if self.outcome.is_none() && self.files.lost_to.is_none() {
            self.decide(Event::Begin, None);
        }
        Ok(())
    }

    /// Stores that the run starts, and in the same step that no signal has ended it. Returns its state before.
    pub(super) fn note_start(&mut self, asked: Option<&Asked>) -> RunState {
        let before = std::mem::replace(&mut self.recorder.status.state, RunState::Starting);
        if let Some(Asked { by, environment }) = asked {
            self.recorder.status.pauses += u64::from(before == RunState::Paused);
            self.recorder.put_fact(ENDED_BY_SIGNAL, &None::<String>);
            self.recorder.put_fact(CLOSING, &false);
            // A store that was lost knows of no attempt.
            let newest = checkpoint::list(self.run_dir.path()).first().map(|newest| newest.step);
            let is_new = self.recorder.status.attempts == 0 && newest.unwrap_or(0) == 0;
            let what = if is_new { "start" } else { "resume" };
            let text = format!("{what} requested by {by}");
            self.recorder.note(Level::Info, JournalKind::Request, text);
            if let Some(job) = describe_job(|name| std::env::var(name).ok()) {
                self.recorder.note(Level::Info, JournalKind::Run, job);
            }
            for (level, text) in environment::describe(environment) {
                self.recorder.note(level, JournalKind::Run, text);
            }
        }
        self.recorder.flush();
        before
    }

    /// Notes in the journal how long the run had no keeper, and why.
    pub(super) fn note_recovery(&mut self, by_person: bool) {
        let recovery = owners::parent_record(&self.run_dir).and_then(|record| record.recovery).unwrap_or_default();
        if !by_person {
            let how = recovery.death.unwrap_or_else(|| "died".to_owned());
            let text = format!("the keeper {how} and was restarted");
            self.recorder.note(Level::Warn, JournalKind::Run, text);
        }
        if let Some(failure) = recovery.failure {
            let (starts, lasting) = (counted(u64::from(recovery.failures), "start"), recovery.lasting_s);
            let text = format!("the keeper could not run for {lasting} s, {starts} failed: {failure}");
            self.recorder.note(Level::Error, JournalKind::Health, text);
        }
    }

    /// Notes in the journal that the keeper, its parent and the worker of a run that the user resumes ended without a word:
    /// killed, or with the machine. `before`: the state that the last keeper left.
    fn note_cut_off(&mut self, before: RunState, by_person: bool) {
        let status = &self.recorder.status;
        if !by_person || before.is_over() || before == RunState::Paused || status.attempts == 0 {
            return;
        }
        let how = match owners::was_booted_since(&self.run_dir) {
            Some(true) => "the machine was started again since",
            Some(false) => "its keeper and the keeper's parent were killed",
            None => "its keeper ended without a word",
        };
        let ago = status.progress.map(|last| format!(", {} ago", age(now_ms().saturating_sub(last.since_ms))));
        let text = format!("cut off after step {}{}: {how}", grouped(status.step), ago.unwrap_or_default());
        self.recorder.note(Level::Warn, JournalKind::Run, text);
    }

    /// Replaces the parent as the author of a signal by the author whose signal the parent passed on.
    pub(super) fn resolve_author(&self, author: Author) -> Author {
        if !author.is_signal_of(getppid()) {
            return author;
        }
        let told_by = owners::parent_record(&self.run_dir).and_then(|record| record.told_by);
        told_by.map_or(author, Author::PassedOn)
    }

    /// Imports checkpoints of workers that could not report them.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub(super) fn take_over_checkpoints(&mut self) -> rusqlite::Result<()> {
        let Imported { new, gone } = self.recorder.import_checkpoints(&self.run_dir)?;
        for step in gone {
            self.note_deleted_checkpoint(step);
        }
        if new > 0 {
            let text = format!("imported {} saved without a keeper", counted(new as u64, "checkpoint"));
            self.recorder.note(Level::Info, JournalKind::Checkpoint, text);
        }
        Ok(())
    }
}

/// Returns the record of an adopted checkpoint.
fn adopted_row(adopted: &adopted::Adopted, eval: Option<&Eval>) -> CheckpointRow {
    CheckpointRow {
        step: adopted.step,
        samples: adopted.samples,
        path: adopted::relative_path(adopted.step),
        bytes: adopted.bytes(),
        time_ms: adopted.time_ms,
        eval_loss: eval.and_then(|eval| eval.loss),
        metrics: eval.map(|eval| eval.metrics.clone()).unwrap_or_default(),
        kept: true,
        ..CheckpointRow::default()
    }
}

fn batch_of(rows: Vec<Row>) -> Batch {
    let mut batch = Batch::default();
    for row in rows {
        match row {
            Row::Step(row) => batch.steps.push(row),
            Row::Eval(row) => batch.evals.push(row),
        }
    }
    batch
}

fn modified_ms(path: &Path) -> i64 {
    let modified = fs::metadata(path).and_then(|made| made.modified()).ok();
    modified.and_then(|at| jiff::Timestamp::try_from(at).ok()).map_or(0, jiff::Timestamp::as_millisecond)
}
