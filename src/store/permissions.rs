//! Ownership of a run directory. Write access to run.yaml decides what `resume` starts, and write
//! access to the directory allows replacing run.yaml.

use super::file_system::FileSystem;
use super::run_dir::RunDir;
use rustix::process::getuid;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reason not to start a run from a run directory.
#[derive(Debug, thiserror::Error)]
pub enum NotYours {
    /// Another user owns it.
    #[error(
        "{path} belongs to user {owner}, who could change what this run does; review the run, copy it to a folder \
         of yours with `cp -r`, and name the copy"
    )]
    Foreign {
        /// The run directory, or a file in it.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
    },
    /// Others can write it.
    #[error(
        "{path} can be changed by other users (mode {mode:o}), and with it what this run does; review run.yaml, \
         then take their right to write away: `chmod go-w {}`", quoted(.path)
    )]
    Writable {
        /// The run directory, or a file in it.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It cannot be inspected.
    #[error("{path}: {source}")]
    Io {
        /// The run directory, or a file in it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Checks that only this user can write the run directory and its run.yaml.
///
/// The directory around it is not checked: anyone who can write there can move the run away, but the
/// replacement then belongs to them.
///
/// # Errors
/// Returns an error when others own or can write one of them.
pub fn check(run: &RunDir) -> Result<(), NotYours> {
    let modes_count = FileSystem::of(run.path()).keeps_permissions();
    for path in [run.path().to_owned(), run.file("run.yaml")] {
        match fs::metadata(&path) {
            Ok(about) => judge(&path, &about, getuid().as_raw(), modes_count)?,
            Err(source) => return Err(NotYours::Io { path, source }),
        }
    }
    Ok(())
}

fn quoted(path: &Path) -> String {
    crate::format::quoted(&path.display().to_string())
}

fn judge(path: &Path, about: &Metadata, user: u32, modes_count: bool) -> Result<(), NotYours> {
    if !modes_count {
        return Ok(());
    }
    let path = path.to_owned();
    if about.uid() != user {
        return Err(NotYours::Foreign { path, owner: about.uid() });
    }
    // Distributions give each user a group with the same number and no other members.
    let others = if about.gid() == user { 0o002 } else { 0o022 };
    match about.mode() & 0o7777 {
        mode if mode & others != 0 => Err(NotYours::Writable { path, mode }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{NotYours, check, judge};
    use crate::store::run_dir::RunDir;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_run_that_others_can_write_is_not_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.yaml");
        fs::write(&file, "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        let set = |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (folder_mode, file_mode, others_can_write) in [
            (0o700, 0o600, false),
            (0o755, 0o644, false),
            (0o777, 0o644, true),
            (0o1777, 0o644, true),
            (0o757, 0o644, true),
            (0o755, 0o666, true),
        ] {
            set(dir.path(), folder_mode);
            set(&file, file_mode);
            let refused = matches!(check(&run), Err(NotYours::Writable { .. }));
            assert_eq!(refused, others_can_write, "{folder_mode:o} {file_mode:o}");
        }
    }

    #[test]
    fn the_group_counts_unless_it_is_the_users_own_and_another_owner_always_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o770)).unwrap();
        let about = fs::metadata(dir.path()).unwrap();
        if about.gid() == about.uid() {
            judge(dir.path(), &about, about.uid(), true).unwrap();
        } else {
            assert!(matches!(judge(dir.path(), &about, about.uid(), true), Err(NotYours::Writable { .. })));
        }
        let foreign = judge(dir.path(), &about, about.uid() + 1, true).unwrap_err();
        assert!(foreign.to_string().contains("belongs to user"), "{foreign}");
        assert!(judge(dir.path(), &about, about.uid() + 1, false).is_ok(), "a drive of Windows shows no owners");
    }
}
