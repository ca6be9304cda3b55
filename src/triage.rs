//! Finds the cause of a failure from the evidence: the catalogue of messages, the scan of a log, the
//! kernel's log, the cgroup's counters, and the verdict over all of it.
//!
//! ```text
//! assets/catalogue.yaml + the user's ─▶ Catalogue ─▶ scan(log) ─▶ findings ─┐
//! exit code or signal, the worker's report, kernel log, cgroup, probe ───┴─▶ classify ─▶ Cause
//! ```
//! Reading (`scan`, `traceback`, `kernel`, `cgroup`) is separate from judging (`classify`), which is a pure function
//! of its evidence.

pub mod catalogue;
pub mod cgroup;
pub mod classify;
pub mod kernel;
pub mod memory;
pub mod python_stack;
pub mod scan;
pub mod traceback;
