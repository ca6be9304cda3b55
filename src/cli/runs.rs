//! `runs`: lists the runs.

use super::client::current_status;
use super::line;
use super::status;
use crate::store::reader::unreadable;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::path::Path;

pub fn print_list(runs: &Path) -> u8 {
    let all = RunDir::all(runs);
    if all.is_empty() {
        line!("no runs in {} yet; start one with `downshift run`", text::path(runs));
    }
    for run in all {
        match current_status(&run) {
            Some(status) => line!("{}", status::status_line(&status)),
            None => match unreadable(&run) {
                Some(why) => line!("{}  {}", run.name(), text::line(&why.to_string())),
                None => line!("{}  never began", run.name()),
            },
        }
    }
    0
}
