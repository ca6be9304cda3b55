//! Why the data of a run cannot be shown. The cockpit reports it and stays open.

use crate::store::run_dir::RunDirError;
use std::fmt::Display;

/// A failed read of a run directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store cannot be read; holds `SQLite`'s error.
    #[error("run.db: {0}")]
    Store(String),
    /// The run is missing or its run.yaml is unusable; holds the error.
    #[error("{0}")]
    Run(String),
}

impl ReadError {
    /// Wraps an error of the store.
    pub fn from_store(error: impl Display) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<RunDirError> for ReadError {
    fn from(error: RunDirError) -> Self {
        Self::Run(error.to_string())
    }
}
