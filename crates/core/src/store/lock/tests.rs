use super::{Identity, Lock, LockError, Whereabouts, living_owner, living_record, open_log, owner_guarding};
use crate::untrusted::poll::poll_within;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

/// Takes a lock that was released: a child that another test has just forked may hold it for a moment.
fn take_soon(path: &Path, guarded: &Path) -> Lock {
    let taken =
        poll_within(Duration::from_secs(10), Duration::from_millis(10), || match Lock::take_guarding(path, guarded) {
            Err(LockError::Held(_)) => None,
            taken => Some(taken),
        });
    taken.unwrap().unwrap()
}

#[test]
fn a_deleted_lock_file_still_excludes_others_and_is_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keeper.lock");
    let mut lock = Lock::take_guarding(&path, dir.path()).unwrap();
    assert_eq!(lock.whereabouts(), Whereabouts::InPlace);
    assert!(!lock.restore().unwrap());
    fs::remove_file(&path).unwrap();
    assert_eq!(lock.whereabouts(), Whereabouts::Gone);
    let refused = Lock::take_guarding(&path, dir.path()).unwrap_err();
    assert!(matches!(refused, LockError::Held(Some(owner)) if owner == Identity::own()), "named without its file");
    assert!(!path.exists(), "the one that was refused leaves nothing behind");
    assert_eq!(owner_guarding(&path, dir.path()), Some(Identity::own()));
    assert!(lock.restore().unwrap());
    assert_eq!(living_owner(&path), Some(Identity::own()));
    drop(lock);
    assert_eq!(owner_guarding(&path, &dir.path().join("nothing")), Some(Identity::own()), "the process still lives");
    take_soon(&path, dir.path()).release();
    assert_eq!(owner_guarding(&path, dir.path()), None, "the process lives on, but released the lock");
}

#[test]
fn links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mine) = (dir.path().join("keeper.lock"), dir.path().join(".bashrc"));
    fs::write(&mine, "alias ls=ls\n").unwrap();
    symlink(&mine, &path).unwrap();
    assert!(matches!(Lock::take(&path), Err(LockError::NotAFile)));
    assert!(matches!(Lock::take_guarding(&path, dir.path()), Err(LockError::NotAFile)));
    assert!(open_log(&path).unwrap_err().to_string().contains("keeper.lock"));
    assert_eq!(living_record(&path), None);
    assert_eq!(fs::read_to_string(&mine).unwrap(), "alias ls=ls\n");
}

#[test]
fn the_content_of_a_lock_can_change_and_older_formats_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keeper.lock");
    let mut lock = Lock::take(&path).unwrap();
    lock.update(|record| record.socket = Some("/run/user/1000/downshift/a.sock".into())).unwrap();
    assert_eq!(living_record(&path).as_ref(), Some(lock.record()));
    lock.update(|record| record.socket = None).unwrap();
    assert_eq!(living_record(&path).as_ref(), Some(lock.record()));
    fs::write(&path, serde_json::to_string(&Identity::own()).unwrap()).unwrap();
    assert_eq!(living_record(&path).map(|record| record.opening), Some(false));
}

#[test]
fn a_lock_that_is_held_names_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keeper.lock");
    let lock = Lock::take(&path).unwrap();
    let refused = Lock::take(&path).unwrap_err();
    assert!(matches!(refused, LockError::Held(Some(owner)) if owner == Identity::own()));
    assert_eq!(living_owner(&path), Some(Identity::own()));
    drop(lock);
    assert!(Lock::take(&path).is_ok());
}

#[test]
fn a_pid_used_again_is_another_process() {
    let mut other = Identity::own();
    assert!(other.is_alive());
    other.started += 1;
    assert!(!other.is_alive());
    let other = Identity { boot: "another boot".to_owned(), ..Identity::own() };
    assert!(!other.is_alive());
}
