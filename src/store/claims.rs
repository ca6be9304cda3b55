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
use order::Order;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

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
        let (path, begun) = (self.root.join("lock"), Instant::now());
        loop {
            match Lock::take(&path) {
                Ok(lock) => return Some(lock),
                Err(LockError::Held(_)) if begun.elapsed() < DECIDING => thread::sleep(RETRY),
                Err(_) => return None,
            }
        }
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
mod tests {
    use super::{Membership, MoveError, Registry, place_of};
    use crate::protocol::claim::{Card, ClaimRequest, Devices, Move, Stage, Wait};
    use crate::store::owners;
    use crate::store::run_dir::RunDir;
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use tempfile::TempDir;

    struct Place {
        folder: TempDir,
        registry: Registry,
    }

    impl Place {
        fn new() -> Self {
            let folder = TempDir::new().unwrap();
            let registry = Registry::in_folder(&folder.path().join("claims"));
            Self { folder, registry }
        }

        fn run(&self, name: &str) -> RunDir {
            let path = self.folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("run.yaml"), "").unwrap();
            RunDir::open(&path).unwrap()
        }

        fn join(&self, name: &str) -> Membership {
            self.registry.join(&self.run(name)).unwrap()
        }

        fn living(&self) -> Vec<(String, Stage)> {
            let mut all: Vec<_> =
                self.registry.living().into_iter().map(|claim| (claim.run_name(), claim.stage)).collect();
            all.sort_by(|one, other| one.0.cmp(&other.0));
            all
        }
    }

    fn wish(index: u32) -> ClaimRequest {
        let devices = Devices::Cards(vec![Card { index: Some(index), uuid: None }]);
        ClaimRequest { devices, ..ClaimRequest::default() }
    }

    fn told(member: &mut Membership, request: &ClaimRequest) -> Option<String> {
        member.claim(request, None).unwrap().map(|waiting| waiting.to_string())
    }

    #[test]
    fn a_card_goes_from_run_to_run_in_the_order_they_came() {
        let place = Place::new();
        let (mut first, mut second, mut third) = (place.join("first"), place.join("second"), place.join("third"));
        assert_eq!(told(&mut first, &wish(0)), None);
        assert_eq!(told(&mut second, &wish(0)).unwrap(), "first holds cuda:0; next in the queue");
        assert_eq!(told(&mut third, &wish(0)).unwrap(), "first holds cuda:0; number 2 in the queue, after second");
        assert_eq!(told(&mut place.join("elsewhere"), &wish(1)), None);
        first.rest().unwrap();
        assert_eq!(
            told(&mut third, &wish(0)).unwrap(),
            "cuda:0 is about to be free; number 2 in the queue, after second"
        );
        assert_eq!(told(&mut second, &wish(0)), None);
        // A run that comes back from a pause is last in the queue.
        assert_eq!(told(&mut first, &wish(0)).unwrap(), "second holds cuda:0; number 2 in the queue, after third");
        assert_eq!(told(&mut first, &ClaimRequest { another: true, ..wish(0) }), None);
        second.leave(false);
        assert_eq!(told(&mut third, &wish(0)).unwrap(), "first holds cuda:0; next in the queue");
        first.leave(false);
        assert_eq!(told(&mut third, &wish(0)), None);
    }

    #[test]
    fn a_run_that_starts_after_another_blocks_none_and_keeps_its_place() {
        let place = Place::new();
        let (mut first, mut patient, mut last) = (place.join("first"), place.join("patient"), place.join("last"));
        assert_eq!(told(&mut first, &wish(0)), None);
        let waiting = patient.claim(&wish(1), Some("first".to_owned())).unwrap().unwrap();
        assert_eq!(waiting.to_string(), "starts after first");
        assert_eq!(told(&mut last, &wish(1)), None, "its card is free meanwhile");
        last.rest().unwrap();
        let mut holder = place.join("holder");
        assert_eq!(told(&mut holder, &wish(1)), None);
        assert!(told(&mut last, &wish(1)).is_some());
        assert_eq!(told(&mut patient, &wish(1)).unwrap(), "holder holds cuda:1; next in the queue");
    }

    #[test]
    fn a_claim_outlives_its_keeper_while_the_run_has_a_process_and_no_longer() {
        let place = Place::new();
        let run = place.run("run");
        let parent = owners::become_parent(&run).unwrap();
        assert_eq!(told(&mut place.join("run"), &wish(0)), None);
        // The record of another, dead process, as a killed keeper leaves it.
        let dead = Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).unwrap();
        let file = fs::read_dir(&place.registry.claims).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        let forget =
            || fs::write(&file, text.replace(&format!("\"pid\":{}", std::process::id()), &format!("\"pid\":{dead}")));
        forget().unwrap();
        let mut other = place.join("other");
        assert!(told(&mut other, &wish(0)).is_some(), "its parent restarts the keeper");
        assert_eq!(told(&mut place.join("run"), &wish(0)), None, "the next keeper still holds it");
        forget().unwrap();
        parent.release();
        assert_eq!(told(&mut other, &wish(0)), None);
        assert_eq!(place.living(), [("other".to_owned(), Stage::Holds)]);
        other.leave(false);
        assert!(!place.registry.claims.exists() && !Path::new(&file).exists());
    }

    /// Returns the names of the waiting runs in their order, with their places.
    fn queue(place: &Place) -> Vec<(String, Wait)> {
        let all = place.registry.living();
        let mut waiting: Vec<_> =
            all.iter().filter_map(|claim| Some((place_of(&claim.run_dir, &all)?, claim.run_name()))).collect();
        waiting.sort_by_key(|(place, _)| place.rank);
        waiting.into_iter().map(|(place, name)| (name, place.wait)).collect()
    }

    #[test]
    fn a_waiting_run_moves_among_those_that_want_its_devices() {
        let place = Place::new();
        let mut holder = place.join("holder");
        assert_eq!(told(&mut holder, &wish(0)), None);
        let mut members: Vec<Membership> = ["a", "b", "c"].map(|name| place.join(name)).into();
        let mut elsewhere = place.join("elsewhere");
        place.registry.enqueue(&[place.run("a"), place.run("b"), place.run("elsewhere"), place.run("c")]).unwrap();
        let mut holder_of_one = place.join("one");
        assert_eq!(told(&mut holder_of_one, &wish(1)), None);
        assert!(told(&mut elsewhere, &wish(1)).is_some());
        // The order is that of the queue, not of the keepers.
        for member in members.iter_mut().rev() {
            assert!(told(member, &wish(0)).is_some());
        }
        let named = |list: &[(&str, usize)]| -> Vec<_> {
            list.iter().map(|(name, number)| ((*name).to_owned(), Wait::Number(*number))).collect()
        };
        assert_eq!(queue(&place), named(&[("a", 1), ("b", 2), ("elsewhere", 1), ("c", 3)]));
        let moved = |name: &str, to| place.registry.move_run(&place.run(name), to).unwrap();
        assert_eq!(moved("c", Move::Up), 2);
        assert_eq!(queue(&place), named(&[("a", 1), ("c", 2), ("b", 3), ("elsewhere", 1)]));
        assert_eq!((moved("b", Move::First), moved("a", Move::Last), moved("a", Move::Down)), (1, 3, 3));
        assert_eq!(queue(&place), named(&[("b", 1), ("c", 2), ("a", 3), ("elsewhere", 1)]));
        assert_eq!(moved("b", Move::To(2)), 2);
        let refused = |name: &str| place.registry.move_run(&place.run(name), Move::First).unwrap_err();
        assert!(
            matches!(refused("holder"), MoveError::Holds { .. })
                && matches!(refused("nobody"), MoveError::NotWaiting(_))
        );
        holder.leave(false);
        assert!(told(&mut members[0], &wish(0)).is_some() && told(&mut members[1], &wish(0)).is_some());
        assert_eq!(told(&mut members[2], &wish(0)), None, "c is first now");
    }

    #[test]
    fn a_held_run_keeps_its_place_and_lets_others_pass() {
        let place = Place::new();
        let (mut holder, mut held, mut last) = (place.join("holder"), place.join("held"), place.join("last"));
        assert_eq!(told(&mut holder, &wish(0)), None);
        assert!(told(&mut held, &wish(0)).is_some() && told(&mut last, &wish(0)).is_some());
        held.rest().unwrap();
        assert_eq!(queue(&place), [("held".to_owned(), Wait::Held), ("last".to_owned(), Wait::Number(1))]);
        assert_eq!(told(&mut last, &wish(0)).unwrap(), "holder holds cuda:0; next in the queue");
        assert_eq!(told(&mut held, &wish(0)).unwrap(), "holder holds cuda:0; next in the queue");
        held.rest().unwrap();
        assert_eq!(place.registry.move_run(&place.run("held"), Move::Last).unwrap(), 2);
        assert_eq!(told(&mut held, &wish(0)).unwrap(), "holder holds cuda:0; number 2 in the queue, after last");
    }

    #[test]
    fn the_order_outlives_the_runs_that_a_shutdown_ends() {
        let place = Place::new();
        let names = ["a", "b", "c"];
        let mut members: Vec<Membership> = names.map(|name| place.join(name)).into();
        for member in &mut members {
            told(member, &wish(0));
        }
        place.registry.move_run(&place.run("c"), Move::First).unwrap();
        for member in members {
            member.leave(true);
        }
        let order: Vec<_> = place.registry.order().iter().map(|path| crate::protocol::claim::run_name(path)).collect();
        assert_eq!(order, ["a", "c", "b"], "the one that held the card is first");
        let mut members: Vec<Membership> = names.map(|name| place.join(name)).into();
        for member in &mut members {
            told(member, &wish(0));
        }
        assert_eq!(told(&mut members[1], &wish(0)).unwrap(), "a holds cuda:0; number 2 in the queue, after c");
        for member in members {
            member.leave(false);
        }
        assert!(place.registry.order().is_empty());
    }

    #[test]
    fn a_deleted_claim_is_written_again() {
        let place = Place::new();
        let mut run = place.join("run");
        fs::remove_dir_all(&place.registry.claims).unwrap();
        fs::create_dir(&place.registry.claims).unwrap();
        assert_eq!(told(&mut run, &wish(0)), None);
        assert_eq!(place.living(), [("run".to_owned(), Stage::Holds)]);
    }

    #[test]
    fn two_runs_that_ask_at_once_never_both_get_the_card() {
        let place = Place::new();
        let members: Vec<Membership> = (0..8).map(|number| place.join(&format!("run-{number}"))).collect();
        let got: usize = std::thread::scope(|scope| {
            let asking = members.into_iter().map(|mut member| {
                scope.spawn(move || {
                    let granted = member.claim(&wish(0), None).unwrap().is_none();
                    (member, granted)
                })
            });
            let asked: Vec<_> = asking.collect();
            let answers: Vec<_> = asked.into_iter().map(|thread| thread.join().unwrap()).collect();
            answers.iter().filter(|(_, granted)| *granted).count()
        });
        assert_eq!(got, 1);
    }
}
