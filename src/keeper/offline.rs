//! Changes to a run without a keeper: its checkpoints, its rung. Whoever makes them holds the keeper's lock,
//! and acts as the keeper for that moment.

use super::author::{Author, Process};
use super::failure::KeeperError;
use super::lifeline::Lifetime;
use super::perform::ENDED_BY_SIGNAL;
use super::recorder::{Recorder, describe_replacement};
use super::retention::{self, KeptError};
use super::sentences::grouped;
use super::set_aside;
use super::status_snapshot::{blank_status, policy_limits};
use super::stored_state::FIRST_LOSSES;
use crate::format::counted;
use crate::outlook::request::Refusal;
use crate::policy::Policy;
use crate::policy::event::Effect;
use crate::policy::ledger::Ledger;
use crate::protocol::control::{JournalKind, RunState, Status, Target};
use crate::protocol::exit_code::{CONFIG, NEEDS_PERSON, STOPPED};
use crate::protocol::worker::Level;
use crate::store::adopted;
use crate::store::checkpoint::{self, aside};
use crate::store::identity::Identity;
use crate::store::lock::Lock;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use crate::store::{owners, reserve};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// A temporary keeper.
pub struct OfflineKeeper {
    run_dir: RunDir,
    recorder: Recorder,
    _lock: Lock,
}

/// Why a run does not go on with another rung.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    /// It cannot.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its store cannot be written.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Deleted checkpoints, and those left to the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Checkpoints that retention does not keep.
    pub superfluous: Vec<u64>,
    /// Checkpoints that had been set aside.
    pub aside: Vec<PathBuf>,
    /// Damaged checkpoints: they do not count for retention, and were left in place.
    pub damaged: Vec<String>,
}

/// The end of a run without a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfflineEnd {
    /// You ended it.
    Stopped,
    /// A signal ended it, such as a machine shutdown sends.
    Signalled(Lifetime),
    /// The run file is unusable.
    Config,
    /// The keeper dies repeatedly, or cannot run.
    NeedsPerson,
}

impl OfflineEnd {
    /// Returns the exit code of the run.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Stopped | Self::Signalled(_) => STOPPED,
            Self::NeedsPerson => NEEDS_PERSON,
            Self::Config => CONFIG,
        }
    }
}

/// Writes down how the run ended, in place of a keeper.
///
/// # Errors
/// Returns an error when a keeper is alive after all, or the store is unusable.
pub fn conclude_run(run_dir: &RunDir, verdict: OfflineEnd, why: &str) -> Result<(), KeeperError> {
    let lock = take_lock(run_dir)?;
    let mut written = write_end(run_dir, verdict, why);
    if written.is_err() {
        // The disk may be full, and the dead keeper's reserve still be held.
        reserve::release(run_dir);
        written = write_end(run_dir, verdict, why);
    }
    lock.release();
    written
}

fn write_end(run_dir: &RunDir, verdict: OfflineEnd, why: &str) -> Result<(), KeeperError> {
    let (mut store, replaced) = Writer::open_or_replace(&run_dir.file("run.db"))?;
    // The run file may be what is wrong.
    let status = if let Some(status) = store.fact::<Status>("status")? {
        status
    } else {
        let run = run_dir.run()?;
        blank_status(run_dir, &run, run.first_rung())
    };
    let mut recorder = Recorder::new(store, status)?;
    if let Some(replaced) = replaced {
        recorder.note(Level::Error, JournalKind::Health, describe_replacement(&replaced));
    }
    let (level, state, words) = match verdict {
        OfflineEnd::Stopped | OfflineEnd::Signalled(_) => (Level::Warn, RunState::Stopped, ""),
        OfflineEnd::Config => (Level::Error, RunState::Failed, "failed: "),
        OfflineEnd::NeedsPerson => (Level::Error, RunState::NeedsPerson, "needs attention: "),
    };
    recorder.note(level, JournalKind::Run, format!("{words}{why}"));
    let signalled = match verdict {
        // A paused run waits for you, whatever ends its keeper.
        OfflineEnd::Signalled(Lifetime::Detached) => recorder.status.state != RunState::Paused,
        OfflineEnd::Signalled(Lifetime::Bound) => true,
        _ => false,
    };
    recorder.put_fact(ENDED_BY_SIGNAL, &signalled.then(|| Identity::own().boot));
    recorder.status.state = state;
    recorder.status.why = Some(why.to_owned());
    recorder.put_fact("exit_code", &verdict.exit_code());
    recorder.mark_changed();
    Ok(recorder.try_flush()?)
}

fn take_lock(run_dir: &RunDir) -> Result<Lock, KeeperError> {
    run_dir.refuse_links()?;
    let file = run_dir.file("keeper.lock").display().to_string();
    owners::become_keeper(run_dir).map_err(|source| KeeperError::Lock { file, source })
}

impl OfflineKeeper {
    /// Takes the keeper's place, and imports the checkpoints that the store does not know yet.
    ///
    /// # Errors
    /// Returns an error when a keeper or a worker of the run is alive, or the store is unusable.
    pub fn step_in(run_dir: &RunDir) -> Result<Self, KeeperError> {
        let lock = take_lock(run_dir)?;
        if let Some(worker) = owners::worker(run_dir) {
            let source = io::Error::other(format!("worker {} is still ending; try again in a moment", worker.pid));
            return Err(KeeperError::Io { what: run_dir.name(), source });
        }
        let (store, replaced) = Writer::open_or_replace(&run_dir.file("run.db"))?;
        let run = run_dir.run()?;
        let mut recorder = Recorder::new(store, blank_status(run_dir, &run, run.first_rung()))?;
        recorder.rank_by(&run, recorder.status.rung.min(run.rungs.len() - 1));
        if let Some(replaced) = replaced {
            recorder.note(Level::Error, JournalKind::Health, describe_replacement(&replaced));
        }
        recorder.import_checkpoints(run_dir)?;
        Ok(Self { run_dir: run_dir.clone(), recorder, _lock: lock })
    }

    /// Deletes the checkpoints that retention would not keep, and those set aside. Verifies every byte
    /// first: a damaged checkpoint must not displace a good one.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn prune(&mut self) -> Result<Pruned, KeeperError> {
        let mut pruned = Pruned::default();
        let mut damaged = BTreeSet::new();
        for entry in checkpoint::list(self.run_dir.path()) {
            if let Err(error) = checkpoint::verify(&entry.path) {
                damaged.insert(entry.step);
                pruned.damaged.push(error.to_string());
            }
        }
        for adopted in adopted::list(self.run_dir.path()) {
            if let Err(error) = adopted.verify_every_byte() {
                damaged.insert(adopted.step);
                pruned.damaged.push(error.to_string());
            }
        }
        let run = self.run_dir.run()?;
        let rung = self.recorder.status.rung.min(run.rungs.len() - 1);
        let ledger = Reader::open(&self.run_dir).ok().and_then(|store| store.fact::<Ledger>("ledger"));
        let back = ledger.and_then(|ledger| ledger.proposal?.way_back());
        let target = back.and_then(|back| self.recorder.checkpoint_for(back.before, back.steps));
        let spared: BTreeSet<u64> = damaged.into_iter().chain(target.map(|(step, _)| step)).collect();
        let steps = self.recorder.retire_superfluous(&retention::Rules::of_rung(&run, rung), &spared);
        pruned.superfluous = self.delete(steps);
        pruned.aside = aside::delete_all(self.run_dir.path());
        pruned.aside.extend(adopted::delete_copies_aside(self.run_dir.path()));
        let text = format!(
            "pruned by {}: deleted {} beyond retention and {} set aside",
            Author::Command(Process::own()),
            counted(pruned.superfluous.len() as u64, "checkpoint"),
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
            match retention::delete(self.run_dir.path(), step) {
                Ok(()) => gone.push(step),
                Err(error) => self.recorder.note(Level::Error, JournalKind::Checkpoint, error.to_string()),
            }
        }
        gone
    }

    /// Makes the checkpoint of `step` the newest; one that was set aside is put back first. Newer ones are set aside,
    /// newest first: after a crash on the way the run is merely not far enough back.
    ///
    /// # Errors
    /// Returns an error when a checkpoint cannot be moved, or that of `step` is missing, changed or damaged.
    pub fn go_back_to(&mut self, step: u64) -> Result<Vec<PathBuf>, KeptError> {
        let dir = self.run_dir.path();
        let is_there =
            checkpoint::list(dir).iter().any(|entry| entry.step == step) || adopted::find(dir, step).is_some();
        if !is_there {
            set_aside::put_back(dir, step)?;
            let text = format!("checkpoint {}, which had been set aside, was put back", grouped(step));
            self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        }
        // The command may have written newer ones that no list names yet.
        adopted::record_going_back(dir, step).map_err(|source| KeptError::Adopted { step, source })?;
        let containers = checkpoint::list(dir).into_iter().map(|entry| entry.step);
        let adopted = adopted::list(dir).into_iter().map(|adopted| adopted.step);
        let newer: BTreeSet<u64> = containers.chain(adopted).filter(|there| *there > step).collect();
        let paths = newer.iter().rev().map(|newer| set_aside::set_aside(dir, *newer)).collect();
        self.recorder.import_checkpoints(&self.run_dir)?;
        self.recorder.give_up_above(step);
        let by = Author::Command(Process::own());
        let text = format!("back to the checkpoint of step {}, requested by {by}", grouped(step));
        self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        self.recorder.status.durable_step = Some(step);
        self.recorder.mark_changed();
        self.recorder.flush();
        paths
    }

    /// Returns the policy of a run that goes on with another rung, and its journal lines; none if it is on that rung.
    ///
    /// # Errors
    /// Returns an error when the run cannot go on with that rung.
    pub fn choose_rung(&self, to: &Target) -> Result<Option<(Policy, Vec<Effect>)>, ChoiceError> {
        let run = self.run_dir.run().map_err(KeeperError::from)?;
        let status = &self.recorder.status;
        let (step, clock) = (status.durable_step.unwrap_or(status.step), status.samples);
        let rung = status.rung.min(run.rungs.len() - 1);
        let stored = Reader::open(&self.run_dir).ok().and_then(|store| store.fact::<Ledger>("ledger"));
        let ledger = stored.unwrap_or_else(|| Ledger::begin_at(rung, &run.plan, clock, step));
        let mut policy = Policy::new(policy_limits(&run, &self.run_dir), rung, ledger, None);
        match policy.choose_rung(to, step, clock) {
            Err(Refusal::SameRung(_)) => Ok(None),
            chosen => Ok(Some((policy, chosen?))),
        }
    }

    /// Makes the run go on with another rung. Does nothing if it is on that rung already.
    ///
    /// # Errors
    /// Returns an error when the run cannot go on with that rung, or the store is unusable.
    pub fn shift(&mut self, to: &Target) -> Result<(), ChoiceError> {
        let Some((policy, effects)) = self.choose_rung(to)? else { return Ok(()) };
        for effect in effects {
            match effect {
                Effect::Journal(level, kind, text) => self.recorder.note(level, kind, text),
                Effect::Asked(level, kind, text) => {
                    let by = Author::Command(Process::own());
                    self.recorder.note(level, kind, format!("{text}, requested by {by}"));
                }
                _ => {}
            }
        }
        self.recorder.put_fact("rung", &policy.rung());
        self.recorder.put_fact("ledger", policy.ledger());
        let name = self.run_dir.run().map_err(KeeperError::from)?.rungs[policy.rung()].name.clone();
        let status = &mut self.recorder.status;
        (status.rung, status.rung_name) = (policy.rung(), name);
        status.shifts += 1;
        self.recorder.mark_changed();
        Ok(self.recorder.try_flush().map_err(KeeperError::from)?)
    }

    /// Records that the run begins from a checkpoint of `base`: jumps of the loss are measured against its first losses.
    pub fn begin_from(&mut self, base: &RunDir, text: String) {
        let losses = Reader::open(base).ok().and_then(|store| {
            let ledger = store.fact::<Ledger>("ledger");
            ledger.map(|ledger| ledger.first_losses).or_else(|| store.fact(FIRST_LOSSES))
        });
        if let Some(losses) = losses {
            self.recorder.put_fact(FIRST_LOSSES, &losses);
        }
        self.note(text);
    }

    /// Writes a journal line.
    pub fn note(&mut self, text: String) {
        self.recorder.note(Level::Info, JournalKind::Checkpoint, text);
        self.recorder.flush();
    }
}
