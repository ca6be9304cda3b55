//! Checks everything a run depends on, one line each: ok, warn or fail, with the fix.

mod check;
mod gpu;
mod machine;
mod python;
mod ranks;
mod terminal;
mod wsl;

use super::readings::read_once;
use crate::config::run::Run;
pub use check::{Check, Severity};
pub use gpu::other_users;
pub use ranks::check_ranks;
use std::path::Path;

/// Runs all checks for the GPU with this NVML index and the folder of runs, and those of a run if one is given.
pub fn run_checks(gpu: u32, runs: &Path, run: Option<&Run>) -> Vec<Check> {
    let place = machine::nearest_folder(runs);
    let reading = read_once(&place, gpu).map_err(|error| error.to_string());
    let mut checks = gpu::checks(reading.as_ref(), gpu);
    checks.extend(machine::checks(reading.as_ref().ok(), &place));
    checks.extend(wsl::checks(reading.as_ref().ok(), &place));
    checks.extend(terminal::checks());
    checks.extend(machine::settings());
    checks.extend(run.into_iter().flat_map(|run| python::checks(run, reading.as_ref().ok())));
    checks
}

/// Returns all checks as text, for a bundle.
pub fn report(runs: &Path, run: Option<&Run>) -> String {
    run_checks(0, runs, run).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
