//! The claims on devices of all living runs of this user on this machine, whatever their runs directory.
//!
//! ```text
//! ~/.local/state/downshift/claims/lock              held while a run decides
//!                                /order.json        the order of the queue, which outlives a boot
//!                                /BOOT/RUN.lock     the claim of one run, locked by its keeper
//! ```
//! A claim counts while its run has a keeper, a parent that restarts the keeper, or a worker. So it survives the death
//! of a keeper, and a stale claim blocks no run.

mod order;

use super::identity::Identity;
use super::lock::{self, Lock, LockError, Record};
use super::owners;
use super::run_dir::RunDir;
use super::user_folder::{self, user_folder};
use crate::protocol::claim::{Claim, ClaimRequest, Devices, Move, Place, Stage, Wait, Waiting};
use crate::untrusted::poll::poll_within;
use order::Order;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for another process that decides; it may be suspended.
const DECIDING: Duration = Duration::from_secs(1);
/// Interval between attempts to decide.
const RETRY: Duration = Duration::from_millis(5);

/// The claims of this user's runs.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
    /// The claims made since the machine was booted; the folder may be shared by several machines.
    claims: PathBuf,
}

/// The place of a living run in the registry.
#[derive(Debug)]
pub struct Membership {
    registry: Registry,
    path: PathBuf,
    lock: Lock,
    claim: Claim,
}

/// Reason why a run has no other place in the queue.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It does not wait.
    #[error("{0} does not wait in the queue; `downshift queue` lists the runs that do")]
    NotWaiting(String),
    /// It has its devices.
    #[error("{run} has its turn already; `{pause}` frees its device for the next run")]
    Holds {
        /// Its name.
        run: String,
        /// The command that pauses it.
        pause: String,
    },
    /// The order cannot be stored.
    #[error("the order of the queue cannot be stored: {0}")]
    Io(#[from] io::Error),
}

impl Registry {
    /// Returns the registry of this user; none if the user has no folder for state.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        Some(Self::in_folder(&user_folder("XDG_STATE_HOME", ".local/state")?.join("claims")))
    }

    fn in_folder(root: &Path) -> Self {
        Self { root: root.to_owned(), claims: root.join(Identity::own().boot) }
    }

    /// Returns the claims of all living runs.
    #[must_use]
    pub fn living(&self) -> Vec<Claim> {
        let _alone = self.decide_alone();
        self.living_except(None, &Order::read(&self.root))
    }

    /// Puts runs that are about to start at the end of the queue, in this order and with none in between.
    ///
    /// # Errors
    /// Returns an error when the order cannot be stored.
    pub fn enqueue(&self, runs: &[RunDir]) -> io::Result<()> {
        user_folder::create(&self.root)?;
        let _alone = self.decide_alone();
        let mut order = Order::read(&self.root);
        for run in runs {
            order.append(run.path());
        }
        order.write()
    }

    /// Moves a waiting run among those that wait for one of the same devices. Returns its new place, from 1.
    ///
    /// # Errors
    /// Returns an error when the run does not wait, or the order cannot be stored.
    pub fn move_run(&self, run: &RunDir, to: Move) -> Result<usize, MoveError> {
        let _alone = self.decide_alone();
        let mut order = Order::read(&self.root);
        let mut waiting = self.living_except(None, &order);
        check_waits(run, &waiting)?;
        waiting.retain(is_waiting);
        let own = waiting.iter().position(|claim| claim.run_dir == run.path());
        let own = own.map(|own| waiting.swap_remove(own)).ok_or_else(|| MoveError::NotWaiting(run.name()))?;
        // Held runs let others pass, so they count for no place.
        waiting.retain(|claim| claim.stage != Stage::Rests && claim.devices.overlap(&own.devices));
        waiting.sort_by_key(|claim| claim.ticket);
        let ahead = waiting.iter().filter(|claim| claim.ticket < own.ticket).count();
        let ahead = to.new_ahead(ahead, waiting.len());
        let (before, after) = (waiting.get(ahead), ahead.checked_sub(1).and_then(|last| waiting.get(last)));
        order.put_between(run.path(), after.map(|claim| &*claim.run_dir), before.map(|claim| &*claim.run_dir));
        order.write()?;
        Ok(ahead + 1)
    }

    /// Returns the run directories in the order of the queue, those that hold their devices first. It may have runs that a
    /// reboot ended, and others that are gone.
    #[must_use]
    pub fn order(&self) -> Vec<PathBuf> {
        Order::read(&self.root).into_runs()
    }

    /// Adds a run. Its keeper calls this; the claim of an earlier keeper of the run stays in force.
    ///
    /// # Errors
    /// Returns an error when the run has another keeper, or the claim cannot be stored.
    pub fn join(&self, run: &RunDir) -> Result<Membership, LockError> {
        user_folder::create(&self.root)?;
        let _alone = self.decide_alone();
        // The last run to leave deletes it.
        user_folder::create(&self.claims)?;
        let hash = blake3::hash(run.path().as_os_str().as_encoded_bytes());
        let path = self.claims.join(format!("{}.lock", &hash.to_hex()[..16]));
        let earlier = lock::record(&path).and_then(|record| record.claim).filter(|claim| claim.run_dir == run.path());
        let lock = Lock::take(&path)?;
        let idle = || Claim { run_dir: run.path().to_owned(), devices: Devices::Cpu, stage: Stage::Rests, ticket: 0 };
        let mut member = Membership { registry: self.clone(), path, lock, claim: earlier.unwrap_or_else(idle) };
        member.write()?;
        Ok(member)
    }

    /// Waits for its turn to decide, so that no two runs find the same device free. On a file system without locks, or
    /// while another process is suspended in its decision, two decisions may overlap; each is short.
    fn decide_alone(&self) -> Option<Lock> {
        let path = self.root.join("lock");
        let taken = poll_within(DECIDING, RETRY, || match Lock::take(&path) {
            Err(LockError::Held(_)) => None,
            taken => Some(taken.ok()),
        });
        taken.flatten()
    }

    /// Returns the claims of all living runs but the one in this file. Deletes those of dead runs.
    fn living_except(&self, own: Option<&Path>, order: &Order) -> Vec<Claim> {
        let entries = fs::read_dir(&self.claims).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| Some(path.as_path()) != own);
        files
            .filter_map(|path| {
                let record = lock::record(&path)?;
                let claim = record.claim.clone().filter(|claim| is_alive(&record, claim));
                if claim.is_none() {
                    fs::remove_file(&path).ok();
                }
                claim.map(|claim| Claim { ticket: order.ticket(&claim.run_dir), ..claim })
            })
            .collect()
    }
}

/// Reports whether a run waits for its devices, or is held.
fn is_waiting(claim: &Claim) -> bool {
    match claim.stage {
        Stage::Holds => false,
        Stage::Queued | Stage::Later => true,
        Stage::Rests => claim.ticket > 0,
    }
}

/// Checks that a run waits in the queue; `all`: the claims of all living runs.
///
/// # Errors
/// Returns an error when it does not.
pub fn check_waits(run: &RunDir, all: &[Claim]) -> Result<Place, MoveError> {
    let holds = |claim: &Claim| claim.run_dir == run.path() && claim.stage == Stage::Holds;
    place_of(run.path(), all).ok_or_else(|| {
        if all.iter().any(holds) {
            return MoveError::Holds { run: run.name(), pause: run.command("pause") };
        }
        MoveError::NotWaiting(run.name())
    })
}

/// Returns the place of a run in the queue, if it waits; `all`: the claims of all living runs.
#[must_use]
pub fn place_of(run: &Path, all: &[Claim]) -> Option<Place> {
    let own = all.iter().find(|claim| claim.run_dir == run).filter(|claim| is_waiting(claim))?;
    let is_ahead = |other: &&Claim| {
        other.stage == Stage::Queued && other.ticket < own.ticket && other.devices.overlap(&own.devices)
    };
    let wait = match own.stage {
        Stage::Rests => Wait::Held,
        Stage::Later => Wait::Later,
        Stage::Queued | Stage::Holds => Wait::Number(1 + all.iter().filter(is_ahead).count()),
    };
    Some(Place { rank: own.ticket, wait })
}

fn is_alive(record: &Record, claim: &Claim) -> bool {
    let has_process = |run: &RunDir| {
        owners::keeper(run).is_some() || owners::parent_record(run).is_some() || owners::worker(run).is_some()
    };
    record.owner.is_alive() || RunDir::open(&claim.run_dir).is_ok_and(|run| has_process(&run))
}

impl Membership {
    /// Reports whether the run has given its devices up.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.claim.stage == Stage::Rests
    }

    /// Claims the devices, or a place in their queue. `first` is a run that must end before. Returns what the run waits
    /// for; none if it holds the devices now.
    ///
    /// # Errors
    /// Returns an error when the claim cannot be stored; nothing has changed then.
    pub fn claim(&mut self, request: &ClaimRequest, first: Option<String>) -> Result<Option<Waiting>, LockError> {
        let _alone = self.registry.decide_alone();
        let before = self.claim.clone();
        let mut order = Order::read(&self.registry.root);
        order.append(&self.claim.run_dir);
        let others = self.registry.living_except(Some(&self.path), &order);
        if self.claim.devices != request.devices {
            (self.claim.devices, self.claim.stage) = (request.devices.clone(), Stage::Rests);
        }
        self.claim.ticket = order.ticket(&self.claim.run_dir);
        let waiting = match first {
            Some(name) => Some(Waiting::Run(name)),
            None => self.claim.obstacle(&others).filter(|_| !request.another),
        };
        self.claim.stage = match &waiting {
            None => Stage::Holds,
            Some(Waiting::Run(_)) => Stage::Later,
            Some(Waiting::Devices { .. }) => Stage::Queued,
        };
        if self.claim.stage == Stage::Holds {
            // After a reboot, it comes before those that waited for it.
            order.put_first(&self.claim.run_dir);
        }
        let stored = order.write().map_err(LockError::from).and_then(|()| self.write());
        stored.inspect_err(|_| self.claim = before)?;
        Ok(waiting)
    }

    /// Gives the devices up, but stays in the registry. A run that waited for them keeps its place.
    ///
    /// # Errors
    /// Returns an error when this cannot be stored.
    pub fn rest(&mut self) -> Result<(), LockError> {
        let _alone = self.registry.decide_alone();
        if self.claim.stage == Stage::Holds {
            self.give_up_place()?;
        }
        self.claim.stage = Stage::Rests;
        self.write()
    }

    fn give_up_place(&self) -> io::Result<()> {
        let mut order = Order::read(&self.registry.root);
        order.remove(&self.claim.run_dir);
        order.write()
    }

    /// Leaves the registry. A run that `returns` after a reboot keeps its place in the queue.
    pub fn leave(self, returns: bool) {
        let _alone = self.registry.decide_alone();
        if !returns {
            // A place that is left behind holds up no run.
            self.give_up_place().ok();
        }
        fs::remove_file(&self.path).ok();
        // Fails while other runs have claims.
        fs::remove_dir(&self.registry.claims).ok();
    }

    /// Stores the claim, in a new file if the first was deleted.
    fn write(&mut self) -> Result<(), LockError> {
        let claim = Some(self.claim.clone());
        if self.lock.record().claim != claim {
            self.lock.update(|record| record.claim = claim)?;
        }
        self.lock.restore().map(drop)
    }
}

#[cfg(test)]
mod tests;
