//! Remembers how the lines of the command count, and how many steps it takes. An attempt that resumes begins within an epoch,
//! where no line shows it, and may be told how much is left.

use super::run_loop::Harness;
use crate::log_metrics::Counting;
use crate::store::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};
use std::fs;

const FILE: &str = "counting.json";
const LENGTH: &str = "length.json";

/// Returns the last step of the run, as an earlier attempt printed it.
pub fn recall_length(run: &RunDir) -> Option<u64> {
    serde_json::from_slice(&file::read(&run.file(LENGTH), Limit::Record).ok()?).ok()
}

/// Returns how the lines of earlier attempts counted.
pub fn recall_counting(run: &RunDir) -> Option<Counting> {
    serde_json::from_slice(&file::read(&run.file(FILE), Limit::Record).ok()?).ok()
}

impl Harness {
    /// Writes down the last step of the run.
    pub(super) fn remember_length(&mut self) {
        // A script that takes all its steps once more prints another length than that of the run.
        let takes_all_again = self.resume_check.counts_behind() > 0 && self.resume_check.known_length.is_some();
        if self.args.purpose.is_temporary() || takes_all_again {
            return;
        }
        // Without it, `{steps_left}` needs the length in the run file.
        let _ = match self.progress.total {
            Some(steps) => self.args.run_dir.write_atomically(LENGTH, steps.to_string().as_bytes()),
            None => fs::remove_file(self.args.run_dir.file(LENGTH)),
        };
    }

    /// Writes down how the lines count, once they have shown it.
    pub(super) fn remember_counting(&mut self) {
        let Some(counting) = self.reader.counting_news() else { return };
        // Without it, the curve of the next attempt waits for an epoch.
        let _ = serde_json::to_vec(&counting).map(|text| self.args.run_dir.write_atomically(FILE, &text));
    }
}
