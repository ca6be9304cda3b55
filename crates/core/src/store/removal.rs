//! Deletes a run: its whole directory, and nothing outside it.
//!
//! A folder with a run.yaml may be a project of the user. So a run is deleted only if it lies directly in the
//! runs directory and a keeper has written to it, or its name carries the time of its start.

use super::lock::LockError;
use super::owners;
use super::run_dir::{RunDir, name::is_stamped};
use crate::untrusted::text;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Start of the name of a run that is being deleted.
const HIDDEN: &str = ".deleted-";

/// Reason why a run was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// A process of the run is alive.
    #[error("{run} is alive ({process}); end it with `{stop}` first")]
    Alive {
        /// The run's name.
        run: String,
        /// The process.
        process: String,
        /// The command that ends it.
        stop: String,
    },
    /// The command still runs, without a keeper.
    #[error("{run}: its command is still running (process {pid}); continue it with `{resume}`, or end it first")]
    StillTrains {
        /// The run's name.
        run: String,
        /// A process of the command.
        pid: u32,
        /// The command that takes it over.
        resume: String,
    },
    /// The folder was not made by a run.
    #[error("{path} is not a run in {runs}; nothing was deleted")]
    NoRun {
        /// The folder.
        path: String,
        /// The runs directory.
        runs: String,
    },
    /// The run cannot be locked.
    #[error("{run}: {source}")]
    Lock {
        /// The run's name.
        run: String,
        /// The error.
        source: LockError,
    },
    /// Deleting failed half-way.
    #[error("{path}: {source}; the rest of the run is there, and the next `downshift delete` tries to remove it")]
    Rest {
        /// The folder that is left.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused to delete anything.
    #[error("{path}: {source}; nothing was deleted")]
    Io {
        /// The run's folder.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Contents of a run directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunSize {
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files.
    pub files: u64,
}

/// Counts the files of a run. Links count as themselves, and lead nowhere.
#[must_use]
pub fn measure_run(run: &RunDir) -> RunSize {
    let (mut size, mut folders) = (RunSize::default(), vec![run.path().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => {
                    size.bytes = size.bytes.saturating_add(about.len());
                    size.files += 1;
                }
                Err(_) => {}
            }
        }
    }
    size
}

/// Checks that a run may be deleted from a runs directory: it lies in it, and nothing of it is alive.
///
/// # Errors
/// Returns the reason against it.
pub fn check_removal(runs: &Path, run: &RunDir) -> Result<(), RemovalError> {
    let inside = runs.canonicalize().is_ok_and(|runs| run.path().parent() == Some(runs.as_path()));
    if !inside || !(is_stamped(&run.name()) || run.file("run.db").is_file()) {
        return Err(RemovalError::NoRun { path: text::path(run.path()), runs: text::path(runs) });
    }
    let keeper = owners::keeper(run).map(|owner| format!("keeper {}", owner.pid));
    let parent = || owners::parent_record(run).map(|record| format!("keeper's parent {}", record.owner.pid));
    let worker = owners::worker(run).map(|owner| format!("worker {}", owner.pid));
    let elsewhere = owners::keeper_elsewhere(run).map(|lease| lease.holder());
    let alive = |process| RemovalError::Alive { run: run.name(), process, stop: run.command("stop") };
    if let Some(process) = elsewhere.or(keeper).or_else(parent) {
        return Err(alive(process));
    }
    // A command outlives a keeper and a harness that were killed.
    if let Some(pid) = owners::command_process(run) {
        return Err(RemovalError::StillTrains { run: run.name(), pid, resume: run.command("resume") });
    }
    worker.map_or(Ok(()), |process| Err(alive(process)))
}

/// Deletes a run.
///
/// # Errors
/// Returns an error when a process of the run is alive, the folder is not a run, or the system refuses.
pub fn remove_run(runs: &Path, run: &RunDir) -> Result<RunSize, RemovalError> {
    check_removal(runs, run)?;
    // Whoever holds the keeper's lock is the only one who may start this run.
    let lock = owners::become_keeper(run).map_err(|source| RemovalError::Lock { run: run.name(), source })?;
    let size = measure_run(run);
    let removed = take_away(run.path());
    // After a failure, the lock file must not name this process, which may live on.
    lock.release();
    removed.map(|()| size)
}

fn take_away(run: &Path) -> Result<(), RemovalError> {
    // No list shows half a run: it leaves its place in one step.
    let doomed = hidden_place(run);
    fs::rename(run, &doomed).map_err(|source| RemovalError::Io { path: text::path(run), source })?;
    // Without run.yaml the folder no longer counts as a run, should the rest fail.
    let _ = fs::remove_file(doomed.join("run.yaml"));
    fs::remove_dir_all(&doomed).map_err(|source| RemovalError::Rest { path: text::path(&doomed), source })
}

fn hidden_place(run: &Path) -> PathBuf {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    run.with_file_name(format!("{HIDDEN}{name}-{}", std::process::id()))
}

/// Removes the rests of interrupted deletions from a runs directory.
pub fn remove_rests(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let deleter = name.strip_prefix(HIDDEN).and_then(|rest| rest.rsplit_once('-')?.1.parse::<u32>().ok());
        let is_left =
            deleter.is_some_and(|pid| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists());
        if is_folder && is_left {
            // A rest that cannot be removed stays hidden; the next deletion tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RemovalError, RunSize, measure_run, remove_rests, remove_run};
    use crate::process_tree;
    use crate::store::owners;
    use crate::store::run_dir::RunDir;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    fn made(runs: &Path, name: &str, files: &[&str]) -> RunDir {
        let path = runs.join(name);
        fs::create_dir_all(path.join("checkpoints/step-000000001")).unwrap();
        for file in files.iter().chain(&["run.yaml"]) {
            fs::write(path.join(file), "four").unwrap();
        }
        RunDir::open(&path).unwrap()
    }

    #[test]
    fn a_run_is_deleted_with_all_it_holds_and_nothing_it_points_to() {
        let dir = tempfile::tempdir().unwrap();
        let (runs, outside) = (dir.path().join("runs"), dir.path().join("weights"));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        let run = made(&runs, "a-20261121-070000", &["checkpoints/step-000000001/model"]);
        std::os::unix::fs::symlink(&outside, run.file("link")).unwrap();
        let size = measure_run(&run);
        assert_eq!(size.files, 3);
        assert!(size.bytes >= 8, "{}", size.bytes);
        assert!(remove_run(&runs, &run).is_ok());
        assert_eq!(fs::read_dir(&runs).unwrap().count(), 0, "not even a hidden rest");
        assert!(outside.join("precious").exists());
        assert_eq!(measure_run(&run), RunSize::default());
    }

    #[test]
    fn a_run_whose_command_lives_without_a_keeper_is_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let run = made(&runs, "a-20261121-070000", &["run.db"]);
        let token = process_tree::new_token();
        let gone = format!(r#"{{"pid": 1, "boot": "another", "started": 1, "token": "{token}"}}"#);
        fs::write(run.file("worker.lock"), gone).unwrap();
        let mut command = Command::new("sleep").arg("600").env(process_tree::TOKEN_VARIABLE, &token).spawn().unwrap();
        let refusal = remove_run(&runs, &run);
        command.kill().unwrap();
        command.wait().unwrap();
        assert!(matches!(refusal, Err(RemovalError::StillTrains { pid, .. }) if pid == command.id()), "{refusal:?}");
        assert!(run.file("run.db").exists() && remove_run(&runs, &run).is_ok());
    }

    #[test]
    fn the_rest_of_an_interrupted_deletion_is_removed_later() {
        let runs = tempfile::tempdir().unwrap();
        // Process ids are smaller than this one.
        let (rest, under_way) = (".deleted-a-20261121-070000-4294967290", ".deleted-b-20261121-070000-1");
        for name in [rest, under_way, ".deleted-mine", "a-20261121-070000"] {
            fs::create_dir_all(runs.path().join(name).join("checkpoints")).unwrap();
        }
        remove_rests(runs.path());
        let mut left: Vec<_> = fs::read_dir(runs.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [under_way, ".deleted-mine", "a-20261121-070000"]);
    }

    #[test]
    fn neither_a_living_run_nor_a_project_folder_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let living = made(&runs, "a-20261121-070000", &["run.db"]);
        let lock = owners::become_keeper(&living).unwrap();
        let refusal = remove_run(&runs, &living).unwrap_err();
        assert!(matches!(&refusal, RemovalError::Alive { process, .. } if process.starts_with("keeper ")), "{refusal}");
        lock.release();
        // A project with a run file by that name, and a run of another folder.
        let project = made(&runs, "project", &["train.py"]);
        let elsewhere = made(&dir.path().join("other"), "b-20261121-070000", &["run.db"]);
        for run in [&project, &elsewhere] {
            assert!(matches!(remove_run(&runs, run), Err(RemovalError::NoRun { .. })), "{}", run.name());
            assert!(run.file("run.yaml").exists());
        }
        assert!(remove_run(&runs, &living).is_ok() && !living.path().exists());
    }
}
