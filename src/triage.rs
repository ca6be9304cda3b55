//! Finds the cause of a failure from the evidence: the catalogue of messages, the scan of a log, the
//! kernel's log, the cgroup's counters, and the verdict over all of it.
//!
//! ```text
//! assets/catalogue.yaml + the user's ─▶ Catalogue ─▶ scan(log) ─▶ findings ─┐
//! exit code or signal, the worker's report, kernel log, cgroup, probe ───┴─▶ classify ─▶ Cause
//! ```
//! Reading (`scan`, `traceback`, `progress`, `kernel`, `cgroup`) is separate from judging (`ranking` for one log,
//! `classify` for all evidence), which are pure functions.

pub mod catalogue;
pub mod cgroup;
pub mod classify;
mod ends;
pub mod kernel;
mod line;
mod losses;
pub mod memory;
pub mod progress;
pub mod python_stack;
pub mod ranking;
pub mod scan;
pub mod traceback;
