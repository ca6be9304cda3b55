//! Where kernels are kept. Tuning decisions are in the run directory, because they are part of a run;
//! compiled kernels, and decisions for future runs, are in the user's cache.
//!
//! Both caches depend on GPU, driver, compiler and the trainer's own kernels: a trainer's `fingerprint` covers
//! these, and names the directories.

use super::run_dir::write_unsynced;
use super::user_folder::{self, user_folder};
use crate::config::knobs::{Autotune, Loader, Preset};
use crate::untrusted::file::{self, Limit};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the directory of a run's tuning decisions.
#[must_use]
pub fn decisions_of(run_dir: &Path) -> PathBuf {
    run_dir.join("kernels")
}

/// Returns the directory of a run's choices without tuning (`training.autotune: later`).
#[must_use]
pub fn untuned_of(run_dir: &Path) -> PathBuf {
    run_dir.join("kernels-untuned")
}

/// Returns the directory of kernels compiled for a device; none if the user has no cache directory.
#[must_use]
pub fn compiled(fingerprint: &str) -> Option<PathBuf> {
    Some(in_cache("kernels")?.join(fingerprint))
}

/// Returns the directory of tuning decisions that new runs on a device start with; none if the user
/// has no cache directory.
#[must_use]
pub fn decisions(fingerprint: &str) -> Option<PathBuf> {
    Some(in_cache("tuning")?.join(fingerprint))
}

/// Returns a folder in the user's cache.
#[must_use]
pub fn in_cache(kind: &str) -> Option<PathBuf> {
    Some(user_folder("XDG_CACHE_HOME", ".cache")?.join(kind))
}

/// How a start chooses among kernels that compute the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    /// By measuring them.
    Due,
    /// As measured before.
    Done,
    /// By taking the first that runs.
    Skipped,
}

/// Marks of tuned rungs, in a directory of tuning decisions.
const MARKS: &str = "prepared";

/// The kernels that a rung needs: equal for rungs that compute the same shapes in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSet(String);

impl KernelSet {
    /// Returns the kernels of a rung.
    #[must_use]
    pub fn of(preset: &Preset) -> Self {
        let mut preset = preset.clone();
        let training = &mut preset.training;
        (training.autotune, training.steps, training.epochs, training.seed) = (Autotune::default(), None, None, 0);
        (training.loader, training.memory_cleanup_every) = (Loader { threads: 1, prefetch: 0 }, 0);
        // These are numbers in the kernels of an update.
        let of_update = &preset.optimizer;
        let update = (of_update.moments, of_update.offload, &of_update.groups);
        let text = serde_json::to_string(&(&preset.data, &preset.model, &*training, update));
        let hash = blake3::hash(text.unwrap_or_default().as_bytes()).to_hex();
        Self(hash[..16].to_owned())
    }

    /// Reports whether these decisions cover every kernel of the rung, as measured by `prepare`.
    #[must_use]
    pub fn is_tuned_in(&self, decisions: &Path) -> bool {
        self.mark_in(decisions).exists()
    }

    /// Notes that these decisions cover the rung.
    ///
    /// # Errors
    /// Returns an error when the note cannot be written.
    pub fn mark_tuned_in(&self, decisions: &Path) -> io::Result<()> {
        let mark = self.mark_in(decisions);
        fs::create_dir_all(mark.parent().unwrap_or(decisions))?;
        fs::write(mark, "")
    }

    fn mark_in(&self, decisions: &Path) -> PathBuf {
        decisions.join(MARKS).join(&self.0)
    }

    /// Returns how many kernels an earlier start of this kind used before its first step, on any device.
    #[must_use]
    pub fn known_count(&self, tuning: Tuning) -> Option<u64> {
        file::read_text(&self.count_file(tuning)?, Limit::Record).ok()?.trim().parse().ok()
    }

    /// Keeps the count for the next start. Without it, that start only lacks an estimate.
    pub fn keep_count(&self, tuning: Tuning, kernels: u64) {
        if let Some(file) = self.count_file(tuning)
            && let Some(folder) = file.parent()
        {
            let _ = user_folder::create(folder).and_then(|()| fs::write(&file, kernels.to_string()));
        }
    }

    fn count_file(&self, tuning: Tuning) -> Option<PathBuf> {
        let kind = match tuning {
            Tuning::Due => "tuning",
            Tuning::Done => "tuned",
            Tuning::Skipped => "untuned",
        };
        Some(in_cache("kernels")?.join("counts").join(format!("{}-{kind}", self.0)))
    }
}

/// Gives a run the decisions that `prepare` made since it began. Returns false, and changes nothing, if the run has made
/// decisions of its own, since they are part of its results.
///
/// # Errors
/// Returns an error when a file cannot be read or copied.
pub fn take_over(prepared: &Path, own: &Path) -> io::Result<bool> {
    let is_taken = continues(prepared, own)?;
    if is_taken {
        copy(prepared, own)?;
    }
    Ok(is_taken)
}

/// Reports whether each file below `prepared` begins with the one that is in its place below `own`, if there is one:
/// `CubeCL` appends to these files.
fn continues(prepared: &Path, own: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(prepared)? {
        let entry = entry?;
        let other = own.join(entry.file_name());
        let goes_on = if entry.file_type()?.is_dir() {
            continues(&entry.path(), &other)?
        } else {
            match file::read(&other, Limit::Record) {
                Ok(content) => read(&entry.path())?.starts_with(&content),
                Err(error) if error.is_missing() => true,
                Err(error) => return Err(io::Error::other(error)),
            }
        };
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    file::read(path, Limit::Record).map_err(io::Error::other)
}

/// Copies a folder recursively and returns the number of files. A missing folder counts as empty. Files are replaced as a
/// whole, and marks of tuned rungs come last, so a copy that is cut off claims nothing.
///
/// # Errors
/// Returns an error when a file cannot be copied.
pub fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    fs::create_dir_all(to)?;
    let mut entries: Vec<fs::DirEntry> = entries.collect::<io::Result<_>>()?;
    entries.sort_by_key(|entry| entry.file_name() == MARKS);
    let mut files = 0;
    for entry in entries {
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files += copy(&entry.path(), &target)?;
        } else {
            write_unsynced(&target, &read(&entry.path())?)?;
            files += 1;
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{KernelSet, copy, take_over};
    use crate::config::knobs::{Autotune, Precision};
    use crate::config::run::{AsWritten, Run, Source};
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_folder_is_copied_recursively_and_a_missing_one_counts_as_empty() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        assert_eq!(copy(&from, &to).unwrap(), 0);
        assert!(!to.exists());
        fs::create_dir_all(from.join("deep")).unwrap();
        fs::write(from.join("a"), "1").unwrap();
        fs::write(from.join("deep/b"), "2").unwrap();
        assert_eq!(copy(&from, &to).unwrap(), 2);
        assert_eq!(fs::read_to_string(to.join("deep/b")).unwrap(), "2");
    }

    #[test]
    fn decisions_are_taken_over_unless_a_run_has_made_its_own() {
        let place = tempfile::tempdir().unwrap();
        let (prepared, own) = (place.path().join("prepared-decisions"), place.path().join("own"));
        for folder in ["gpu", "prepared"] {
            fs::create_dir_all(prepared.join(folder)).unwrap();
        }
        fs::write(prepared.join("gpu/matmul"), "first second").unwrap();
        fs::write(prepared.join("prepared/rung"), "").unwrap();
        assert!(take_over(&prepared, &own).unwrap() && own.join("prepared/rung").exists());
        fs::write(prepared.join("gpu/matmul"), "first second third").unwrap();
        assert!(take_over(&prepared, &own).unwrap(), "more of the same");
        assert_eq!(fs::read_to_string(own.join("gpu/matmul")).unwrap(), "first second third");
        fs::write(own.join("gpu/matmul"), "first other").unwrap();
        assert!(!take_over(&prepared, &own).unwrap());
        assert_eq!(fs::read_to_string(own.join("gpu/matmul")).unwrap(), "first other");
    }

    #[test]
    fn kernels_depend_on_shapes_and_not_on_the_length_of_a_run() {
        let text = include_str!("../../../../configs/digits.yaml");
        let source = Source { file: "digits", text, base: Path::new("/"), overrides: &[] };
        let preset = Run::read(&source, &AsWritten).unwrap().rungs[0].preset.clone();
        let set = KernelSet::of(&preset);
        let mut other = preset.clone();
        (other.training.steps, other.training.seed, other.training.autotune) = (Some(7), 9, Autotune::Later);
        other.optimizer.lr *= 2.0;
        other.training.loader.threads += 1;
        assert_eq!(KernelSet::of(&other), set);
        other.training.micro_batch *= 2;
        assert_ne!(KernelSet::of(&other), set);
        let mut other = preset;
        other.training.precision = Precision::Bf16;
        assert_ne!(KernelSet::of(&other), set);
        let place = tempfile::tempdir().unwrap();
        assert!(!set.is_tuned_in(place.path()));
        set.mark_tuned_in(place.path()).unwrap();
        assert!(set.is_tuned_in(place.path()) && !KernelSet::of(&other).is_tuned_in(place.path()));
    }
}
