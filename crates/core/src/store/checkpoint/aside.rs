//! Sets checkpoints aside. A start looks for the newest one in `checkpoints/`, so those it must not
//! find again move to `checkpoints/set-aside/`. Nothing is lost; each can be put back.

use super::error::Doing;
use super::{CheckpointError, CheckpointFolder, FOLDER, name_of, step_of, sync_dir};
use crate::store::permissions::create_folder;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The directory within [`FOLDER`].
pub const ASIDE: &str = "set-aside";

/// Sets a checkpoint aside, whole or not at all. Returns its new path.
///
/// # Errors
/// Returns an error when it does not exist or the operating system refuses.
pub fn set_aside(run_dir: &Path, step: u64) -> Result<PathBuf, CheckpointError> {
    let (folder, name) = (run_dir.join(FOLDER), name_of(step));
    let (from, place) = (folder.join(&name), folder.join(ASIDE));
    if !from.is_dir() {
        return Err(CheckpointError::Missing(from));
    }
    create_folder(&place).doing("create", &place)?;
    // This step may have been set aside before.
    let free = (0..).map(|count| if count == 0 { name.clone() } else { format!("{name}.{count}") });
    let to = free.map(|name| place.join(name)).find(|path| !path.exists()).unwrap_or_else(|| place.join(&name));
    fs::rename(&from, &to).doing("rename", &from)?;
    sync_dir(&place)?;
    sync_dir(&folder)?;
    Ok(to)
}

/// Puts the checkpoint of `step` back, if it verifies. If this step was set aside more than once, the last one counts.
///
/// # Errors
/// Returns an error when it is missing or damaged, or the operating system refuses.
pub fn put_back(run_dir: &Path, step: u64) -> Result<(), CheckpointError> {
    let (folder, name) = (run_dir.join(FOLDER), name_of(step));
    let (place, to) = (folder.join(ASIDE), folder.join(&name));
    let names = (0..).map(|count| if count == 0 { name.clone() } else { format!("{name}.{count}") });
    let last = names.map(|name| place.join(name)).take_while(|path| path.is_dir()).last();
    let from = last.ok_or_else(|| CheckpointError::Missing(place.join(&name)))?;
    fs::rename(&from, &to).doing("rename", &from)?;
    // A container verifies only under its own name.
    if let Err(damage) = super::verify(&to) {
        fs::rename(&to, &from).doing("rename", &to)?;
        return Err(damage);
    }
    sync_dir(&folder)?;
    sync_dir(&place)
}

/// Lists the checkpoints set aside, by name.
#[must_use]
pub fn list_aside(run_dir: &Path) -> Vec<CheckpointFolder> {
    let entries = fs::read_dir(run_dir.join(FOLDER).join(ASIDE)).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).filter_map(|entry| {
        let name = entry.file_name();
        let step = step_of(name.to_str()?.split('.').next()?)?;
        Some(CheckpointFolder { step, path: entry.path() })
    });
    let mut entries: Vec<CheckpointFolder> = ours.collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    entries
}

/// Deletes the checkpoints set aside. Returns the deleted paths.
#[must_use]
pub fn delete_all(run_dir: &Path) -> Vec<PathBuf> {
    let paths = list_aside(run_dir).into_iter().map(|entry| entry.path);
    paths.filter(|path| fs::remove_dir_all(path).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Contents, clean, list, newest_valid, write};
    use super::{delete_all, list_aside, put_back, set_aside};
    use tempfile::TempDir;

    #[test]
    fn a_checkpoint_set_aside_is_whole_and_no_longer_found() {
        let run = TempDir::new().unwrap();
        let save = |bytes: &[u8]| {
            for step in [10, 20] {
                let contents = Contents { step, samples: step, build: "test", files: &[("state.json", bytes)] };
                write(run.path(), &contents).unwrap();
            }
        };
        save(b"{}");
        let first = set_aside(run.path(), 20).unwrap();
        assert!(first.ends_with("checkpoints/set-aside/step-000000020"));
        assert_eq!(newest_valid(run.path()).0.unwrap().manifest.step, 10);
        save(b"[]");
        let second = set_aside(run.path(), 20).unwrap();
        clean(run.path());
        let paths = |run| list_aside(run).into_iter().map(|entry| entry.path).collect::<Vec<_>>();
        assert_eq!(paths(run.path()), [first.clone(), second.clone()]);
        assert_eq!(std::fs::read(first.join("state.json")).unwrap(), b"{}");
        assert_eq!(std::fs::read(second.join("state.json")).unwrap(), b"[]");
        assert_eq!(list(run.path()).len(), 1);
        assert!(set_aside(run.path(), 20).is_err(), "it is not there any more");
        put_back(run.path(), 20).unwrap();
        let back = newest_valid(run.path()).0.unwrap();
        assert_eq!((back.manifest.step, back.files["state.json"].as_slice()), (20, b"[]".as_slice()), "the last one");
        std::fs::write(first.join("state.json"), b"[}").unwrap();
        assert!(put_back(run.path(), 20).is_err(), "a damaged one stays aside");
        assert_eq!(set_aside(run.path(), 20).unwrap(), second);
        std::fs::create_dir(first.with_file_name("a person's notes")).unwrap();
        assert_eq!(delete_all(run.path()), [first, second]);
        assert!(run.path().join("checkpoints/set-aside/a person's notes").is_dir());
    }
}
