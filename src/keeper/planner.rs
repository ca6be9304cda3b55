//! The process that plans the run's memory, once, alongside training. It ends with the keeper at the
//! latest: its stdin closes then, which is its order to end.

use crate::protocol::plan::PLAN_FILE;
use crate::store::run_dir::RunDir;
use crate::trainer;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// Starts the planner, if the run has no plan yet. Dropping the child ends it. A planner that cannot
/// start is not an error: a run without a plan only lacks a forecast.
pub fn start(run: &RunDir, device: &str) -> Option<Child> {
    if trainer::is_elsewhere() || run.file(PLAN_FILE).is_file() {
        return None;
    }
    Command::new("/proc/self/exe")
        .arg0("downshift-planner")
        .args(["plan", "--write", "--device", device])
        .arg(run.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .ok()
}
