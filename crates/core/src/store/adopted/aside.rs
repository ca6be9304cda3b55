//! Lists that were set aside, so that no start uses their checkpoints again.

use super::{AdoptError, Adopted, FOLDER, list, read_all, relative_path, remove_tree};
use crate::store::run_dir::write_whole;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Prefix of lists that were set aside.
const LIST: &str = "aside-step-";
/// Prefix of the copies that they name.
const COPY: &str = "aside-files-";

/// Returns the lists that were set aside: newest step first, and of one step the oldest first.
#[must_use]
pub fn list_aside(run_dir: &Path) -> Vec<Adopted> {
    read_all(run_dir, LIST)
}

/// Sets the list of a step aside, with its files if they are a copy. The command's own files stay where they are.
///
/// # Errors
/// Returns the system's error.
pub fn set_aside(run_dir: &Path, step: u64) -> io::Result<PathBuf> {
    let folder = run_dir.join(FOLDER);
    let from = run_dir.join(relative_path(step));
    let adopted = super::find(run_dir, step);
    let names = (1..1000).map(|count| format!("{step:09}-{count}"));
    let ending = adopted.as_ref().map_or("", |adopted| super::ending(&adopted.path)).to_owned();
    let is_free = |name: &String| {
        !folder.join(format!("{LIST}{name}.json")).exists() && !folder.join(format!("{COPY}{name}{ending}")).exists()
    };
    let name = names.into_iter().find(is_free).ok_or(io::ErrorKind::AlreadyExists)?;
    let to = folder.join(format!("{LIST}{name}.json"));
    fs::rename(from, &to)?;
    // The next checkpoint of this step is copied to the same place.
    if let Some(copy) = adopted.filter(|adopted| adopted.copy_of.is_some()) {
        let path = folder.join(format!("{COPY}{name}{ending}"));
        match fs::rename(&copy.path, &path) {
            Ok(()) => write_whole(&to, &serde_json::to_vec(&Adopted { path, ..copy })?)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(to)
}

/// Puts the list of a step back, if its files are still as they were. If this step was set aside more than once, the
/// last one counts.
///
/// # Errors
/// Returns an error that names the list or file that is missing or changed.
pub fn put_back(run_dir: &Path, step: u64) -> Result<(), AdoptError> {
    let folder = run_dir.join(FOLDER);
    let place = |count: u32| folder.join(format!("{LIST}{step:09}-{count}.json"));
    let missing = || AdoptError::Io { path: place(1), source: io::ErrorKind::NotFound.into() };
    let newest = (1..1000).rev().map(place).find(|list| list.exists()).ok_or_else(missing)?;
    let failed = |source: io::Error| AdoptError::Io { path: newest.clone(), source };
    let adopted = super::read(&newest).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    adopted.verify_every_byte()?;
    // A list at both places does no harm, one at neither would.
    super::write_list(run_dir, adopted)?;
    fs::remove_file(&newest).map_err(failed)
}

/// Returns the checkpoints that were set aside and are still there. A path that a newer list names is not among them.
#[must_use]
pub fn still_aside(run_dir: &Path) -> Vec<Adopted> {
    let mut seen: BTreeSet<PathBuf> = list(run_dir).into_iter().map(|adopted| adopted.path).collect();
    let mut there = list_aside(run_dir);
    there.retain(|adopted| adopted.path.exists() && seen.insert(adopted.path.clone()));
    there
}

/// Returns the copies that were set aside. Their lists stay, so that their originals are not adopted again.
#[must_use]
pub fn copies_aside(run_dir: &Path) -> Vec<PathBuf> {
    let folder = run_dir.join(FOLDER);
    let live: Vec<Adopted> = list(run_dir);
    let is_live = |name: &OsStr| live.iter().any(|adopted| adopted.path.file_name() == Some(name));
    // Lists that older versions set aside name copies that were not renamed.
    let aside: Vec<Adopted> = list_aside(run_dir).into_iter().filter(|adopted| adopted.copy_of.is_some()).collect();
    let is_listed = |name: &OsStr| aside.iter().any(|adopted| adopted.path.file_name() == Some(name));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_copy = |name: &OsStr| {
        let text = name.to_str().unwrap_or_default();
        !is_live(name) && (text.starts_with(COPY) || text.starts_with(super::COPY) && is_listed(name))
    };
    let mut copies: Vec<PathBuf> =
        entries.filter(|entry| is_copy(&entry.file_name())).map(|entry| entry.path()).collect();
    copies.sort();
    copies
}

/// Deletes the copies that were set aside. Returns the deleted paths.
#[must_use]
pub fn delete_copies_aside(run_dir: &Path) -> Vec<PathBuf> {
    copies_aside(run_dir).into_iter().filter(|path| remove_tree(path).is_ok()).collect()
}
