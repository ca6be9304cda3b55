//! Puts a copy back in place of its original, for a command that finds its checkpoint on its own.

use super::{AdoptError, Adopted, ListedFile, place, same_content, stamp_of};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

impl Adopted {
    /// Makes the original of this copy equal to the copy again, file by file. Other files of the original stay. Returns
    /// whether anything was written; a checkpoint adopted in place is its own original.
    ///
    /// # Errors
    /// Returns the first file that cannot be put back.
    pub fn restore_original(&self) -> Result<bool, AdoptError> {
        let Some(original) = &self.copy_of else { return Ok(false) };
        let mut written = false;
        for listed in &self.files {
            let target = place(&original.path, &listed.name);
            let adopted_as = original.files.iter().find(|(name, _)| *name == listed.name).map(|(_, stamp)| *stamp);
            let is_untouched = adopted_as.is_some_and(|stamp| stamp_of(&target).is_ok_and(|now| now == stamp));
            if is_untouched || holds(&target, listed) {
                continue;
            }
            let source = place(&self.path, &listed.name);
            replace(&source, &target).map_err(|source| AdoptError::Io { path: target, source })?;
            written = true;
        }
        Ok(written)
    }
}

/// Reports whether a file has the listed content. One that is missing or unreadable has not.
fn holds(path: &Path, listed: &ListedFile) -> bool {
    stamp_of(path).and_then(|stamp| same_content(path, stamp, listed)).unwrap_or(false)
}

/// Replaces `target` by a copy of `source`, whole or not at all.
fn replace(source: &Path, target: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(folder)?;
    let draft = draft_beside(folder, name.to_owned());
    // An existing file of that name is a leftover of a killed process, or a trap.
    fs::remove_file(&draft).ok();
    let replaced = fs::copy(source, &draft)
        .and_then(|_| File::options().write(true).open(&draft)?.sync_all())
        .and_then(|()| fs::rename(&draft, target))
        .and_then(|()| File::open(folder)?.sync_all());
    if replaced.is_err() {
        fs::remove_file(&draft).ok();
    }
    replaced
}

fn draft_beside(folder: &Path, name: OsString) -> PathBuf {
    let mut draft = OsString::from(".");
    draft.push(name);
    draft.push(".downshift");
    folder.join(draft)
}
