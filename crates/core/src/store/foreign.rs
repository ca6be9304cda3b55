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
    /// The tmux pane whose output is written to that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pane: Option<TmuxPane>,
    /// Whether the run may end it.
    pub may_end: bool,
}

/// A pane of tmux.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmuxPane {
    /// Its id, such as `%1`.
    pub id: String,
    /// The socket of its server.
    pub socket: String,
}

impl ForeignProcess {
    /// Reads the process that a run adopted, alive or not.
    #[must_use]
    pub fn of_run(run: &RunDir) -> Option<Self> {
        serde_json::from_slice(&file::read(&run.file(FILE), Limit::Record).ok()?).ok()
    }

    /// Returns the process that a run adopted, if it lives: another start watches it again.
    #[must_use]
    pub fn living(run: &RunDir) -> Option<Self> {
        Self::of_run(run).filter(|process| process.identity.is_alive())
    }

    /// Returns the process that an attempt of a run watches: while it lives, nothing is started beside it.
    #[must_use]
    pub fn of_attempt(run: &RunDir, attempt: u64) -> Option<Self> {
        Self::of_run(run).filter(|process| attempt == 1 || process.identity.is_alive())
    }

    /// Returns the process that a run only watches, if it lives: it outlives the run.
    #[must_use]
    pub fn watched(run: &RunDir) -> Option<u32> {
        Self::living(run).filter(|process| !process.may_end).map(|process| process.identity.pid)
    }

    /// Writes the process into the directory of its run.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record(&self, run: &RunDir) -> io::Result<()> {
        run.write_atomically(FILE, &serde_json::to_vec(self)?)
    }
}
