//! The screen and the pages: tables, reports, and the cockpit in a real tmux.

#[path = "../helper/mod.rs"]
mod helper;
mod report;
mod run_table;
mod runs;
mod tmux;
