//! Checkpoints that a command wrote itself, adopted in place: `adopted/step-000000500.json` in the run directory lists
//! their files with lengths and BLAKE3 hashes.
//!
//! The files belong to the command: they are never changed, and deleted only if the run file says how many to keep. A
//! checkpoint whose files no longer match its list is not used: the command may be overwriting or deleting it.

mod aside;
mod of_command;
mod original;
mod restore;
#[cfg(test)]
mod tests;
mod went_back;
mod written;

pub use super::stamp::Stamp;
pub use aside::{copies_aside, delete_copies_aside, list_aside, put_back, set_aside, still_aside};
pub use of_command::{epoch_in_name, find_complete, step_in_name};
pub use original::Original;
pub use went_back::{WentBack, record_going_back, went_back};
pub use written::{WrittenCheckpoint, list_written, record_written};

use super::permissions::{Owners, Stranger, create_folder};
use super::run_dir::write_whole;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The folder in a run directory that holds the lists.
pub const FOLDER: &str = "adopted";
/// Prefix of copies.
const COPY: &str = "files-";
/// Most files in one checkpoint.
const MOST_FILES: usize = 100_000;

/// The list of an adopted checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Version of this format.
    pub version: u32,
    /// The step it holds.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// When it was adopted, in Unix milliseconds.
    pub time_ms: i64,
    /// Its folder, or its only file.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<ListedFile>,
    /// The original, if it is a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<Original>,
}

/// A file of an adopted checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its path below the checkpoint's folder; empty if the checkpoint is one file.
    pub name: PathBuf,
    /// The system's record of it; any change of the file changes this.
    #[serde(flatten)]
    pub stamp: Stamp,
    /// The BLAKE3 hash of its content.
    pub blake3: String,
}

/// Reason why a checkpoint is not adopted, or no longer usable.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// A file changed while it was read.
    #[error("{} is still being written", text::path(.0))]
    Changing(PathBuf),
    /// A file differs from the list.
    #[error("{} changed after it was adopted", text::path(.0))]
    Changed(PathBuf),
    /// A file is missing or unreadable.
    #[error("{}: {source}", text::path(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error(transparent)]
    Foreign(#[from] Stranger),
    /// It has too many files.
    #[error("{} has more than {MOST_FILES} files", text::path(.0))]
    TooMany(PathBuf),
}

impl Adopted {
    /// Returns the total size of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.stamp.bytes).sum()
    }

    /// Returns the checkpoint that the command wrote: this one, or the original of this copy.
    #[must_use]
    pub fn original(&self) -> Original {
        let files = || self.files.iter().map(|file| (file.name.clone(), file.stamp)).collect();
        self.copy_of.clone().unwrap_or_else(|| Original { path: self.path.clone(), files: files() })
    }

    /// Checks that its files are still the ones that were adopted. A file is read only if its stamp changed.
    ///
    /// # Errors
    /// Returns the first file that changed or is missing.
    pub fn verify(&self) -> Result<(), AdoptError> {
        self.check_files(|listed, stamp| stamp == listed.stamp)
    }

    /// Checks every byte of its files: a disk that fails changes no stamp.
    ///
    /// # Errors
    /// Returns the first file that changed or is missing.
    pub fn verify_every_byte(&self) -> Result<(), AdoptError> {
        self.check_files(|_, _| false)
    }

    fn check_files(&self, is_trusted: impl Fn(&ListedFile, Stamp) -> bool) -> Result<(), AdoptError> {
        self.files.iter().try_for_each(|listed| {
            let path = place(&self.path, &listed.name);
            let stamp = stamp_of(&path)?;
            let same = is_trusted(listed, stamp) || same_content(&path, stamp, listed)?;
            if same { Ok(()) } else { Err(AdoptError::Changed(path)) }
        })
    }
}

/// Returns the path of a list, relative to the run directory.
#[must_use]
pub fn relative_path(step: u64) -> String {
    format!("{FOLDER}/step-{step:09}.json")
}

/// Lists the files of a checkpoint, with their stamps. Links inside it are not followed.
///
/// # Errors
/// Returns an error when a folder cannot be read.
pub fn survey(path: &Path) -> Result<Vec<(PathBuf, Stamp)>, AdoptError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| AdoptError::Io { path, source }
    };
    if !path.is_dir() {
        return Ok(vec![(PathBuf::new(), stamp_of(path)?)]);
    }
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        let here = path.join(&folder);
        for entry in fs::read_dir(&here).map_err(unreadable(&here))? {
            let entry = entry.map_err(unreadable(&here))?;
            let name = folder.join(entry.file_name());
            let kind = entry.file_type().map_err(unreadable(&here))?;
            if kind.is_dir() {
                folders.push(name);
            } else if kind.is_file() {
                files.push((name.clone(), stamp_of(&path.join(&name))?));
            }
            if files.len() > MOST_FILES {
                return Err(AdoptError::TooMany(path.to_owned()));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Reads every file of a checkpoint, and lists it in the run directory. A list of the same step or path is replaced.
///
/// # Errors
/// Returns an error when a file changes meanwhile, or the list cannot be written.
pub fn adopt(run_dir: &Path, step: u64, samples: u64, path: &Path) -> Result<Adopted, AdoptError> {
    let adopted = write_list(run_dir, read_files(step, samples, path)?)?;
    // A command that saves to one path has overwritten what older lists of it name.
    for older in list(run_dir).iter().filter(|older| older.path == adopted.path && older.step != step) {
        let list = run_dir.join(relative_path(older.step));
        fs::remove_file(&list).map_err(|source| AdoptError::Io { path: list, source })?;
    }
    Ok(adopted)
}

/// Adopts a checkpoint that was found by its name, or a copy of it. One that another user has put there is refused.
///
/// # Errors
/// Returns the same errors as [`adopt`], or the owner.
pub fn adopt_found(
    run_dir: &Path,
    (step, samples): (u64, u64),
    path: &Path,
    copies: bool,
) -> Result<Adopted, AdoptError> {
    let files = survey(path)?.into_iter().map(|(name, _)| place(path, &name));
    Owners::of_run(run_dir).check_all(files.chain([path.to_owned()]))?;
    if copies { adopt_copy(run_dir, step, samples, path) } else { adopt(run_dir, step, samples, path) }
}

/// Copies a checkpoint into the run directory, and lists the copy there.
///
/// # Errors
/// Returns an error when a file changes meanwhile, or the copy or the list cannot be written.
pub fn adopt_copy(run_dir: &Path, step: u64, samples: u64, path: &Path) -> Result<Adopted, AdoptError> {
    copy_if(run_dir, (step, samples), path, |_| true)
}

/// Copies a checkpoint that is listed already, and lists the copy in its place.
///
/// # Errors
/// Returns the same errors as [`adopt_copy`], also if another checkpoint has taken its place.
pub fn copy_listed(run_dir: &Path, listed: &Adopted) -> Result<Adopted, AdoptError> {
    let contents = |adopted: &Adopted| adopted.files.iter().map(|file| file.blake3.clone()).collect::<Vec<_>>();
    copy_if(run_dir, (listed.step, listed.samples), &listed.path, |copy| contents(copy) == contents(listed))
}

/// Copies a checkpoint, and lists the copy if it is the right one.
fn copy_if(
    run_dir: &Path,
    (step, samples): (u64, u64),
    path: &Path,
    is_right: impl Fn(&Adopted) -> bool,
) -> Result<Adopted, AdoptError> {
    let files = survey(path)?;
    let to = run_dir.join(FOLDER).join(format!("{COPY}{step:09}{}", ending(path)));
    let _ = remove_tree(&to);
    copy(path, &to)?;
    let copied = read_files(step, samples, &to)?;
    if survey(path)? != files || !is_right(&copied) {
        let _ = remove_tree(&to);
        return Err(AdoptError::Changing(path.to_owned()));
    }
    write_list(run_dir, Adopted { copy_of: Some(Original { path: path.to_owned(), files }), ..copied })
}

/// Returns the ending of a file's name, `.pt` or `.pth.tar`: some scripts tell the format by it. A folder has none.
fn ending(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file()).unwrap_or_default();
    let stem = name.strip_suffix(".tar").unwrap_or(name);
    stem.rfind('.').filter(|dot| *dot > 0).map_or("", |dot| &name[dot..])
}

fn read_files(step: u64, samples: u64, path: &Path) -> Result<Adopted, AdoptError> {
    let found = survey(path)?;
    let list = |(name, stamp): &(PathBuf, Stamp)| {
        let blake3 = hash(&place(path, name))?;
        Ok(ListedFile { name: name.clone(), stamp: *stamp, blake3 })
    };
    let files: Vec<ListedFile> = found.iter().map(list).collect::<Result<_, AdoptError>>()?;
    if survey(path)? != found {
        return Err(AdoptError::Changing(path.to_owned()));
    }
    let time_ms = jiff::Timestamp::now().as_millisecond();
    Ok(Adopted { version: 1, step, samples, time_ms, path: path.to_owned(), files, copy_of: None })
}

fn write_list(run_dir: &Path, adopted: Adopted) -> Result<Adopted, AdoptError> {
    let target = run_dir.join(relative_path(adopted.step));
    let written = create_folder(&run_dir.join(FOLDER))
        .and_then(|()| serde_json::to_vec(&adopted).map_err(io::Error::from))
        .and_then(|text| write_whole(&target, &text));
    written.map_err(|source| AdoptError::Io { path: target, source })?;
    Ok(adopted)
}

/// Copies a checkpoint to `to`, sharing its blocks where the file system can. A partial copy is removed.
fn copy(from: &Path, to: &Path) -> Result<(), AdoptError> {
    let copied = survey(from)?.into_iter().try_for_each(|(name, _)| {
        let (source, target) = (place(from, &name), place(to, &name));
        target.parent().map_or(Ok(()), create_folder)?;
        // Clones on file systems that can, with the permissions of the original.
        fs::copy(&source, &target)?;
        let copy = File::options().write(true).open(&target)?;
        copy.set_permissions(Permissions::from_mode(copy.metadata()?.mode() & 0o7755))?;
        copy.sync_all()
    });
    copied.map_err(|source| {
        let _ = remove_tree(to);
        AdoptError::Io { path: to.to_owned(), source }
    })
}

/// Returns all lists of a run, newest step first.
#[must_use]
pub fn list(run_dir: &Path) -> Vec<Adopted> {
    read_all(run_dir, "step-")
}

fn read_all(run_dir: &Path, prefix: &str) -> Vec<Adopted> {
    let entries = fs::read_dir(run_dir.join(FOLDER)).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    let mut found: Vec<Adopted> = names.filter_map(|entry| read(&entry.path())).collect();
    found.sort_by_key(|adopted| (std::cmp::Reverse(adopted.step), adopted.time_ms));
    found
}

/// Returns the list of one step.
#[must_use]
pub fn find(run_dir: &Path, step: u64) -> Option<Adopted> {
    read(&run_dir.join(relative_path(step)))
}

/// Reports whether the checkpoint that a command wrote at a path is adopted as that of a step, and unchanged since.
#[must_use]
pub fn is_usable(run_dir: &Path, step: u64, path: &Path) -> bool {
    find(run_dir, step).is_some_and(|adopted| adopted.original().path == path && adopted.verify().is_ok())
}

fn read(path: &Path) -> Option<Adopted> {
    let text = file::read(path, Limit::Record).ok()?;
    serde_json::from_slice(&text).ok().filter(|adopted: &Adopted| adopted.version == 1)
}

/// Returns the newest checkpoint unchanged since it was adopted, and why newer ones are not usable.
#[must_use]
pub fn newest_usable(run_dir: &Path) -> (Option<Adopted>, Vec<(Adopted, AdoptError)>) {
    let mut unusable = Vec::new();
    for adopted in list(run_dir) {
        match adopted.verify() {
            Ok(()) => return (Some(adopted), unusable),
            Err(error) => unusable.push((adopted, error)),
        }
    }
    (None, unusable)
}

/// Deletes a checkpoint: its list first, then the command's files that are still the ones listed.
///
/// # Errors
/// Returns the system's error.
pub fn remove(run_dir: &Path, step: u64) -> io::Result<()> {
    let Some(adopted) = find(run_dir, step) else { return Ok(()) };
    fs::remove_file(run_dir.join(relative_path(step)))?;
    let unchanged = adopted
        .files
        .iter()
        .all(|listed| stamp_of(&place(&adopted.path, &listed.name)).is_ok_and(|stamp| stamp == listed.stamp));
    if !unchanged {
        return Ok(());
    }
    for listed in &adopted.files {
        fs::remove_file(place(&adopted.path, &listed.name))?;
    }
    // Folders with anything else in them stay.
    let mut folders: Vec<PathBuf> =
        adopted.files.iter().flat_map(|listed| folders_of(&adopted.path, &listed.name)).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.as_os_str().len()));
    for folder in folders {
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

/// Deletes the lists of checkpoints that the command has removed, as a Trainer does that keeps only the newest. Returns the
/// steps that are still listed. If the folder around a checkpoint is gone, too, its disk may not be mounted.
pub fn forget_removed(run_dir: &Path) -> BTreeSet<u64> {
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    let is_removed = |adopted: &Adopted| adopted.path.parent().is_some_and(is_there) && !is_there(&adopted.path);
    let (removed, kept): (Vec<Adopted>, Vec<Adopted>) = list(run_dir).into_iter().partition(is_removed);
    for adopted in removed {
        let _ = fs::remove_file(run_dir.join(relative_path(adopted.step)));
    }
    kept.into_iter().map(|adopted| adopted.step).collect()
}

/// Returns the folders of a file, up to the checkpoint's own.
fn folders_of(checkpoint: &Path, name: &Path) -> Vec<PathBuf> {
    name.ancestors().skip(1).map(|folder| checkpoint.join(folder)).collect()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn place(checkpoint: &Path, name: &Path) -> PathBuf {
    if name.as_os_str().is_empty() { checkpoint.to_owned() } else { checkpoint.join(name) }
}

fn stamp_of(path: &Path) -> Result<Stamp, AdoptError> {
    let found = fs::metadata(path).map_err(|source| AdoptError::Io { path: path.to_owned(), source })?;
    Ok(Stamp::of(&found))
}

/// Reports whether a file has the length and the hash of a listed one.
fn same_content(path: &Path, stamp: Stamp, listed: &ListedFile) -> Result<bool, AdoptError> {
    Ok(stamp.bytes == listed.stamp.bytes && hash(path)? == listed.blake3)
}

fn hash(path: &Path) -> Result<String, AdoptError> {
    let unreadable = |source| AdoptError::Io { path: path.to_owned(), source };
    let mut file = file::open(path).map_err(|error| unreadable(error.into()))?;
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(unreadable)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => hasher.update(&buffer[..count]),
        };
    }
}
