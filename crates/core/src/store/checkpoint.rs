//! The checkpoint container: a directory that is either complete under its name or absent.
//!
//! ```text
//! checkpoints/.new-step-000001200/      written and synced file by file, manifest.json last
//!        └── rename ──▶ step-000001200/ {model,optimizer}.safetensors state.json steps.jsonl manifest.json
//! ```
//! The manifest lists every file with its length and BLAKE3 hash, and carries a hash of itself. A
//! checkpoint is defined by a manifest that verifies; nothing else is trusted, least of all a
//! directory name. Deletion mirrors writing: a directory is renamed first, then deleted.

pub mod aside;
pub mod classes;
mod error;
pub mod manifest;
mod owner;
pub mod staged;
pub mod state;
mod verified;

use super::permissions::{Owners, create_child, create_file};
use crate::untrusted::file::{self as untrusted, Limit};
pub use error::CheckpointError;
use error::Doing;
use manifest::{FileEntry, Manifest};
use owner::check_owner;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use staged::StagedName;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, IntoInnerError, Read, Write},
    path::{Path, PathBuf},
};
use verified::VerifiedFiles;

/// The directory within a run directory that holds its checkpoints.
pub const FOLDER: &str = "checkpoints";
/// The weights.
pub const MODEL: &str = "model.safetensors";
/// The optimizer's moments.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// Clock, counters and configuration markers: [`state::TrainState`].
pub const STATE: &str = "state.json";
/// The curve rows since the previous checkpoint: [`state::Row`], one per line.
pub const STEPS: &str = "steps.jsonl";
/// The list of files with their hashes.
pub const MANIFEST: &str = "manifest.json";

const UNFINISHED: &str = ".new-";
const DISCARDED: &str = ".old-";
/// Prefix of a checkpoint that a redone step replaces, on file systems that cannot exchange names.
/// [`clean`] restores its name, unless the new checkpoint already has it.
const REPLACED: &str = ".was-";

/// The content of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The step.
    pub step: u64,
    /// The run's clock.
    pub samples: u64,
    /// The version of the program that writes it.
    pub build: &'a str,
    /// File names and their bytes.
    pub files: &'a [(&'a str, &'a [u8])],
}

/// The content of a checkpoint with each file in pieces, so that gigabytes are hashed and written without a copy.
#[derive(Debug, Clone, Copy)]
pub struct Pieces<'a> {
    /// The step.
    pub step: u64,
    /// The run's clock.
    pub samples: u64,
    /// The version of the program that writes it.
    pub build: &'a str,
    /// File names, each with its bytes as consecutive pieces.
    pub files: &'a [(&'a str, Vec<&'a [u8]>)],
}

/// A durable checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its directory, relative to the run directory.
    pub path: String,
    /// Total size of its files, manifest included.
    pub bytes: u64,
}

/// A checkpoint found by name; none of its content has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFolder {
    /// The step in its name.
    pub step: u64,
    /// Its directory.
    pub path: PathBuf,
}

/// A checkpoint that was read and verified.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its directory.
    pub path: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its files.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Returns the directory of a checkpoint, relative to the run directory.
#[must_use]
pub fn relative_path(step: u64) -> String {
    format!("{FOLDER}/{}", name_of(step))
}

/// Writes a checkpoint. When this returns, it is on disk under its name; until then there is nothing,
/// or the previous checkpoint of that name. An identical existing checkpoint is left alone.
///
/// # Errors
/// Returns an error that names the file. The partial checkpoint is removed, and an existing one is untouched.
pub fn write(run_dir: &Path, contents: &Contents<'_>) -> Result<Written, CheckpointError> {
    let Contents { step, samples, build, files } = *contents;
    let files: Vec<(&str, Vec<&[u8]>)> = files.iter().map(|(name, bytes)| (*name, vec![*bytes])).collect();
    write_pieces(run_dir, &Pieces { step, samples, build, files: &files })
}

/// Writes a checkpoint as [`write`] does, from pieces.
///
/// # Errors
/// Returns the same errors as [`write`].
pub fn write_pieces(run_dir: &Path, contents: &Pieces<'_>) -> Result<Written, CheckpointError> {
    let folder = run_dir.join(FOLDER);
    if !folder.is_dir() {
        // Never create the run directory itself: if it was moved, a second one would take its name.
        create_child(&folder).doing("create", &folder)?;
        sync_dir(run_dir)?;
    }
    let name = name_of(contents.step);
    let target = folder.join(&name);
    let manifest = Manifest::of(contents);
    let text = manifest.to_bytes();
    let written = Written { path: relative_path(contents.step), bytes: manifest.bytes() };
    if verify(&target).is_ok_and(|found| found == manifest) {
        return Ok(written);
    }
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let result = fill(&unfinished, contents, &text).and_then(|()| publish(&folder, &unfinished, &target));
    if result.is_err() {
        discard(&unfinished);
    }
    result.map(|()| written)
}

fn fill(directory: &Path, contents: &Pieces<'_>, manifest: &[u8]) -> Result<(), CheckpointError> {
    if directory.exists() {
        fs::remove_dir_all(directory).doing("clear", directory)?;
    }
    create_child(directory).doing("create", directory)?;
    for (name, pieces) in contents.files {
        fill_file(&directory.join(name), pieces)?;
    }
    fill_file(&directory.join(MANIFEST), &[manifest])?;
    sync_dir(directory)
}

fn fill_file(path: &Path, pieces: &[&[u8]]) -> Result<(), CheckpointError> {
    // Small pieces are buffered, large ones go straight to the file.
    let mut file = BufWriter::with_capacity(1 << 16, create_file(path).doing("create", path)?);
    for piece in pieces {
        file.write_all(piece).doing("write", path)?;
    }
    let file = file.into_inner().map_err(IntoInnerError::into_error).doing("write", path)?;
    file.sync_all().doing("sync", path)
}

fn publish(folder: &Path, unfinished: &Path, target: &Path) -> Result<(), CheckpointError> {
    if !target.exists() {
        fs::rename(unfinished, target).doing("rename", unfinished)?;
        return sync_dir(folder);
    }
    // A redone step: exchange both names atomically if the file system supports it.
    let exchanged = renameat_with(CWD, unfinished, CWD, target, RenameFlags::EXCHANGE).is_ok();
    let old = if exchanged { unfinished.to_owned() } else { replace(unfinished, target)? };
    sync_dir(folder)?;
    discard(&old);
    Ok(())
}

/// Replaces by two renames instead of one exchange. Returns the new path of the old checkpoint.
fn replace(unfinished: &Path, target: &Path) -> Result<PathBuf, CheckpointError> {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let old = target.with_file_name(format!("{REPLACED}{name}"));
    discard(&old);
    fs::rename(target, &old).doing("rename", target)?;
    if let Err(error) = fs::rename(unfinished, target) {
        fs::rename(&old, target).ok();
        return Err(error).doing("rename", unfinished);
    }
    Ok(old)
}

/// Lists checkpoints by name, newest first. Skips other names and links.
#[must_use]
pub fn list(run_dir: &Path) -> Vec<CheckpointFolder> {
    let mut entries: Vec<CheckpointFolder> = fs::read_dir(run_dir.join(FOLDER))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some(CheckpointFolder { step: step_of(entry.file_name().to_str()?)?, path: entry.path() }))
        .collect();
    entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.step));
    entries
}

/// Reads only the manifest, and checks it against itself and the directory's name.
///
/// # Errors
/// Returns an error when the manifest is missing, unreadable, damaged, or of another checkpoint.
pub fn manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    if !path.is_dir() {
        return Err(CheckpointError::Missing(path.to_owned()));
    }
    let file = path.join(MANIFEST);
    let bytes = untrusted::read(&file, Limit::Record).map_err(io::Error::from).doing("read", &file)?;
    let manifest =
        Manifest::from_bytes(&bytes).map_err(|damage| CheckpointError::damaged(&file, damage.to_string()))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if step_of(name) != Some(manifest.step) {
        let reason = format!("it is of step {}, in a directory named {name}", manifest.step);
        return Err(CheckpointError::damaged(file, reason));
    }
    Ok(manifest)
}

/// Reads every byte and compares it with the manifest.
///
/// # Errors
/// Returns an error that names the first file that is missing, unreadable or changed.
pub fn verify(path: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = manifest(path)?;
    manifest.files.iter().try_for_each(|entry| verify_file(path, entry))?;
    Ok(manifest)
}

/// Reads every byte of one file and compares it with the manifest.
fn verify_file(checkpoint: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    let name = checkpoint.join(&entry.name);
    let mut file = untrusted::open(&name).map_err(io::Error::from).doing("open", &name)?;
    let (mut hasher, mut length, mut buffer) = (blake3::Hasher::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = file.read(&mut buffer).doing("read", &name)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        length += count as u64;
    }
    entry.compare(length, &hasher.finalize()).map_err(|damage| CheckpointError::damaged(name, damage.to_string()))
}

/// Reads a checkpoint into memory and verifies the bytes read.
///
/// # Errors
/// Returns the same errors as [`verify`].
pub fn load(path: &Path) -> Result<Loaded, CheckpointError> {
    let manifest = manifest(path)?;
    let mut files = BTreeMap::new();
    for entry in &manifest.files {
        let name = path.join(&entry.name);
        let bytes = untrusted::read(&name, Limit::Memory).map_err(io::Error::from).doing("read", &name)?;
        entry
            .compare(bytes.len() as u64, &blake3::hash(&bytes))
            .map_err(|damage| CheckpointError::damaged(name, damage.to_string()))?;
        files.insert(entry.name.clone(), bytes);
    }
    Ok(Loaded { path: path.to_owned(), manifest, files })
}

/// Returns the newest checkpoint that verifies, and the newer ones that do not, newest first.
#[must_use]
pub fn newest_valid(run_dir: &Path) -> (Option<Loaded>, Vec<(PathBuf, CheckpointError)>) {
    newest_that(run_dir, |_| Ok(()))
}

/// Returns the newest checkpoint that verifies and whose content is `sound`, and the newer ones that
/// fail either test, newest first.
pub fn newest_that(
    run_dir: &Path,
    sound: impl Fn(&Loaded) -> Result<(), CheckpointError>,
) -> (Option<Loaded>, Vec<(PathBuf, CheckpointError)>) {
    let (owners, mut rejected) = (Owners::of_run(run_dir), Vec::new());
    for entry in list(run_dir) {
        match check_owner(&entry.path, owners)
            .and_then(|()| load(&entry.path))
            .and_then(|loaded| sound(&loaded).map(|()| loaded))
        {
            Ok(loaded) => return (Some(loaded), rejected),
            Err(error) => rejected.push((entry.path, error)),
        }
    }
    (None, rejected)
}

/// The newest checkpoint that verifies, and the newer ones that do not, newest first.
#[derive(Debug)]
pub struct Newest {
    /// The checkpoint and its manifest.
    pub verified: Option<(CheckpointFolder, Manifest)>,
    /// The newer ones, each with its damage.
    pub rejected: Vec<(CheckpointFolder, CheckpointError)>,
}

/// Returns the newest checkpoint that verifies, without keeping its content. Files that were verified in this boot of the
/// machine and have the same stamps since are not read again. Only for the holder of the run's worker lock.
#[must_use]
pub fn newest_verified(run_dir: &Path) -> Newest {
    let mut known = VerifiedFiles::read(run_dir);
    let mut newest = Newest { verified: None, rejected: Vec::new() };
    let owners = Owners::of_run(run_dir);
    for entry in list(run_dir) {
        match check_owner(&entry.path, owners).and_then(|()| known.verify(&entry.path)) {
            Ok(manifest) => {
                newest.verified = Some((entry, manifest));
                break;
            }
            Err(error) => newest.rejected.push((entry, error)),
        }
    }
    known.write(run_dir);
    newest
}

/// Deletes a checkpoint: its name first, then its bytes.
///
/// # Errors
/// Returns an error when it does not exist or the operating system refuses.
pub fn remove(run_dir: &Path, step: u64) -> Result<(), CheckpointError> {
    let folder = run_dir.join(FOLDER);
    let path = folder.join(name_of(step));
    if !path.is_dir() {
        return Err(CheckpointError::Missing(path));
    }
    let aside = hide(&folder, &path)?;
    sync_dir(&folder)?;
    fs::remove_dir_all(&aside).doing("delete", &aside)
}

/// Deletes leftovers of a killed writer or remover, and undoes an incomplete replacement. Only for the
/// holder of the run's worker lock.
pub fn clean(run_dir: &Path) {
    for entry in fs::read_dir(run_dir.join(FOLDER)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let replaced =
            name.to_str().and_then(|name| name.strip_prefix(REPLACED)).filter(|name| step_of(name).is_some());
        if let Some(target) = replaced.map(|name| entry.path().with_file_name(name)) {
            if target.exists() {
                discard(&entry.path());
            } else {
                fs::rename(entry.path(), target).ok();
            }
            continue;
        }
        let ours = name.to_str().is_some_and(|name| {
            StagedName::parse(name).is_some() || name.strip_prefix(DISCARDED).and_then(step_of).is_some()
        });
        if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            discard(&entry.path());
        }
    }
}

fn hide(folder: &Path, path: &Path) -> Result<PathBuf, CheckpointError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let aside = folder.join(format!("{DISCARDED}{name}"));
    discard(&aside);
    fs::rename(path, &aside).doing("rename", path)?;
    Ok(aside)
}

/// Deletes a directory that no process will look for again; [`clean`] deletes later what cannot be deleted now.
fn discard(path: &Path) {
    fs::remove_dir_all(path).ok();
}

fn sync_dir(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|directory| directory.sync_all()).doing("sync", path)
}

fn name_of(step: u64) -> String {
    format!("step-{step:09}")
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
