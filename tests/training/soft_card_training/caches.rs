//! The caches of compiled kernels and tuning decisions.

use super::card::{eight_steps, place_with_card};
use crate::helper::{Place, journal_says};
use std::fs;
use std::path::{Path, PathBuf};

/// Copies a folder, but for the locks of processes that use it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let entries = fs::read_dir(from).unwrap().flatten();
    for entry in entries.filter(|entry| entry.path().extension().is_none_or(|end| end != "lock")) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Gives the place a copy of its prepared caches, which the test may change.
fn own_caches(place: &mut Place) -> PathBuf {
    let (_, shared) = place.variables.iter().rfind(|(name, _)| *name == "XDG_CACHE_HOME").unwrap();
    let own = place.dir.path().join("own");
    copy(shared, &own);
    place.variables.push(("XDG_CACHE_HOME", own.clone()));
    own
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Reports whether a run in this place trains to its end.
fn finished(place: &Place) -> bool {
    place.succeed(&eight_steps());
    journal_says(&place.newest().unwrap(), "finished at step 8")
}

/// Trains two steps on a prepared rung and returns the number of kernels that the compiler was asked for.
fn kernels_compiled(place: &mut Place, sources: &str) -> usize {
    let folder = place.dir.path().join(sources);
    fs::create_dir(&folder).unwrap();
    place.variables.push(("SOFT_CARD_SOURCES", folder.clone()));
    place.succeed(&["run", "digits", "--rung", "plain", "--headless", "--device", "cuda", "--set", "training.steps=2"]);
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_prepared_rung_compiles_no_kernel() {
    let mut place = place_with_card();
    assert_eq!(kernels_compiled(&mut place, "prepared"), 0);
    // The control: only the tuning decisions are left.
    let caches = own_caches(&mut place);
    fs::remove_dir_all(caches.join("downshift/kernels")).unwrap();
    assert!(kernels_compiled(&mut place, "without") > 50);
}

#[test]
fn a_damaged_cache_costs_time_and_no_run() {
    let mut place = place_with_card();
    let caches = own_caches(&mut place);
    for file in files_below(&caches) {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes.truncate(middle);
        bytes.extend(b"\xff\x00garbage");
        fs::write(&file, bytes).unwrap();
    }
    assert!(finished(&place));
}

/// A driver loads no kernels of a later compiler.
#[test]
fn kernels_of_another_driver_are_not_used() {
    let mut place = place_with_card();
    let kernels = own_caches(&mut place).join("downshift/kernels");
    let older = ["SOFT_CARD_DRIVER", "SOFT_CARD_NVRTC"].map(|name| (name, PathBuf::from("12.4")));
    place.variables.extend(older);
    let words = [&eight_steps()[..], &["--set", "training.autotune=minimal"]].concat();
    place.succeed(&words);
    assert!(journal_says(&place.newest().unwrap(), "finished at step 8"));

    // The control: the same kernels under the older driver's name.
    let folders: Vec<PathBuf> = fs::read_dir(&kernels).unwrap().map(|entry| entry.unwrap().path()).collect();
    let of = |version: &str| folders.iter().find(|path| path.to_string_lossy().contains(version)).unwrap();
    fs::remove_dir_all(of("12.4")).unwrap();
    copy(of("12.9"), of("12.4"));
    assert_eq!(place.output(&words).status.code(), Some(4));
    assert!(journal_says(&place.newest().unwrap(), "UNSUPPORTED_PTX_VERSION"));
}

#[test]
fn a_cache_that_cannot_be_written_costs_time_and_no_run() {
    let mut place = place_with_card();
    let caches = own_caches(&mut place);
    // A file where a folder should be stops root too.
    let kernels = caches.join("downshift/kernels");
    fs::remove_dir_all(&kernels).unwrap();
    fs::write(&kernels, "").unwrap();
    assert!(finished(&place));
}
