//! A training that was running before its run existed: which process it is, and whether the run may end it.

use super::identity::Identity;
use super::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

const FILE: &str = "adopted-process.json";

/// A process that a run watches instead of starting one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignProcess {
    /// The process.
    #[serde(flatten)]
    pub identity: Identity,
    /// A file that its output goes to, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Whether the run may end it.
    pub may_end: bool,
}

impl ForeignProcess {
    /// Reads the process that a run adopted, alive or not.
    #[must_use]
    pub fn of_run(run: &RunDir) -> Option<Self> {
        serde_json::from_slice(&file::read(&run.file(FILE), Limit::Record).ok()?).ok()
    }

    /// Writes the process into the directory of its run.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record(&self, run: &RunDir) -> io::Result<()> {
        run.write_atomically(FILE, &serde_json::to_vec(self)?)
    }
}
