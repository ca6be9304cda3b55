//! The list of runs.

use super::status;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use std::path::Path;

pub fn list(runs: &Path) -> u8 {
    let all = RunDir::all(runs);
    if all.is_empty() {
        println!("no run in {} yet; start one with `downshift run`", runs.display());
    }
    for run in all {
        match live_status(&run) {
            Some(status) => println!("{}", status::text(&status)),
            None => println!("{}  never began", run.name()),
        }
    }
    0
}
