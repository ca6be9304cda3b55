//! Ownership of a run directory. Write access to run.yaml decides what `resume` starts, and write
//! access to the directory allows replacing run.yaml.

use super::file_system::FileSystem;
use super::run_dir::RunDir;
use crate::untrusted::text;
use rustix::process::getuid;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The administrator, who may do anything.
const ROOT: u32 = 0;
/// The owner that a container shows for a user it does not know, usually root.
const UNMAPPED: u32 = 65534;

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

/// A file that belongs to another user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} belongs to user {owner}, who could change it; if it is yours, take it back with `chown`", text::path(.file))]
pub struct Stranger {
    /// The file or folder.
    pub file: PathBuf,
    /// Its owner's user id.
    pub owner: u32,
}

/// A folder that lets other users exchange what is below it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("through {} (owner {owner}, mode {mode:o}), other users can exchange what is below it", text::path(.path))]
pub struct Exposed {
    /// The folder.
    pub path: PathBuf,
    /// Its owner's user id.
    pub owner: u32,
    /// Its permission bits.
    pub mode: u32,
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

/// Creates a folder of a run, with those above it: others may read it, but not write, whatever the umask and the default
/// rights of the folder around it are.
///
/// # Errors
/// Returns the system's error.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Does the same for one folder, which must not exist.
///
/// # Errors
/// Returns the system's error.
pub fn create_child(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(path)
}

/// Creates a file of a run, which must not exist: others may read it, but not write.
///
/// # Errors
/// Returns the system's error.
pub fn create_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o644).open(path)
}

/// The users who may own what a run is made of: this one, the owner of the run directory, and root. Files of this user may
/// have another owner on a server that maps owners, but then the run directory has the same one.
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    run: u32,
    user: u32,
    /// The file system shows who owns a file.
    known: bool,
}

impl Owners {
    /// Returns the owners for a run directory.
    #[must_use]
    pub fn of_run(run_dir: &Path) -> Self {
        let user = getuid().as_raw();
        let known = FileSystem::of(run_dir).keeps_permissions();
        Self { run: fs::metadata(run_dir).map_or(user, |about| about.uid()), user, known }
    }

    /// Checks that none of these files belongs to anybody else. A missing one is the business of its reader.
    ///
    /// # Errors
    /// Returns the first that does.
    pub fn check_all(self, mut files: impl Iterator<Item = PathBuf>) -> Result<(), Stranger> {
        let owner = |file: &Path| fs::symlink_metadata(file).ok().and_then(|about| self.stranger(&about));
        let foreign = files.find_map(|file| owner(&file).map(|owner| Stranger { file, owner }));
        foreign.map_or(Ok(()), Err)
    }

    /// Returns the owner of a file if it is none of these.
    fn stranger(self, about: &Metadata) -> Option<u32> {
        let owner = about.uid();
        (self.known && ![self.user, self.run, ROOT].contains(&owner)).then_some(owner)
    }
}

/// Makes a folder in one of this user's own, and closes it to others who may write. An entry of another user in its place
/// is set aside; returns its new path.
///
/// # Errors
/// Returns the system's error.
pub fn claim_folder(path: &Path, owners: Owners) -> io::Result<Option<PathBuf>> {
    let Err(error) = create_child(path) else { return Ok(None) };
    if error.kind() != io::ErrorKind::AlreadyExists {
        return Err(error);
    }
    let own = |about: &Metadata| owners.stranger(about).is_none();
    // A link of the user's own leads to another disk.
    if own(&fs::symlink_metadata(path)?)
        && let Some(about) = fs::metadata(path).ok().filter(|about| about.is_dir() && own(about))
    {
        close_folder(path, &about);
        return Ok(None);
    }
    let free = (1..100).map(|number| path.with_extension(format!("foreign-{number}")));
    let aside = free.into_iter().find(|path| path.symlink_metadata().is_err()).ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside)?;
    create_child(path)?;
    Ok(Some(aside))
}

/// Makes a folder that holds what this run resumes from, and closes it to others who may write.
///
/// # Errors
/// Returns an error when it belongs to another user.
pub fn own_folder(path: &Path, owners: Owners) -> io::Result<()> {
    create_folder(path)?;
    let about = fs::metadata(path)?;
    if let Some(owner) = owners.stranger(&about) {
        return Err(io::Error::other(NotYours::Foreign { path: path.to_owned(), owner }));
    }
    close_folder(path, &about);
    Ok(())
}

/// Takes the right to write from others. Where the system refuses it, the folder stays as it was.
fn close_folder(path: &Path, about: &Metadata) {
    if about.mode() & 0o022 != 0 {
        let _ = fs::set_permissions(path, Permissions::from_mode(about.mode() & 0o7755));
    }
}

/// Returns a folder above a path by which another user could exchange what is there: one of another user, or one that
/// others can write. In a folder with the sticky bit, such as `/tmp`, each can replace only what is their own.
///
/// # Errors
/// Returns the system's error.
pub fn exposed_above(path: &Path) -> io::Result<Option<Exposed>> {
    let user = getuid().as_raw();
    for folder in path.canonicalize()?.ancestors().skip(1) {
        let about = fs::metadata(folder)?;
        let owner = if [ROOT, UNMAPPED].contains(&about.uid()) { user } else { about.uid() };
        let sticky = about.mode() & 0o1000 != 0;
        if owner == user && sticky {
            continue;
        }
        let modes_count = FileSystem::of(folder).keeps_permissions();
        if judge_mode(folder, (owner, about.gid(), about.mode()), user, modes_count).is_err() {
            let (path, owner, mode) = (folder.to_owned(), about.uid(), about.mode() & 0o7777);
            return Ok(Some(Exposed { path, owner, mode }));
        }
    }
    Ok(None)
}

fn quoted(path: &Path) -> String {
    crate::format::quoted(&path.display().to_string())
}

fn judge(path: &Path, about: &Metadata, user: u32, modes_count: bool) -> Result<(), NotYours> {
    judge_mode(path, (about.uid(), about.gid(), about.mode()), user, modes_count)
}

fn judge_mode(
    path: &Path,
    (owner, group, mode): (u32, u32, u32),
    user: u32,
    modes_count: bool,
) -> Result<(), NotYours> {
    if !modes_count {
        return Ok(());
    }
    let path = path.to_owned();
    if owner != user {
        return Err(NotYours::Foreign { path, owner });
    }
    // Distributions give each user a group with the same number and no other members.
    let others = if group == user { 0o002 } else { 0o022 };
    match mode & 0o7777 {
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
