//! Lists that were set aside, so that no start uses their checkpoints again.

use super::{Adopted, FOLDER, list, read_all, relative_path};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Prefix of lists that were set aside.
const LIST: &str = "aside-step-";

/// Returns the lists that were set aside: newest step first, and of one step the oldest first.
#[must_use]
pub fn list_aside(run_dir: &Path) -> Vec<Adopted> {
    read_all(run_dir, LIST)
}

/// Sets the list of a step aside, so that no start uses that checkpoint again. Its files stay where they are.
///
/// # Errors
/// Returns the system's error.
pub fn set_aside(run_dir: &Path, step: u64) -> io::Result<PathBuf> {
    let from = run_dir.join(relative_path(step));
    let names = (1..1000).map(|count| run_dir.join(FOLDER).join(format!("{LIST}{step:09}-{count}.json")));
    let to = names.into_iter().find(|name| !name.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(from, &to)?;
    Ok(to)
}

/// Returns the checkpoints that were set aside and are still there. A path that a newer list names is not among them.
#[must_use]
pub fn paths_aside(run_dir: &Path) -> Vec<PathBuf> {
    let mut seen: BTreeSet<PathBuf> = list(run_dir).into_iter().map(|adopted| adopted.path).collect();
    let mut paths: Vec<PathBuf> = list_aside(run_dir).into_iter().map(|adopted| adopted.path).collect();
    paths.retain(|path| path.exists() && seen.insert(path.clone()));
    paths
}
