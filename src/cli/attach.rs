//! The cockpit on a run.

use super::{Outcome, Which, headless};
use crate::store::run_dir::RunDir;
use std::path::Path;

pub fn attach(which: &Which, runs: &Path) -> Outcome {
    open(&RunDir::find(runs, which.run.as_deref())?)
}

/// Opens the cockpit.
pub fn open(dir: &RunDir) -> Outcome {
    headless::follow(dir)
}
