//! Publishes a checkpoint whose large files another process has written into `.new-step-N.PID`: they are hashed and synced
//! where they are, the small files and the manifest are added, and the folder gets its name. Where several processes wrote
//! a part each, their files are moved into one folder first.
//!
//! Only plain files directly in the folder become part of the checkpoint; a link could lead out of the run directory.

use super::error::Doing;
use super::manifest::{FileEntry, Manifest};
use super::verified::{BeforeHash, VerifiedFile, VerifiedFiles};
use super::{CheckpointError, FOLDER, MANIFEST, STATE, STEPS, UNFINISHED, Written};
use super::{discard, fill_file, name_of, publish, relative_path, step_of, sync_dir};
use crate::untrusted::file as untrusted;
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most files that another process may stage.
const MOST_FILES: usize = 1024;
/// Bytes hashed at once.
const BUFFER: usize = 1 << 20;

/// A staged checkpoint: the folder of another process, and what is still missing in it.
#[derive(Debug, Clone, Copy)]
pub struct StagedContents<'a> {
    /// The step.
    pub step: u64,
    /// The run's clock.
    pub samples: u64,
    /// The version of the program that completes it.
    pub build: &'a str,
    /// The name of the folder, as the other process gave it.
    pub folder: &'a str,
    /// The folders of further processes, with files of other names.
    pub parts: &'a [&'a str],
    /// Content of `state.json`.
    pub state: &'a [u8],
    /// Content of `steps.jsonl`.
    pub steps: &'a [u8],
}

/// Reason why a staged checkpoint is not published.
#[derive(Debug, thiserror::Error)]
pub enum StagedError {
    /// The name of the folder is not that of its step.
    #[error("{} is not the folder of step {step}; expected {UNFINISHED}{}", text::escape_line(.folder), name_of(*.step))]
    Name {
        /// The folder as named.
        folder: String,
        /// The step.
        step: u64,
    },
    /// There is no such folder.
    #[error("{} is not a folder", text::path(.0))]
    NoFolder(PathBuf),
    /// Something other than a plain file is in it.
    #[error("{} is not a plain file", text::path(.0))]
    NotPlain(PathBuf),
    /// A file has a name that only the publisher writes.
    #[error("{} is written when a checkpoint is published, and was there before", text::path(.0))]
    Reserved(PathBuf),
    /// Two processes wrote a file of the same name.
    #[error("{} was written by two processes", text::path(.0))]
    Twice(PathBuf),
    /// It holds no file, or too many.
    #[error("{} holds {count} files; expected 1 to {MOST_FILES}", text::path(.folder))]
    Count {
        /// The folder.
        folder: PathBuf,
        /// Its files.
        count: usize,
    },
    /// The operating system refused.
    #[error(transparent)]
    Write(#[from] CheckpointError),
}

impl StagedError {
    /// Reports whether the disk caused it: it is full or failing.
    #[must_use]
    pub fn is_disk_failure(&self) -> bool {
        matches!(self, Self::Write(CheckpointError::Io { .. }))
    }
}

/// Completes a staged checkpoint and publishes it. When this returns, it is on disk under its name. After an error the
/// staged folders of its step are gone, and a checkpoint of the same step is untouched.
///
/// # Errors
/// Returns an error that names the file, or why the folder is refused.
pub fn publish_staged(run_dir: &Path, contents: &StagedContents<'_>) -> Result<Written, StagedError> {
    let published = publish_folders(run_dir, contents);
    if published.is_err() {
        for folder in contents.parts.iter().chain([&contents.folder]) {
            discard_staged(run_dir, contents.step, folder);
        }
    }
    published
}

fn publish_folders(run_dir: &Path, contents: &StagedContents<'_>) -> Result<Written, StagedError> {
    let name = name_of(contents.step);
    let folder = run_dir.join(FOLDER);
    let staged = find_staged(&folder, contents.folder, contents.step)?;
    let parts: Vec<PathBuf> =
        contents.parts.iter().map(|part| find_staged(&folder, part, contents.step)).collect::<Result<_, _>>()?;
    parts.iter().try_for_each(|part| move_files(part, &staged))?;
    let Completed { bytes, verified } = complete(&staged, contents)?;
    publish(&folder, &staged, &folder.join(&name))?;
    let mut known = VerifiedFiles::read(run_dir);
    known.replace(name, verified);
    known.write(run_dir);
    Ok(Written { path: relative_path(contents.step), bytes })
}

/// Returns the path of a staged folder, if it is one of this step.
fn find_staged(folder: &Path, name: &str, step: u64) -> Result<PathBuf, StagedError> {
    if StagedName::parse(name).is_none_or(|name| name.step != step) {
        return Err(StagedError::Name { folder: name.to_owned(), step });
    }
    let staged = folder.join(name);
    let is_folder = fs::symlink_metadata(&staged).is_ok_and(|about| about.is_dir());
    if is_folder { Ok(staged) } else { Err(StagedError::NoFolder(staged)) }
}

/// Moves the files of a part into the folder of the checkpoint.
fn move_files(part: &Path, staged: &Path) -> Result<(), StagedError> {
    for name in plain_files(part)? {
        let (from, to) = (part.join(&name), staged.join(&name));
        if fs::symlink_metadata(&to).is_ok() {
            return Err(StagedError::Twice(to));
        }
        fs::rename(&from, &to).doing("move", &from)?;
    }
    fs::remove_dir(part).doing("remove", part)?;
    Ok(())
}

/// Removes the folder of a staged checkpoint that will not be published. Any other name is ignored.
pub fn discard_staged(run_dir: &Path, step: u64, folder: &str) {
    if StagedName::parse(folder).is_some_and(|name| name.step == step) {
        discard(&run_dir.join(FOLDER).join(folder));
    }
}

/// Removes the folders that a process staged, except `complete` ones.
pub fn discard_staged_by(run_dir: &Path, writer: StagedWriter, complete: &[&str]) {
    for entry in fs::read_dir(run_dir.join(FOLDER)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !complete.contains(name)) else { continue };
        if StagedName::parse(name).is_some_and(|name| name.writer == Some(writer)) {
            discard(&entry.path());
        }
    }
}

/// The process that stages a folder. Processes of two nodes may have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedWriter {
    /// The number of its node.
    pub node: u32,
    /// Its id there.
    pub pid: u32,
}

impl StagedWriter {
    /// Reads `4711` for a process on the first node, `1-4711` on another one; none if it is written in another way.
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
        match text.split_once('-') {
            Some((node, pid)) => Some(Self { node: number(node).filter(|node| *node > 0)?, pid: number(pid)? }),
            None => Some(Self { node: 0, pid: number(text)? }),
        }
    }
}

/// The name of a staged folder: `.new-step-000000120`, or `.new-step-000000120.4711` with the process that writes it.
/// Two processes of one command may save the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StagedName {
    pub(super) step: u64,
    writer: Option<StagedWriter>,
}

impl StagedName {
    /// Reads a name; none if it is not exactly as such a folder is named.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(UNFINISHED)?;
        let (step, writer) = match rest.split_once('.') {
            Some((step, writer)) => (step, Some(StagedWriter::parse(writer)?)),
            None => (rest, None),
        };
        Some(Self { step: step_of(step)?, writer })
    }
}

/// A folder that only lacks its name.
struct Completed {
    /// The total size.
    bytes: u64,
    /// The staged files, as they were hashed.
    verified: BTreeMap<String, VerifiedFile>,
}

/// Syncs and hashes what is there, and adds the small files and the manifest.
fn complete(staged: &Path, contents: &StagedContents<'_>) -> Result<Completed, StagedError> {
    let (mut files, mut verified) = (Vec::new(), BTreeMap::new());
    for name in plain_files(staged)? {
        let before = BeforeHash::of(&staged.join(&name))?;
        let entry = sync_and_hash(staged, name)?;
        verified.extend(before.verified(&entry.blake3).map(|file| (entry.name.clone(), file)));
        files.push(entry);
    }
    for (name, bytes) in [(STATE, contents.state), (STEPS, contents.steps)] {
        fill_file(&staged.join(name), &[bytes])?;
        let blake3 = blake3::hash(bytes).to_hex().to_string();
        files.push(FileEntry { name: name.to_owned(), bytes: bytes.len() as u64, blake3 });
    }
    let manifest = Manifest::new(contents.step, contents.samples, contents.build, files);
    let text = manifest.to_bytes();
    fill_file(&staged.join(MANIFEST), &[&text])?;
    sync_dir(staged)?;
    Ok(Completed { bytes: manifest.bytes(), verified })
}

/// Returns the names of the staged files, sorted.
fn plain_files(staged: &Path) -> Result<Vec<String>, StagedError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(staged).doing("read", staged)? {
        let entry = entry.doing("read", staged)?;
        let path = entry.path();
        let is_file = entry.file_type().doing("read", &path)?.is_file();
        let Some(name) = entry.file_name().to_str().filter(|_| is_file).map(str::to_owned) else {
            return Err(StagedError::NotPlain(path));
        };
        if [STATE, STEPS, MANIFEST].contains(&name.as_str()) {
            return Err(StagedError::Reserved(path));
        }
        names.push(name);
        if names.len() > MOST_FILES {
            break;
        }
    }
    if !(1..=MOST_FILES).contains(&names.len()) {
        return Err(StagedError::Count { folder: staged.to_owned(), count: names.len() });
    }
    names.sort();
    Ok(names)
}

fn sync_and_hash(staged: &Path, name: String) -> Result<FileEntry, StagedError> {
    let path = staged.join(&name);
    let mut file: File = untrusted::open(&path).map_err(io::Error::from).doing("open", &path)?;
    let (mut hasher, mut bytes, mut buffer) = (blake3::Hasher::new(), 0, vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer).doing("read", &path)? {
            0 => break,
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
    file.sync_all().doing("sync", &path)?;
    Ok(FileEntry { name, bytes, blake3: hasher.finalize().to_hex().to_string() })
}

#[cfg(test)]
mod tests;
