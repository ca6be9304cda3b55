//! Checkpoints that are complete and not adopted yet: `adopted/written.json`. A companion reported them just before its
//! harness died, or no pattern matched them. The next harness adopts those that have not changed since.

use super::{FOLDER, Original, survey};
use crate::store::permissions::create_folder;
use crate::store::run_dir::write_whole;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

const FILE: &str = "written.json";

/// A complete checkpoint that is not adopted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenCheckpoint {
    /// Its step.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// Its files when it was reported.
    pub original: Original,
    /// No pattern of the run file matched it; it waits for one that does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmatched: bool,
}

impl WrittenCheckpoint {
    /// Describes the checkpoint at a path as it is now; none if it cannot be read.
    #[must_use]
    pub fn now(step: u64, samples: u64, path: &Path) -> Option<Self> {
        let original = Original { path: path.to_owned(), files: survey(path).ok()? };
        Some(Self { step, samples, original, unmatched: false })
    }

    /// Reports whether its files are the same as when it was reported.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        survey(&self.original.path).is_ok_and(|files| files == self.original.files)
    }
}

/// Records the checkpoints that wait for their adoption.
///
/// # Errors
/// Returns the system's error.
pub fn record_written(run_dir: &Path, waiting: &[WrittenCheckpoint]) -> io::Result<()> {
    let file = run_dir.join(FOLDER).join(FILE);
    if waiting.is_empty() {
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    create_folder(&run_dir.join(FOLDER))?;
    write_whole(&file, &serde_json::to_vec(waiting)?)
}

/// Returns the recorded checkpoints, oldest first.
#[must_use]
pub fn list_written(run_dir: &Path) -> Vec<WrittenCheckpoint> {
    let text = file::read(&run_dir.join(FOLDER).join(FILE), Limit::Record).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
