//! The files of containers that were hashed and found whole, so that a start does not read gigabytes again:
//! `verified.json` in the run directory, outside the containers. Only a harness writes it, and nobody needs it.
//!
//! A file counts as verified while its stamp is the same in the same boot of the machine. The manifest is always read.

use super::error::Doing;
use super::{CheckpointError, FOLDER, manifest, manifest::Manifest, verify_file};
use crate::store::identity::boot_id;
use crate::store::run_dir::write_unsynced;
use crate::store::stamp::Stamp;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FILE: &str = "verified.json";
/// Coarsest clock of a file system (FAT). A file that changed this recently can change again under the same stamp.
const COARSEST_CLOCK: Duration = Duration::from_secs(2);

/// The verified files of a run's containers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VerifiedFiles {
    /// The boot of the machine that all of it belongs to.
    boot: String,
    /// The files of each container, by its name and theirs.
    containers: BTreeMap<String, BTreeMap<String, VerifiedFile>>,
    #[serde(skip)]
    changed: bool,
}

/// One file as it was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VerifiedFile {
    device: u64,
    #[serde(flatten)]
    stamp: Stamp,
    blake3: String,
}

/// The stamp of a file before it is hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeforeHash {
    device: u64,
    stamp: Stamp,
    is_settled: bool,
}

impl BeforeHash {
    /// Stats a file. A change while it is hashed then shows as another stamp.
    pub(super) fn of(path: &Path) -> Result<Self, CheckpointError> {
        let about = fs::symlink_metadata(path).doing("open", path)?;
        let stamp = Stamp::of(&about);
        Ok(Self { device: about.dev(), stamp, is_settled: is_settled(stamp, SystemTime::now()) })
    }

    /// Returns the record of the file with the hash that followed; none if a later change could go unseen.
    pub(super) fn verified(self, blake3: &str) -> Option<VerifiedFile> {
        let Self { device, stamp, is_settled } = self;
        is_settled.then(|| VerifiedFile { device, stamp, blake3: blake3.to_owned() })
    }
}

impl VerifiedFiles {
    /// Reads the record of a run; an empty one if there is none of this boot.
    pub(super) fn read(run_dir: &Path) -> Self {
        let boot = boot_id();
        let text = file::read(&run_dir.join(FILE), Limit::Record).ok();
        let known = text.and_then(|text| serde_json::from_slice(&text).ok());
        // Without an id, boots cannot be told apart.
        known.filter(|known: &Self| known.boot == boot && !boot.is_empty()).unwrap_or(Self {
            boot,
            containers: BTreeMap::new(),
            changed: false,
        })
    }

    /// Verifies a container as [`super::verify`] does, but reads only files that are not known to be whole.
    pub(super) fn verify(&mut self, path: &Path) -> Result<Manifest, CheckpointError> {
        let manifest = manifest(path)?;
        let container = name_of(path);
        let mut verified = BTreeMap::new();
        for entry in &manifest.files {
            let before = BeforeHash::of(&path.join(&entry.name))?;
            let now = VerifiedFile { device: before.device, stamp: before.stamp, blake3: entry.blake3.clone() };
            let known = self.containers.get(&container).and_then(|files| files.get(&entry.name));
            if known == Some(&now) {
                verified.insert(entry.name.clone(), now);
                continue;
            }
            verify_file(path, entry)?;
            verified.extend(before.verified(&entry.blake3).map(|file| (entry.name.clone(), file)));
        }
        self.replace(container, verified);
        Ok(manifest)
    }

    /// Records the verified files of a container in place of those known.
    pub(super) fn replace(&mut self, container: String, files: BTreeMap<String, VerifiedFile>) {
        if self.containers.get(&container) != Some(&files) {
            self.containers.insert(container, files);
            self.changed = true;
        }
    }

    /// Writes the record, if it changed, without containers that are gone.
    pub(super) fn write(mut self, run_dir: &Path) {
        if !self.changed {
            return;
        }
        self.containers.retain(|name, _| run_dir.join(FOLDER).join(name).is_dir());
        if let Ok(text) = serde_json::to_vec(&self) {
            // Without it, the next start takes longer.
            let _ = write_unsynced(&run_dir.join(FILE), &text);
        }
    }
}

/// Reports whether every later change of a file gives it another stamp.
fn is_settled(stamp: Stamp, now: SystemTime) -> bool {
    let limit = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(COARSEST_CLOCK).as_nanos();
    u128::try_from(stamp.changed_ns).is_ok_and(|changed| changed < limit)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::staged::{StagedContents, publish_staged};
    use super::super::{CheckpointError, newest_verified, verify};
    use super::{FILE, Stamp, VerifiedFiles};
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, SystemTime};
    use tempfile::TempDir;

    /// Publishes a container of a command. Returns its weights.
    fn publish(run: &Path, step: u64) -> PathBuf {
        let folder = format!(".new-step-{step:09}");
        let staged = run.join("checkpoints").join(&folder);
        fs::create_dir_all(&staged).unwrap();
        fs::write(staged.join("model.safetensors"), b"weights").unwrap();
        let contents = StagedContents {
            step,
            samples: step,
            build: "test",
            folder: &folder,
            parts: &[],
            state: b"{}",
            steps: b"",
        };
        let written = publish_staged(run, &contents).unwrap();
        run.join(written.path).join("model.safetensors")
    }

    /// Returns the step that a start finds.
    fn start(run: &Path) -> Option<u64> {
        newest_verified(run).verified.map(|(entry, _)| entry.step)
    }

    /// Overwrites a file; the file system's clock has moved on since it was written.
    fn overwrite(path: &Path, bytes: &[u8]) {
        let stamp = || Stamp::of(&fs::metadata(path).unwrap());
        let before = stamp();
        while stamp() == before {
            fs::write(path, bytes).unwrap();
        }
    }

    /// Records all files as verified as they are now, as if they had been hashed long after they were written.
    fn record(run: &Path, step: u64) {
        let mut verified = VerifiedFiles::read(run);
        let path = run.join(format!("checkpoints/step-{step:09}"));
        let files = super::manifest(&path).unwrap().files.into_iter().map(|entry| {
            let before = super::BeforeHash::of(&path.join(&entry.name)).unwrap();
            let file = super::BeforeHash { is_settled: true, ..before }.verified(&entry.blake3).unwrap();
            (entry.name, file)
        });
        verified.replace(super::name_of(&path), files.collect());
        verified.write(run);
    }

    #[test]
    fn a_file_that_changed_after_it_was_verified_is_found_at_the_next_start() {
        let run = TempDir::new().unwrap();
        publish(run.path(), 5);
        let weights = publish(run.path(), 10);
        record(run.path(), 10);
        assert_eq!(start(run.path()), Some(10));
        let modified = fs::metadata(&weights).unwrap().modified().unwrap();
        overwrite(&weights, b"weIghts");
        assert_eq!(start(run.path()), Some(5), "the same length");
        File::options().write(true).open(&weights).unwrap().set_modified(modified).unwrap();
        let newest = newest_verified(run.path());
        assert!(matches!(newest.rejected[0].1, CheckpointError::Damaged { .. }), "the time of change tells");
        // Another file of that name, and a file that is gone.
        fs::write(weights.with_extension("new"), b"weIghts").unwrap();
        fs::rename(weights.with_extension("new"), &weights).unwrap();
        assert_eq!(start(run.path()), Some(5));
        fs::remove_file(&weights).unwrap();
        assert_eq!(start(run.path()), Some(5));
    }

    #[test]
    fn a_verified_file_is_not_read_again_in_the_same_boot() {
        let run = TempDir::new().unwrap();
        publish(run.path(), 5);
        let weights = publish(run.path(), 10);
        // Bytes that changed below the file system: the stamps are those of the record.
        fs::write(&weights, b"weIghts").unwrap();
        assert_eq!(start(run.path()), Some(5));
        record(run.path(), 10);
        assert_eq!(start(run.path()), Some(10), "nothing read it");
        assert!(verify(weights.parent().unwrap()).is_err(), "`checkpoints verify` reads every byte");
        let file = run.path().join(FILE);
        let text = fs::read_to_string(&file).unwrap();
        for (from, to) in [
            (super::boot_id(), "another boot".to_owned()),
            ("\"device\":".to_owned(), "\"device\":1".to_owned()),
            ("\"bytes\":".to_owned(), "\"bytes\":1".to_owned()),
        ] {
            assert!(text.contains(&from), "{from}");
            fs::write(&file, text.replace(&from, &to)).unwrap();
            assert_eq!(start(run.path()), Some(5), "{from} differs");
        }
    }

    #[test]
    fn only_files_that_were_written_long_enough_ago_are_recorded() {
        let run = TempDir::new().unwrap();
        let weights = publish(run.path(), 10);
        let known = |run: &Path| VerifiedFiles::read(run).containers.values().map(super::BTreeMap::len).sum::<usize>();
        assert_eq!((start(run.path()), known(run.path())), (Some(10), 0), "it could change under the same stamp");
        // No program can set the time of change, so the clock is that of the check.
        let before = super::BeforeHash::of(&weights).unwrap();
        assert!(!before.is_settled && before.verified("").is_none());
        let old = super::is_settled(before.stamp, SystemTime::now() + Duration::from_secs(3));
        assert!(old);
        record(run.path(), 10);
        assert_eq!(known(run.path()), 3);
        super::super::remove(run.path(), 10).unwrap();
        publish(run.path(), 15);
        record(run.path(), 15);
        assert_eq!(known(run.path()), 3, "what is gone is forgotten");
    }
}
