//! `failure.json`: the failure that ended the last worker.

use crate::job::WorkerArgs;
use downshift_core::protocol::worker::Failed;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

/// The record of the failure that ended the last worker, in the run directory.
pub const FAILURE_FILE: &str = "failure.json";

/// The content of [`FAILURE_FILE`], for when the last event did not get through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// The number of the attempt that failed.
    pub attempt: u64,
    /// The worker's process id.
    pub pid: u32,
    /// The rung it ran on.
    pub rung: usize,
    /// The failure.
    pub failed: Failed,
}

/// Writes the record. Ignores errors: a run directory that cannot be written must not keep the worker from exiting.
pub fn write_record(args: &WorkerArgs, failed: &Failed) {
    let record =
        FailureRecord { attempt: args.attempt, pid: std::process::id(), rung: args.rung, failed: failed.clone() };
    if let Ok(text) = serde_json::to_vec_pretty(&record) {
        // Remove it first, so that a symlink of that name is not followed.
        remove_record(&args.run_dir);
        File::create_new(args.run_dir.join(FAILURE_FILE)).and_then(|mut file| file.write_all(&text)).ok();
    }
}

/// Removes the record of an earlier worker.
pub fn remove_record(run_dir: &Path) {
    fs::remove_file(run_dir.join(FAILURE_FILE)).ok();
}
