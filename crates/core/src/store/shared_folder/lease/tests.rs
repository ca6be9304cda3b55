use super::{
    FOLDER, Host, Lease, create, create_exclusively, elsewhere, newest, numbers, place, read, supersede, take,
};
use crate::process_tree::{TOKEN_VARIABLE, new_token};
use crate::store::identity::Identity;
use crate::store::owners;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

/// A lease of a process on another host.
pub fn foreign(number: u64) -> Lease {
    let owner = Identity { pid: 4711, boot: "another boot".to_owned(), started: 1 };
    let host = Host { name: "node7".to_owned(), machine: "m7".to_owned() };
    Lease { owner, host, job: None, ..Lease::own(number) }
}

/// Makes a lease of another host in a run directory.
pub fn plant(run: &Path, lease: &Lease) {
    fs::create_dir_all(run.join(FOLDER)).unwrap();
    assert!(create(&run.join(FOLDER), lease).unwrap());
}

#[test]
fn a_lease_is_given_back_and_taken_again_under_the_next_number() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(newest(dir.path()).unwrap(), None);
    for number in 1..4 {
        let held = take(dir.path()).unwrap().unwrap();
        held.renewal().renew().unwrap().unwrap();
        let now = newest(dir.path()).unwrap().unwrap();
        assert_eq!((now.number, now.beat, now.end.as_deref(), now.is_elsewhere()), (number, 1, None, false));
        let renewal = held.renewal();
        drop(held);
        renewal.renew().unwrap().unwrap();
        let now = newest(dir.path()).unwrap().unwrap();
        assert_eq!((now.beat, now.end.as_deref()), (1, Some("given back")), "a late beat does not bring it back");
        assert_eq!(numbers(&dir.path().join(FOLDER)).unwrap(), [number], "nothing piles up");
    }
}

#[test]
fn the_lease_of_another_host_is_refused_until_it_is_superseded() {
    let dir = tempfile::tempdir().unwrap();
    let other = foreign(3);
    plant(dir.path(), &other);
    assert_eq!(elsewhere(dir.path()), Some(other.clone()));
    let refused = take(dir.path()).unwrap().unwrap_err();
    assert!(refused.holder().starts_with("process 4711 on host node7, since 2"), "{}", refused.holder());
    assert!(supersede(dir.path(), &other, "its job has ended").unwrap());
    assert!(!supersede(dir.path(), &other, "by hand").unwrap(), "one process ends a lease");
    assert_eq!(elsewhere(dir.path()), None);
    assert!(take(dir.path()).unwrap().is_ok());
}

#[test]
fn a_holder_whose_run_was_taken_over_learns_it_at_its_next_beat() {
    let dir = tempfile::tempdir().unwrap();
    let held = take(dir.path()).unwrap().unwrap();
    plant(dir.path(), &foreign(2));
    assert_eq!(held.renewal().renew().unwrap().unwrap_err().host.name, "node7");
    drop(held);
    assert_eq!(elsewhere(dir.path()).unwrap().number, 2, "what it gives back is not the run");
}

#[test]
fn of_many_that_take_a_lease_at_once_each_number_has_one_holder() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(FOLDER)).unwrap();
    let (threads, rounds) = (4, 20);
    for round in 1..=rounds {
        let barrier = Barrier::new(threads);
        let made: usize = std::thread::scope(|scope| {
            let race = |pid: u32| {
                let (barrier, folder) = (&barrier, dir.path().join(FOLDER));
                let mut lease = foreign(round);
                lease.owner.pid = pid;
                move || {
                    barrier.wait();
                    usize::from(create(&folder, &lease).unwrap())
                }
            };
            let racing: Vec<_> = (0..threads as u32).map(|pid| scope.spawn(race(pid))).collect();
            racing.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(made, 1, "round {round}");
    }
    // A process that was suspended between looking and making its file comes too late.
    fs::remove_file(place(&dir.path().join(FOLDER), 5)).unwrap();
    assert!(!create(&dir.path().join(FOLDER), &foreign(5)).unwrap());
    assert!(!place(&dir.path().join(FOLDER), 5).exists());
}

#[test]
fn a_lease_that_cannot_be_read_belongs_to_an_unknown_holder_until_it_is_superseded() {
    let dir = tempfile::tempdir().unwrap();
    let file = |number: u64| place(&dir.path().join(FOLDER), number);
    let held = take(dir.path()).unwrap().unwrap();
    fs::write(file(2), "").unwrap();
    let unknown = newest(dir.path()).unwrap().unwrap();
    assert!(unknown.is_elsewhere() && unknown.holder().contains("2.json: not a lease"), "{}", unknown.holder());
    assert!(held.renewal().renew().unwrap().unwrap_err().is_elsewhere(), "the run is lost, whoever has it");
    assert_eq!(take(dir.path()).unwrap().unwrap_err().number, 2);
    assert_eq!(elsewhere(dir.path()), Some(unknown.clone()), "it stands still");
    fs::write(file(2), "{").unwrap();
    assert_ne!(elsewhere(dir.path()), Some(unknown.clone()), "it moves");
    assert!(supersede(dir.path(), &unknown, "taken over by hand").unwrap());
    assert_eq!(elsewhere(dir.path()), None);
    drop(take(dir.path()).unwrap().unwrap());

    fs::remove_dir_all(dir.path().join(FOLDER)).unwrap();
    std::os::unix::fs::symlink("/tmp", dir.path().join(FOLDER)).unwrap();
    assert!(take(dir.path()).is_err(), "a link leads elsewhere");
    assert!(elsewhere(dir.path()).unwrap().holder().contains("leases: "), "nobody knows");
}

#[test]
fn a_lease_is_not_given_back_while_a_worker_or_its_command_lives() {
    let dir = tempfile::tempdir().unwrap();
    let end = || newest(dir.path()).unwrap().unwrap().end;
    let worker = owners::become_worker(dir.path()).unwrap();
    drop(take(dir.path()).unwrap().unwrap());
    assert_eq!(end(), None, "the worker lives");
    worker.release();
    drop(take(dir.path()).unwrap().unwrap());
    assert_eq!(end().as_deref(), Some("given back"));

    let token = new_token();
    let mut command = Command::new("sleep").arg("1000").env(TOKEN_VARIABLE, &token).spawn().unwrap();
    let mut harness = owners::become_worker(dir.path()).unwrap();
    harness.update(|record| (record.owner.started, record.token) = (0, Some(token))).unwrap();
    drop(harness);
    drop(take(dir.path()).unwrap().unwrap());
    let left = end();
    command.kill().unwrap();
    command.wait().unwrap();
    assert_eq!(left, None, "the harness is dead, its command lives");
    drop(take(dir.path()).unwrap().unwrap());
    assert_eq!(end().as_deref(), Some("given back"));
}

#[test]
fn the_living_holder_of_a_lease_is_refused_where_locks_do_not_show_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    plant(dir.path(), &Lease { owner: Identity::of(other.id()).unwrap(), ..Lease::own(1) });
    let refused = take(dir.path()).unwrap().unwrap_err();
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!((refused.owner.pid, refused.is_elsewhere()), (other.id(), false));
    assert!(take(dir.path()).unwrap().is_ok());
}

#[test]
fn a_deleted_folder_of_leases_is_made_again_at_the_next_beat() {
    let dir = tempfile::tempdir().unwrap();
    let held = take(dir.path()).unwrap().unwrap();
    fs::remove_dir_all(dir.path().join(FOLDER)).unwrap();
    held.renewal().renew().unwrap().unwrap();
    assert_eq!(newest(dir.path()).unwrap().unwrap().beat, 1);
}

#[test]
fn without_links_a_number_has_one_holder_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = place(dir.path(), 1);
    assert!(create_exclusively(&path, &foreign(1)).unwrap());
    assert!(!create_exclusively(&path, &Lease::own(1)).unwrap());
    assert_eq!(read(dir.path(), 1).unwrap().host.name, "node7");
}
