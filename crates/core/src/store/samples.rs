//! Samples of the model's work, in the folder `samples` of a run.
//!
//! ```text
//! step-000000120.json     a set: the samples of one evaluation, written by the worker
//! step-000000120-0.png    a picture that the set names
//! step-000000120.txt      a sample that a script wrote through its companion; also .png, and -1, -2 …
//! ```
//! A set is one file that names its pictures, written after them. It is not synced: after a power failure it may be
//! missing, which costs a picture, while a sync at each evaluation would cost training time. Retention deletes sets
//! only: what a script wrote is the script's own, as its checkpoints are.

use super::run_dir::write_unsynced;
use crate::config::command::{AttemptContext, CommandSpec, resolve_pattern};
use crate::config::knobs::Preset;
use crate::format::bytes;
use crate::protocol::samples::{Confusion, Sample, SampleSet};
use crate::untrusted::file::{self, Limit, ReadError};
use crate::untrusted::glob::Glob;
use crate::untrusted::text;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

/// The folder in a run directory.
pub const FOLDER: &str = "samples";
/// The newest sets that retention keeps.
const KEPT_NEWEST: usize = 20;
/// The most files that one listing reads.
const MAX_FILES: usize = 100_000;
/// The most files that match a run file's pattern and are shown.
const MAX_MATCHES: usize = 100;
/// Bytes that are read of a text, for all but screens.
pub const WHOLE_TEXT: usize = 1 << 20;
/// Endings of files whose text is the sample; all others are pictures.
const TEXTS: [&str; 3] = ["txt", "md", "log"];

/// A picture of a set: its content as PNG, by the number of its sample.
pub type NumberedPicture = (usize, Vec<u8>);

/// Samples as stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredSet {
    /// The step; none for files that only match a pattern of the run file.
    pub step: Option<u64>,
    /// When it was written.
    pub time: Option<SystemTime>,
    /// The samples.
    pub samples: Vec<StoredSample>,
    /// How often each class was taken for which.
    pub confusion: Option<Confusion>,
}

/// A sample as stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredSample {
    /// The sample; [`read_picture`] reads its picture.
    pub sample: Sample,
    /// The file of its picture, which may be missing.
    pub picture: Option<PathBuf>,
}

/// The name of a file in the folder: `step-000000120-1.png`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FileName {
    step: u64,
    number: Option<u32>,
    ending: String,
}

impl FileName {
    fn parse(name: &str) -> Option<Self> {
        let (numbers, ending) = name.strip_prefix("step-")?.rsplit_once('.')?;
        let (step, number) = match numbers.split_once('-') {
            Some((first, second)) => (first, Some(second.parse().ok()?)),
            None => (numbers, None),
        };
        let digits = step.len() >= 9 && step.bytes().all(|byte| byte.is_ascii_digit());
        digits.then_some(())?;
        Some(Self { step: step.parse().ok()?, number, ending: ending.to_ascii_lowercase() })
    }

    fn is_set(&self) -> bool {
        self.number.is_none() && self.ending == "json"
    }
}

/// Writes a set with its pictures, and sets the names of the pictures in it.
///
/// # Errors
/// Returns the system's error; then an older set of this step may be gone.
pub fn write(run: &Path, mut set: SampleSet, pictures: &[NumberedPicture]) -> io::Result<()> {
    let folder = folder(run);
    match DirBuilder::new().mode(0o755).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(&folder)?.is_dir() {
        return Err(io::Error::other("the folder `samples` is a link or a file; remove it"));
    }
    let written = write_pictures(&folder, &mut set, pictures)
        .and_then(|()| write_unsynced(&folder.join(set_name(set.step)), &serde_json::to_vec(&set)?));
    if written.is_err() {
        remove(run, set.step).ok();
    }
    written
}

fn write_pictures(folder: &Path, set: &mut SampleSet, pictures: &[NumberedPicture]) -> io::Result<()> {
    for (number, picture) in pictures {
        let Some(sample) = set.samples.get_mut(*number) else { continue };
        let name = format!("step-{:09}-{number}.png", set.step);
        write_unsynced(&folder.join(&name), picture)?;
        sample.image = Some(name);
    }
    Ok(())
}

/// Returns the steps that have samples, newest first.
#[must_use]
pub fn steps(run: &Path) -> Vec<u64> {
    let steps: BTreeSet<u64> = files(run).into_iter().map(|(name, _)| name.step).collect();
    steps.into_iter().rev().collect()
}

/// Returns the samples of a step: its set, or what a script wrote. Cuts texts after `most_text` bytes.
///
/// # Errors
/// Returns an error when there is no set of this step, or it cannot be read.
pub fn read(run: &Path, step: u64, most_text: usize) -> Result<StoredSet, ReadError> {
    let path = folder(run).join(set_name(step));
    if is_link(&folder(run)) || is_link(&path) {
        return Err(ReadError::Io(io::Error::other("this is a symbolic link; only a file of the run can be read")));
    }
    match file::read(&path, Limit::Handwritten) {
        Ok(content) => {
            let set: SampleSet = serde_json::from_slice(&content).map_err(|error| ReadError::Io(error.into()))?;
            // The file's name counts, as in the list of steps.
            Ok(stored(run, SampleSet { step, ..set }, modified(&path), most_text))
        }
        Err(error) if error.is_missing() => read_script(run, step, most_text).ok_or(error),
        Err(error) => Err(error),
    }
}

/// Reads a picture. Decode it with limits: its content is untrusted.
///
/// # Errors
/// Returns an error when the file is missing, too large or not a regular file.
pub fn read_picture(path: &Path) -> Result<Vec<u8>, ReadError> {
    file::read(path, Limit::Picture)
}

/// A file that matches the run file's pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchingFile {
    /// When it was written.
    pub time: SystemTime,
    /// The file.
    pub path: PathBuf,
}

impl MatchingFile {
    /// Reads the file as a set; cuts a text after `most_text` bytes.
    #[must_use]
    pub fn read(self, most_text: usize) -> StoredSet {
        file_set(None, self.time, [self.path], most_text)
    }
}

/// Returns the files that match the run file's pattern, newest first. Reads none of them.
#[must_use]
pub fn matching(run: &Path, command: &CommandSpec, rung: (&str, &Preset), attempt: u64) -> Vec<MatchingFile> {
    let Some(pattern) = &command.samples else { return Vec::new() };
    let (rung_name, preset) = rung;
    let context = AttemptContext {
        run_dir: run.to_owned(),
        attempt_dir: run.join("attempts").join(attempt.to_string()),
        rung_name: rung_name.to_owned(),
        attempt,
        ..AttemptContext::default()
    };
    let Ok(glob) = Glob::parse(&resolve_pattern(pattern, preset, &context)) else { return Vec::new() };
    let found = glob.find(&command.directory).into_iter();
    let mut files: Vec<MatchingFile> =
        found.filter_map(|path| Some(MatchingFile { time: modified(&path)?, path })).collect();
    files.sort_by(|a, b| b.cmp(a));
    files.truncate(MAX_MATCHES);
    files
}

/// Deletes the sets that are neither the first, nor among the newest, nor of a step in `kept`. Returns their number.
///
/// # Errors
/// Returns the system's error.
pub fn prune(run: &Path, kept: &BTreeSet<u64>) -> io::Result<usize> {
    let gone = superfluous(&sets(run), kept);
    delete(run, &gone)?;
    Ok(gone.len())
}

/// Returns the steps after `step` that have sets, oldest first.
#[must_use]
pub fn sets_after(run: &Path, step: u64) -> Vec<u64> {
    sets(run).into_iter().filter(|set| *set > step).collect()
}

/// Deletes sets with their pictures.
///
/// # Errors
/// Returns the system's error.
pub fn delete(run: &Path, sets: &[u64]) -> io::Result<()> {
    sets.iter().try_for_each(|step| remove(run, *step))
}

/// Returns the steps of all sets, oldest first.
fn sets(run: &Path) -> Vec<u64> {
    files(run).into_iter().filter(|(name, _)| name.is_set()).map(|(name, _)| name.step).collect()
}

/// Returns the sets to delete, out of all sets by step, oldest first.
fn superfluous(sets: &[u64], kept: &BTreeSet<u64>) -> Vec<u64> {
    let old = sets.len().saturating_sub(KEPT_NEWEST);
    sets[..old].iter().skip(1).filter(|step| !kept.contains(step)).copied().collect()
}

/// Deletes a set and its pictures.
fn remove(run: &Path, step: u64) -> io::Result<()> {
    let pictures = files(run).into_iter().filter(|(name, _)| name.step == step && name.ending == "png");
    // The set goes last: without it, a picture would count as a script's own.
    let set = folder(run).join(set_name(step));
    for path in pictures.map(|(_, path)| path).chain([set]) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the files of a run's folder by step, number and ending. Leaves out links: a run from elsewhere could show
/// files of the reader.
fn files(run: &Path) -> Vec<(FileName, PathBuf)> {
    if is_link(&folder(run)) {
        return Vec::new();
    }
    let entries = fs::read_dir(folder(run)).into_iter().flatten().flatten().take(MAX_FILES);
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let named = |entry: fs::DirEntry| Some((FileName::parse(entry.file_name().to_str()?)?, entry.path()));
    let mut files: Vec<_> = entries.filter_map(named).collect();
    files.sort();
    files
}

/// Returns what a script wrote at a step.
fn read_script(run: &Path, step: u64, most_text: usize) -> Option<StoredSet> {
    let paths: Vec<PathBuf> =
        files(run).into_iter().filter(|(name, _)| name.step == step).map(|(_, path)| path).collect();
    let time = paths.iter().filter_map(|path| modified(path)).max()?;
    Some(file_set(Some(step), time, paths, most_text))
}

/// Returns files as a set: texts and pictures.
fn file_set(
    step: Option<u64>,
    time: SystemTime,
    paths: impl IntoIterator<Item = PathBuf>,
    most_text: usize,
) -> StoredSet {
    let samples = paths.into_iter().map(|path| {
        let name = path.file_name().map(|name| text::escape_line(&name.to_string_lossy()).into_owned());
        if !is_text(&path) {
            return StoredSample { sample: Sample { name, ..Sample::default() }, picture: Some(path) };
        }
        let text = read_text(&path, most_text).unwrap_or_else(|error| error.to_string());
        StoredSample { sample: Sample { name, text: Some(text), ..Sample::default() }, picture: None }
    });
    StoredSet { step, time: Some(time), samples: samples.collect(), confusion: None }
}

/// Reads the beginning of a text file.
fn read_text(path: &Path, most: usize) -> Result<String, ReadError> {
    // A character may lie across the limit.
    let bytes = file::head(path, most as u64 + 4)?;
    Ok(cut_text(String::from_utf8_lossy(&bytes).into_owned(), most))
}

/// Cuts a text after `most` bytes, and says so in its last line.
fn cut_text(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.extend(["\n… cut after ", &bytes(most as u64)]);
    }
    text
}

/// Returns a set as read from its file. Whoever made the file may have written anything into it.
fn stored(run: &Path, set: SampleSet, time: Option<SystemTime>, most_text: usize) -> StoredSet {
    let cut = |text: Option<String>| text.map(|text| cut_text(text, most_text));
    let samples = set.samples.into_iter().map(|sample| {
        let sample = Sample { prompt: cut(sample.prompt), text: cut(sample.text), ..sample };
        let picture = sample.image.as_deref().filter(|name| is_plain(name)).map(|name| folder(run).join(name));
        let picture = picture.filter(|path| !is_link(path));
        StoredSample { sample, picture }
    });
    let square = |confusion: &Confusion| {
        let size = confusion.classes.len();
        confusion.counts.len() == size && confusion.counts.iter().all(|row| row.len() == size)
    };
    StoredSet { step: Some(set.step), time, samples: samples.collect(), confusion: set.confusion.filter(square) }
}

/// Reports whether a name is that of a file in the same folder.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| TEXTS.contains(&ending.as_str()))
}

/// Returns the time when a regular file was written; none for a link.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?.modified().ok()
}

fn folder(run: &Path) -> PathBuf {
    run.join(FOLDER)
}

fn set_name(step: u64) -> String {
    format!("step-{step:09}.json")
}

#[cfg(test)]
mod tests;
