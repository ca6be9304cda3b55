//! downshift keeps a training run alive: a terminal cockpit over a training worker, with a keeper
//! between them that outlives both.
//!
//! ```text
//!  cli ─┬─ cockpit ───────────┐            the user's screen
//!       ├─ keeper ── policy ──┤            owns the run; pure decisions
//!       ├─ train              ├─ protocol  messages between the processes
//!       ├─ probe ── triage ───┤  recipe    the arithmetic of training
//!       └─ store ─────────────┘  config    run files, themes
//!                                untrusted files and text from outside
//! ```

pub mod cli;
pub mod cockpit;
pub mod config;
pub mod diagnose;
pub mod export;
pub mod format;
pub mod keeper;
pub mod notify;
pub mod policy;
pub mod probe;
pub mod protocol;
pub mod recipe;
pub mod store;
#[cfg(feature = "train")]
pub mod train;
pub mod trainer;
pub mod triage;
pub mod untrusted;

/// Runs the program with these tasks: the built-in ones, or the user's own.
#[cfg(feature = "train")]
#[must_use]
pub fn main_with(tasks: &train::registry::Registry) -> std::process::ExitCode {
    cli::main(tasks)
}

/// Runs the program without a trainer: the cockpit, the keeper and every command that reads runs.
#[cfg(not(feature = "train"))]
pub fn main_without_training() -> std::process::ExitCode {
    cli::main(&config::run::AsWritten)
}
