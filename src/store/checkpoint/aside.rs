//! Sets checkpoints aside. A start looks for the newest one in `checkpoints/`, so those it must not
//! find again move to `checkpoints/set-aside/`. Nothing is lost; you can move one back.

use super::error::Doing;
use super::{CheckpointError, FOLDER, name_of, step_of, sync_dir};
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
    fs::create_dir_all(&place).doing("create", &place)?;
    // This step may have been set aside before.
    let free = (0..).map(|count| if count == 0 { name.clone() } else { format!("{name}.{count}") });
    let to = free.map(|name| place.join(name)).find(|path| !path.exists()).unwrap_or_else(|| place.join(&name));
    fs::rename(&from, &to).doing("rename", &from)?;
    sync_dir(&place)?;
    sync_dir(&folder)?;
    Ok(to)
}

/// Lists the checkpoints set aside, by name.
#[must_use]
pub fn list_aside(run_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_dir.join(FOLDER).join(ASIDE)).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| step_of(name.split('.').next()?));
        step.is_some() && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    let mut paths: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Deletes the checkpoints set aside. Returns the deleted paths.
#[must_use]
pub fn delete_all(run_dir: &Path) -> Vec<PathBuf> {
    list_aside(run_dir).into_iter().filter(|path| fs::remove_dir_all(path).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Contents, clean, list, newest_valid, write};
    use super::{delete_all, list_aside, set_aside};
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
        assert_eq!(list_aside(run.path()), [first.clone(), second.clone()]);
        assert_eq!(std::fs::read(first.join("state.json")).unwrap(), b"{}");
        assert_eq!(std::fs::read(second.join("state.json")).unwrap(), b"[]");
        assert_eq!(list(run.path()).len(), 1);
        assert!(set_aside(run.path(), 20).is_err(), "it is not there any more");
        std::fs::create_dir(first.with_file_name("a person's notes")).unwrap();
        assert_eq!(delete_all(run.path()), [first, second]);
        assert!(run.path().join("checkpoints/set-aside/a person's notes").is_dir());
    }
}
