//! Checks everything a run depends on, one line each: ok, warn or fail, with the fix.

mod check;
mod gpu;
mod machine;
mod terminal;
mod wsl;

use super::readings::read_once;
pub use check::{Check, Verdict};
pub use gpu::other_users;
use std::path::Path;

/// Runs all checks for the GPU with this NVML index and the folder of runs.
pub fn run_checks(gpu: u32, runs: &Path) -> Vec<Check> {
    let place = machine::nearest_folder(runs);
    let reading = read_once(&place, gpu).map_err(|error| error.to_string());
    let mut checks = gpu::checks(reading.as_ref(), gpu);
    checks.extend(machine::checks(reading.as_ref().ok(), &place));
    checks.extend(wsl::checks(reading.as_ref().ok(), &place));
    checks.extend(terminal::checks());
    checks.extend(machine::settings());
    checks
}

/// Returns all checks as text, for a bundle.
pub fn report(runs: &Path) -> String {
    run_checks(0, runs).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
