//! Asks the command to save, by the file that the run file names.

use super::saving::CannotSave;
use crate::untrusted::glob::Glob;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Makes the file appear. Returns its path if this created it. The pattern's last name is that of the file; of several folders that
/// match, the newest is the one of this training.
///
/// # Errors
/// Returns an error when no folder matches, or the file cannot be written.
pub(super) fn touch(pattern: &str, directory: &Path) -> Result<Option<PathBuf>, CannotSave> {
    let (folder, name) = pattern.rsplit_once('/').unwrap_or((".", pattern));
    let found = match folder {
        "." => vec![directory.to_owned()],
        folder => Glob::parse(folder).map(|glob| glob.find(directory)).unwrap_or_default(),
    };
    let changed = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = found.into_iter().filter(|path| path.is_dir()).max_by_key(changed);
    let path = newest.ok_or_else(|| CannotSave::NoFolder(folder.to_owned()))?.join(name);
    let created = write(&path).map_err(|source| CannotSave::NotWritten { path: path.clone(), source })?;
    Ok(created.then_some(path))
}

/// Creates a file, or marks an existing one as changed. Reports whether it is new.
fn write(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).open(path)?.set_modified(SystemTime::now())?;
            Ok(false)
        }
        created => created.map(|_| true),
    }
}

/// Takes a file away that the command has not noticed: at its next start, it would save at once.
pub(super) fn take_away(file: Option<PathBuf>) {
    if let Some(file) = file {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::{CannotSave, take_away, touch};
    use std::time::{Duration, SystemTime};
    use std::{fs, path::Path};

    #[test]
    fn the_file_appears_in_the_newest_folder_and_is_taken_away_only_if_it_is_ours() {
        let folder = tempfile::TempDir::new().unwrap();
        let (out, place) = (folder.path().join("out"), folder.path());
        assert!(matches!(touch("out/*/save", place), Err(CannotSave::NoFolder(at)) if at == "out/*"));
        for (name, age) in [("20260101", 100), ("20260102", 50)] {
            fs::create_dir_all(out.join(name)).unwrap();
            let at = SystemTime::now() - Duration::from_secs(age);
            fs::File::open(out.join(name)).unwrap().set_modified(at).unwrap();
        }
        fs::write(out.join("notes.txt"), "no folder").unwrap();
        let file = touch("out/*/save", place).unwrap();
        assert_eq!(file.as_deref(), Some(&*out.join("20260102/save")));
        assert_eq!(touch("out/*/save", place).unwrap(), None, "it waits already");
        take_away(file);
        assert!(!out.join("20260102/save").exists());
        fs::write(place.join("mine"), "text").unwrap();
        assert_eq!(touch("mine", place).unwrap(), None);
        assert_eq!(fs::read_to_string(place.join("mine")).unwrap(), "text");
        let absolute = place.join("out/x").display().to_string();
        assert_eq!(touch(&absolute, Path::new("/nowhere")).unwrap().as_deref(), Some(Path::new(&absolute)));
    }
}
