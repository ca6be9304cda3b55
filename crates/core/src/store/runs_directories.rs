//! The runs directories of this user: one path a line in `~/.local/state/downshift/runs-directories`. Each start adds its own,
//! so that after a reboot no run is forgotten.

use super::lock::no_link;
use super::run_dir::write_private;
use super::user_folder::user_folder;
use rustix::process::getuid;
use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes that are read.
const LONGEST: u64 = 1 << 20;
/// Size from which directories that are gone are dropped. Before, they may be on a disk that is not mounted.
const LONG: u64 = 1 << 16;

/// The list of this user; none if the user has no folder for state.
pub struct RunsDirectories {
    file: PathBuf,
}

impl RunsDirectories {
    /// Returns the list of this user.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        Some(Self { file: user_folder("XDG_STATE_HOME", ".local/state")?.join("runs-directories") })
    }

    /// Lists them, oldest first.
    ///
    /// # Errors
    /// Returns an error when the list is not the user's own, or cannot be read.
    pub fn list(&self) -> io::Result<Vec<PathBuf>> {
        let mut text = String::new();
        match self.open(File::options().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?.take(LONGEST).read_to_string(&mut text)?,
        };
        let mut seen = HashSet::new();
        let new = text.lines().filter(|path| seen.insert(*path)).map(PathBuf::from);
        Ok(new.filter(|path| path.is_absolute()).collect())
    }

    /// Adds a directory, unless it is in the list.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn add(&self, runs: &Path) -> io::Result<()> {
        let mut listed = self.list()?;
        let line = runs.to_str().filter(|path| !path.chars().any(char::is_control));
        let line = line.ok_or_else(|| io::Error::other("a path with control characters cannot be in the list"))?;
        if listed.iter().any(|path| path == runs) {
            return Ok(());
        }
        if let Some(folder) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = self.open(File::options().append(true).create(true).mode(0o600))?;
        if file.metadata()?.len() < LONG {
            return file.write_all(format!("{line}\n").as_bytes());
        }
        listed.retain(|path| path.is_dir());
        listed.push(runs.to_owned());
        let lines: Vec<String> = listed.iter().map(|path| format!("{}\n", path.display())).collect();
        write_private(&self.file, lines.concat().as_bytes())
    }

    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.custom_flags(no_link()).open(&self.file)?;
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != getuid().as_raw() || about.mode() & 0o022 != 0 {
            let text = "must be a regular file that you own and others cannot write; delete it";
            return Err(io::Error::other(format!("{} {text}", self.file.display())));
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::{LONG, RunsDirectories};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    #[test]
    fn each_directory_is_listed_once_and_forgotten_only_from_a_long_list() {
        let folder = tempfile::tempdir().unwrap();
        let list = RunsDirectories { file: folder.path().join("state/downshift/runs-directories") };
        assert!(list.list().unwrap().is_empty());
        let (one, other) = (Path::new("/no such/disk/runs"), folder.path());
        for path in [one, other, one] {
            list.add(path).unwrap();
        }
        assert_eq!(list.list().unwrap(), [one, other], "a disk may be mounted later");
        assert!(list.add(Path::new("/a\nb")).is_err());
        let gone: Vec<String> = (0..LONG / 8).map(|number| format!("/gone/{number}\n")).collect();
        fs::write(&list.file, format!("{}\n{}", other.display(), gone.concat())).unwrap();
        let new = PathBuf::from("/new");
        list.add(&new).unwrap();
        assert_eq!(list.list().unwrap(), [other.to_owned(), new]);
    }

    #[test]
    fn a_list_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let list = RunsDirectories { file: folder.path().join("runs-directories") };
        list.add(Path::new("/runs")).unwrap();
        fs::set_permissions(&list.file, Permissions::from_mode(0o666)).unwrap();
        assert!(list.list().is_err() && list.add(Path::new("/other")).is_err());
    }
}
