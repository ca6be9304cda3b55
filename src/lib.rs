//! downshift keeps a training run alive: a terminal cockpit over a training worker, with a keeper
//! between them that outlives both.
//!
//! ```text
//!  cli ─┬─ cockpit ───────────┐            what a person sees
//!       ├─ keeper ── policy ──┤            what owns the run; what it decides
//!       ├─ train              ├─ protocol  what the processes say to each other
//!       ├─ probe ── triage ───┤  recipe    the arithmetic of training
//!       └─ store ─────────────┘  config    run files, themes
//!                                untrusted files and text from outside
//! ```

pub mod cli;
pub mod cockpit;
pub mod config;
pub mod keeper;
pub mod notify;
pub mod policy;
pub mod probe;
pub mod protocol;
pub mod recipe;
pub mod store;
#[cfg(feature = "train")]
pub mod train;
pub mod triage;
pub mod untrusted;

/// The program with these tasks: the built-in ones, or a person's own.
#[cfg(feature = "train")]
#[must_use]
pub fn main_with(tasks: &train::registry::Registry) -> std::process::ExitCode {
    cli::main(tasks)
}

/// The program without a trainer: the cockpit, the keeper and every command that looks at runs.
#[cfg(not(feature = "train"))]
pub fn main_without_training() -> std::process::ExitCode {
    cli::main(&config::run::AsWritten)
}
