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
        let mut all: Vec<_> = self.registry.living().into_iter().map(|claim| (claim.run_name(), claim.stage)).collect();
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
    assert_eq!(told(&mut third, &wish(0)).unwrap(), "cuda:0 is about to be free; number 2 in the queue, after second");
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
        matches!(refused("holder"), MoveError::Holds { .. }) && matches!(refused("nobody"), MoveError::NotWaiting(_))
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
