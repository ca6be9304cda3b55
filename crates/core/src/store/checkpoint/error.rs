//! Errors of checkpoints: the file, the action, and what went wrong.

use crate::store::permissions::Stranger;
use crate::untrusted::text;
use std::io;
use std::path::{Path, PathBuf};

/// Reason why a checkpoint cannot be written, read or trusted.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", text::path(.file))]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// The failed operation.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The content differs from what was written.
    #[error("{} is damaged: {reason}", text::path(.file))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The difference.
        reason: String,
    },
    /// It belongs to another user.
    #[error(transparent)]
    Foreign(#[from] Stranger),
    /// There is no such checkpoint.
    #[error("checkpoint {} does not exist", text::path(.0))]
    Missing(PathBuf),
}

impl CheckpointError {
    /// Creates the error for a file of the checkpoint that is damaged, with this reason.
    pub fn damaged(file: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), reason: reason.into() }
    }
}

/// Adds the file and the action to the error of a failed system call.
pub trait Doing<T> {
    /// Names the file and the action.
    fn doing(self, action: &'static str, file: &Path) -> Result<T, CheckpointError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: &'static str, file: &Path) -> Result<T, CheckpointError> {
        self.map_err(|error| CheckpointError::Io { file: file.to_owned(), action, source: error.into() })
    }
}
