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
/// staged folder is gone, and a checkpoint of the same step is untouched.
///
/// # Errors
/// Returns an error that names the file, or why the folder is refused.
pub fn publish_staged(run_dir: &Path, contents: &StagedContents<'_>) -> Result<Written, StagedError> {
    let name = name_of(contents.step);
    let folder = run_dir.join(FOLDER);
    let staged = find_staged(&folder, contents.folder, contents.step)?;
    let parts: Vec<PathBuf> =
        contents.parts.iter().map(|part| find_staged(&folder, part, contents.step)).collect::<Result<_, _>>()?;
    let merged = parts.iter().try_for_each(|part| move_files(part, &staged));
    let published = merged.and_then(|()| complete(&staged, contents)).and_then(|Completed { bytes, verified }| {
        publish(&folder, &staged, &folder.join(&name))?;
        let mut known = VerifiedFiles::read(run_dir);
        known.replace(name, verified);
        known.write(run_dir);
        Ok(Written { path: relative_path(contents.step), bytes })
    });
    if published.is_err() {
        parts.iter().chain([&staged]).for_each(|folder| discard(folder));
    }
    published
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
pub fn discard_staged_by(run_dir: &Path, pid: u32, complete: &[&str]) {
    for entry in fs::read_dir(run_dir.join(FOLDER)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !complete.contains(name)) else { continue };
        if StagedName::parse(name).is_some_and(|name| name.pid == Some(pid)) {
            discard(&entry.path());
        }
    }
}

/// The name of a staged folder: `.new-step-000000120`, or `.new-step-000000120.4711` with the process that writes it.
/// Two processes of one command may save the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StagedName {
    pub(super) step: u64,
    pid: Option<u32>,
}

impl StagedName {
    /// Reads a name; none if it is not exactly as such a folder is named.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(UNFINISHED)?;
        let (step, pid) = match rest.split_once('.') {
            Some((step, pid)) => {
                let number: u32 = pid.parse().ok()?;
                (step, Some(number).filter(|number| number.to_string() == pid)?.into())
            }
            None => (rest, None),
        };
        Some(Self { step: step_of(step)?, pid })
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
    Ok(Completed { bytes: manifest.bytes() + text.len() as u64, verified })
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
mod tests {
    use super::super::{CheckpointError, MANIFEST, STATE, STEPS, clean, list, load, newest_valid, verify};
    use super::{StagedContents, StagedError, discard_staged, discard_staged_by, publish_staged};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    fn stage(run: &Path, step: u64, weights: &[u8]) -> PathBuf {
        let folder = run.join(format!("checkpoints/.new-step-{step:09}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.safetensors"), weights).unwrap();
        fs::write(folder.join("python.json"), b"{}").unwrap();
        folder
    }

    fn contents(step: u64, folder: &str) -> StagedContents<'_> {
        StagedContents {
            step,
            samples: step * 4,
            build: "test",
            folder,
            parts: &[],
            state: b"{\"step\":1}",
            steps: b"",
        }
    }

    fn publish(run: &Path, step: u64) -> Result<super::Written, StagedError> {
        publish_staged(run, &contents(step, &format!(".new-step-{step:09}")))
    }

    #[test]
    fn a_staged_folder_becomes_a_checkpoint_like_any_other() {
        let run = TempDir::new().unwrap();
        stage(run.path(), 7, b"weights");
        let written = publish(run.path(), 7).unwrap();
        let loaded = load(&run.path().join(&written.path)).unwrap();
        let names: Vec<&str> = loaded.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["model.safetensors", "python.json", STATE, STEPS]);
        assert_eq!((loaded.manifest.step, loaded.manifest.samples), (7, 28));
        assert_eq!(loaded.files["model.safetensors"], b"weights");
        let on_disk = fs::read_dir(run.path().join(&written.path)).unwrap();
        assert_eq!(written.bytes, on_disk.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>());
        // A redone step replaces the old one.
        stage(run.path(), 7, b"others!");
        publish(run.path(), 7).unwrap();
        assert_eq!(load(&run.path().join(&written.path)).unwrap().files["model.safetensors"], b"others!");
        assert_eq!(fs::read_dir(run.path().join("checkpoints")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_exactly_a_staged_folder_is_refused_and_the_published_one_stays() {
        let run = TempDir::new().unwrap();
        stage(run.path(), 5, b"good");
        publish(run.path(), 5).unwrap();
        stage(run.path(), 6, b"good");
        let wrong = ["step-000000005", ".new-step-6", "../checkpoints/.new-step-000000006", "", ".new-step-000000006/"];
        for name in
            wrong.into_iter().chain([".new-step-000000006.", ".new-step-000000006.7/x", ".new-step-000000006.07"])
        {
            let refused = publish_staged(run.path(), &contents(6, name));
            assert!(matches!(refused, Err(StagedError::Name { .. })), "{name}: {refused:?}");
        }
        let refused = publish_staged(run.path(), &contents(7, ".new-step-000000006"));
        assert!(matches!(refused, Err(StagedError::Name { step: 7, .. })), "the step differs");
        assert!(matches!(publish(run.path(), 8), Err(StagedError::NoFolder(_))));
        symlink(run.path().join("checkpoints/step-000000005"), run.path().join("checkpoints/.new-step-000000009"))
            .unwrap();
        assert!(matches!(publish(run.path(), 9), Err(StagedError::NoFolder(_))), "the folder is a link");
        for (spoil, is_expected) in [
            (
                (|folder| symlink("/etc/passwd", folder.join("more")).unwrap()) as fn(&Path),
                (|error| matches!(error, StagedError::NotPlain(_))) as fn(&StagedError) -> bool,
            ),
            (|folder| fs::create_dir(folder.join("more")).unwrap(), |error| matches!(error, StagedError::NotPlain(_))),
            (|folder| fs::write(folder.join(MANIFEST), "").unwrap(), |error| matches!(error, StagedError::Reserved(_))),
            (|folder| fs::write(folder.join(STATE), "").unwrap(), |error| matches!(error, StagedError::Reserved(_))),
        ] {
            let folder = stage(run.path(), 5, b"spoilt");
            spoil(&folder);
            let error = publish(run.path(), 5).unwrap_err();
            assert!(is_expected(&error), "{error}");
            assert!(!folder.exists(), "a refused folder is removed: {error}");
        }
        fs::create_dir(run.path().join("checkpoints/.new-step-000000010")).unwrap();
        assert!(matches!(publish(run.path(), 10), Err(StagedError::Count { count: 0, .. })));
        assert_eq!(newest_valid(run.path()).0.unwrap().files["model.safetensors"], b"good");
    }

    #[test]
    fn two_processes_stage_the_same_step_and_each_ones_leftovers_are_its_own() {
        let run = TempDir::new().unwrap();
        let stage_by = |step: u64, pid: u32, weights: &[u8]| {
            let plain = stage(run.path(), step, weights);
            fs::rename(&plain, plain.with_file_name(format!(".new-step-{step:09}.{pid}"))).unwrap();
        };
        let names = || -> Vec<String> {
            let all = fs::read_dir(run.path().join("checkpoints")).unwrap();
            let mut names: Vec<String> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        stage_by(5, 41, b"first");
        stage_by(5, 42, b"other");
        let written = publish_staged(run.path(), &contents(5, ".new-step-000000005.41")).unwrap();
        assert_eq!(load(&run.path().join(&written.path)).unwrap().files["model.safetensors"], b"first");
        assert_eq!(names(), [".new-step-000000005.42", "step-000000005"], "the other one's folder is untouched");
        stage_by(6, 42, b"whole");
        stage_by(6, 4, b"others");
        discard_staged_by(run.path(), 42, &[".new-step-000000006.42"]);
        assert_eq!(names(), [".new-step-000000006.4", ".new-step-000000006.42", "step-000000005"]);
        discard_staged(run.path(), 5, "step-000000005");
        discard_staged(run.path(), 6, ".new-step-000000006.42");
        assert_eq!(names(), [".new-step-000000006.4", "step-000000005"]);
        clean(run.path());
        assert_eq!(names(), ["step-000000005"], "the next start");
    }

    #[test]
    fn the_parts_of_several_processes_become_one_checkpoint_or_none() {
        let run = TempDir::new().unwrap();
        let stage_by = |pid: u32, file: &str| {
            let folder = run.path().join(format!("checkpoints/.new-step-000000005.{pid}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), pid.to_string()).unwrap();
        };
        let publish = || {
            let parts = [".new-step-000000005.42"];
            publish_staged(run.path(), &StagedContents { parts: &parts, ..contents(5, ".new-step-000000005.41") })
        };
        stage_by(41, "model.safetensors");
        assert!(matches!(publish(), Err(StagedError::NoFolder(_))), "a part is missing");
        stage_by(42, "rank-1.model.safetensors");
        let loaded = load(&run.path().join(publish().unwrap().path)).unwrap();
        assert_eq!(loaded.files["model.safetensors"], b"41");
        assert_eq!(loaded.files["rank-1.model.safetensors"], b"42");
        stage_by(41, "model.safetensors");
        stage_by(42, "model.safetensors");
        assert!(matches!(publish(), Err(StagedError::Twice(_))));
        let left = fs::read_dir(run.path().join("checkpoints")).unwrap().count();
        assert_eq!((left, verify(&list(run.path())[0].path).unwrap().step), (1, 5), "the old one stays, alone");
    }

    /// The folder after each action of a publisher that is killed: the next start finds the old checkpoint or the new
    /// one, whole.
    #[test]
    fn a_publisher_killed_at_any_point_leaves_the_old_checkpoint_or_the_new_one() {
        type Stage = fn(&Path);
        let stages: [(&str, Stage); 5] = [
            ("half a file", |folder| fs::write(folder.join("model.safetensors"), b"hal").unwrap()),
            ("staged", |_| {}),
            ("state", |folder| fs::write(folder.join(STATE), b"{}").unwrap()),
            ("half a manifest", |folder| fs::write(folder.join(MANIFEST), b"{\"version\": 1").unwrap()),
            ("synced", |folder| fs::write(folder.join(MANIFEST), b"{}").unwrap()),
        ];
        for (what, act) in stages {
            let run = TempDir::new().unwrap();
            stage(run.path(), 5, b"old");
            publish(run.path(), 5).unwrap();
            act(&stage(run.path(), 10, b"new"));
            clean(run.path());
            let entries: Vec<u64> = list(run.path()).iter().map(|entry| entry.step).collect();
            assert_eq!(entries, [5], "{what}");
            assert_eq!(fs::read_dir(run.path().join("checkpoints")).unwrap().count(), 1, "{what}");
            stage(run.path(), 10, b"new");
            publish(run.path(), 10).unwrap();
            clean(run.path());
            let newest = &list(run.path())[0];
            assert_eq!(verify(&newest.path).unwrap().step, 10, "{what}");
        }
    }

    #[test]
    fn a_full_disk_is_told_from_a_refused_folder() {
        let full =
            CheckpointError::Io { file: "x".into(), action: "write", source: std::io::ErrorKind::StorageFull.into() };
        assert!(StagedError::Write(full).is_disk_failure());
        assert!(!StagedError::NoFolder("x".into()).is_disk_failure());
    }
}
