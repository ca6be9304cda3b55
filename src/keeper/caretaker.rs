//! What may be done to the checkpoints of a run that no keeper watches over: whoever does it holds
//! the keeper's lock, and is the keeper for that moment.

use super::glance::blank_status;
use super::keep::KeeperError;
use super::recorder::Recorder;
use super::sentences::grouped;
use super::takeover;
use crate::protocol::control::{JournalKind, RunState};
use crate::protocol::worker::Level;
use crate::store::checkpoint::{self, CheckpointError, aside};
use crate::store::lock::{Lock, living_owner};
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// The keeper for a moment.
pub struct Caretaker {
    run_dir: RunDir,
    recorder: Recorder,
    _lock: Lock,
}

/// What was done to a checkpoint, and what is left to a person.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Checkpoints that retention does not keep.
    pub superfluous: Vec<u64>,
    /// Checkpoints that had been set aside.
    pub aside: Vec<PathBuf>,
    /// Damaged ones: they count for nothing, and were left where they are.
    pub damaged: Vec<String>,
}

/// Writes down that the run needs a person, in the place of a keeper that dies again and again.
///
/// # Errors
/// When a keeper lives after all, or the store cannot be used.
pub fn give_up(run_dir: &RunDir, why: &str) -> Result<(), KeeperError> {
    let file = run_dir.file("keeper.lock");
    let _lock = Lock::take(&file).map_err(|source| KeeperError::Lock { file: file.display().to_string(), source })?;
    let (store, _) = Writer::open(&run_dir.file("run.db"))?;
    let run = run_dir.run()?;
    let mut recorder = Recorder::new(store, blank_status(run_dir, &run, run.first_rung()))?;
    recorder.note(Level::Error, JournalKind::Run, format!("needs a person: {why}"));
    recorder.status.state = RunState::NeedsPerson;
    recorder.status.why = Some(why.to_owned());
    let _ = recorder.store().put_fact("exit_code", &4);
    recorder.touch();
    recorder.flush();
    Ok(())
}

impl Caretaker {
    /// Takes the keeper's place, and takes over what the store does not know yet.
    ///
    /// # Errors
    /// When a keeper or a worker of the run lives, or the store cannot be used.
    pub fn step_in(run_dir: &RunDir) -> Result<Self, KeeperError> {
        let file = run_dir.file("keeper.lock");
        let lock =
            Lock::take(&file).map_err(|source| KeeperError::Lock { file: file.display().to_string(), source })?;
        if let Some(worker) = living_owner(&run_dir.file("worker.lock")) {
            let source = io::Error::other(format!("worker {} is still ending; try again in a moment", worker.pid));
            return Err(KeeperError::Io { what: run_dir.name(), source });
        }
        let (mut store, _) = Writer::open(&run_dir.file("run.db"))?;
        takeover::import_checkpoints(run_dir, &mut store)?;
        let run = run_dir.run()?;
        let mut recorder = Recorder::new(store, blank_status(run_dir, &run, run.first_rung()))?;
        recorder.reload_checkpoints()?;
        Ok(Self { run_dir: run_dir.clone(), recorder, _lock: lock })
    }

    /// Deletes what retention would not keep, and what was set aside. Reads every byte first: a
    /// damaged checkpoint must not push a good one out.
    ///
    /// # Errors
    /// `SQLite`'s words.
    pub fn prune(&mut self) -> Result<Pruned, KeeperError> {
        let mut pruned = Pruned::default();
        let mut damaged = BTreeSet::new();
        for entry in checkpoint::list(self.run_dir.path()) {
            if let Err(error) = checkpoint::verify(&entry.path) {
                damaged.insert(entry.step);
                pruned.damaged.push(error.to_string());
            }
        }
        let run = self.run_dir.run()?;
        let rung = self.recorder.status.rung.min(run.rungs.len() - 1);
        let steps = self.recorder.retire(&run.rungs[rung].preset.checkpoint, &damaged);
        pruned.superfluous = self.delete(steps);
        pruned.aside = aside::delete_all(self.run_dir.path());
        let text = format!(
            "pruned by a person: {} superfluous checkpoint(s) and {} that had been set aside are gone",
            pruned.superfluous.len(),
            pruned.aside.len()
        );
        if !pruned.superfluous.is_empty() || !pruned.aside.is_empty() {
            self.note(text);
        }
        Ok(pruned)
    }

    fn delete(&mut self, steps: Vec<u64>) -> Vec<u64> {
        let mut gone = Vec::new();
        for step in steps {
            match checkpoint::remove(self.run_dir.path(), step) {
                Ok(()) => gone.push(step),
                Err(error) => self.recorder.note(Level::Error, JournalKind::Checkpoint, error.to_string()),
            }
        }
        gone
    }

    /// Makes the checkpoint of `step` the newest one: those above it are set aside, newest first, so
    /// that a crash on the way leaves a run that only has not gone back far enough.
    ///
    /// # Errors
    /// When one cannot be set aside.
    pub fn go_back_to(&mut self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let newer = checkpoint::list(self.run_dir.path()).into_iter().filter(|entry| entry.step > step);
        let paths = newer.map(|entry| aside::set_aside(self.run_dir.path(), entry.step)).collect();
        self.recorder.give_up_above(step);
        let text = format!("goes back to the checkpoint of step {}, as a person asked", grouped(step));
        self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        self.recorder.status.durable_step = Some(step);
        self.recorder.touch();
        self.recorder.flush();
        paths
    }

    /// Writes a line into the journal.
    pub fn note(&mut self, text: String) {
        self.recorder.note(Level::Info, JournalKind::Checkpoint, text);
        self.recorder.flush();
    }
}
