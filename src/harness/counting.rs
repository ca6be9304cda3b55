//! Remembers how the lines of the command count. An attempt that resumes begins within an epoch, where no line shows it.

use super::run_loop::Harness;
use crate::log_metrics::Counting;
use crate::store::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};

const FILE: &str = "counting.json";

/// Returns how the lines of earlier attempts counted.
pub fn recall_counting(run: &RunDir) -> Option<Counting> {
    serde_json::from_slice(&file::read(&run.file(FILE), Limit::Record).ok()?).ok()
}

impl Harness {
    /// Writes down how the lines count, once they have shown it.
    pub(super) fn remember_counting(&mut self) {
        let Some(counting) = self.reader.counting_news() else { return };
        // Without it, the curve of the next attempt waits for an epoch.
        let _ = serde_json::to_vec(&counting).map(|text| self.args.run_dir.write_atomically(FILE, &text));
    }
}
