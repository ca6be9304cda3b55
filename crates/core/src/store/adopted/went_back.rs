//! The last time the run went back to an earlier checkpoint. Newer checkpoints written before it are not adopted, even if
//! no list names them.

use super::{FOLDER, Original};
use crate::store::run_dir::write_whole;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The file in the folder of adopted checkpoints.
const FILE: &str = "went-back.json";

/// A return to an earlier checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WentBack {
    /// The step of that checkpoint.
    pub step: u64,
    /// When it happened, in Unix milliseconds.
    pub time_ms: i64,
}

impl WentBack {
    /// Reports whether a checkpoint of this step belongs to what the run gave up.
    #[must_use]
    pub fn gave_up(&self, step: u64, written: &Original) -> bool {
        let end_ns = self.time_ms.saturating_add(1).saturating_mul(1_000_000);
        step > self.step && written.modified_ns() < end_ns
    }
}

/// Records that the run goes back to the checkpoint of `step`. A run without a command has none to give up.
///
/// # Errors
/// Returns the system's error.
pub fn record_going_back(run_dir: &Path, step: u64) -> io::Result<()> {
    let folder = run_dir.join(FOLDER);
    if !folder.is_dir() {
        return Ok(());
    }
    let went_back = WentBack { step, time_ms: jiff::Timestamp::now().as_millisecond() };
    write_whole(&folder.join(FILE), &serde_json::to_vec(&went_back)?)
}

/// Returns the last time the run went back.
#[must_use]
pub fn went_back(run_dir: &Path) -> Option<WentBack> {
    let text = file::read(&run_dir.join(FOLDER).join(FILE), Limit::Record).ok()?;
    serde_json::from_slice(&text).ok()
}
