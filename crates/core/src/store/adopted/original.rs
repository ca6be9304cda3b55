//! The files of a checkpoint as the command left them.

use super::Stamp;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A checkpoint as the command left it, without hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// Its folder, or its only file.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<(PathBuf, Stamp)>,
}

impl Original {
    /// Returns when it was last written, in Unix nanoseconds.
    #[must_use]
    pub fn modified_ns(&self) -> i64 {
        self.files.iter().map(|(_, stamp)| stamp.modified_ns).max().unwrap_or(0)
    }

    /// Reports whether these files have the content of those.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.files.len() == other.files.len()
            && self
                .files
                .iter()
                .zip(&other.files)
                .all(|((name, stamp), (known, other))| name == known && stamp.has_content_of(other))
    }
}
