//! downshift keeps a training run alive: a terminal cockpit over a training worker, with a keeper
//! between them that outlives both.
//!
//! ```text
//!  cli ─┬─ cockpit ─┬─ series ┐            the user's screen; the curve of a run
//!       ├─ export ──┘         │            pictures and rows
//!       ├─ keeper ── policy ──┤            owns the run; pure decisions
//!       ├─ trainer ── train   ├─ protocol  messages between the processes
//!       ├─ diagnose ── probe ─┤  recipe    the arithmetic of training
//!       ├─ notify    triage ──┤  config    run files, themes
//!       └─ store ─────────────┘  format, untrusted, wsl
//! ```
//!
//! This library is the program. A program with tasks of its own calls `main_with` with a `Registry` of types
//! that implement `Task` and `Train` (feature `train`).

mod cli;
mod companion;
mod diagnose;
mod export;
mod faults;
mod harness;
mod notify;
mod policy;
mod quality;
mod redact;
mod series;

// Not part of the API: public for the integration tests, benches and examples of this repository, which look at
// run directories, speak the protocol and draw the cockpit.
#[doc(hidden)]
pub mod cockpit;
#[doc(hidden)]
pub mod init;
#[doc(hidden)]
pub mod keeper;
#[doc(hidden)]
pub mod log_metrics;
#[doc(hidden)]
pub mod probe;
#[doc(hidden)]
pub mod shipped;
#[doc(hidden)]
pub mod theme;
#[doc(hidden)]
pub mod triage;

#[doc(hidden)]
pub use downshift_core::{config, format, protocol, recipe, store, untrusted};
use downshift_core::{outlook, process_tree, trainer, wsl};
#[cfg(feature = "train")]
#[doc(hidden)]
pub use downshift_trainer as train;

pub use config::problem::Problem;
#[cfg(feature = "train")]
pub use downshift_trainer::burn;
#[cfg(feature = "train")]
pub use protocol::samples::{Confusion, Sample};
#[cfg(feature = "train")]
pub use recipe::seed::{Purpose, Stream};
#[cfg(feature = "train")]
pub use train::quality::{QualityError, QualityRequest};
#[cfg(feature = "train")]
pub use train::registry::Registry;
#[cfg(feature = "train")]
pub use train::samples::{Answer, Answers, Picture, Samples, TaskSample};
#[cfg(feature = "train")]
pub use train::task::{
    BatchRequest, DataError, ExportError, Exported, Format, NamedFile, Pass, Split, Tally, Task, Train, Weights,
};

/// Runs the program with these tasks: the built-in ones, or the user's own.
#[cfg(feature = "train")]
#[must_use]
pub fn main_with(tasks: &Registry) -> std::process::ExitCode {
    store::umask::narrow();
    cli::main(tasks)
}

/// Runs the program without a trainer: the cockpit, the keeper and every command that reads runs.
#[cfg(not(feature = "train"))]
pub fn main_without_training() -> std::process::ExitCode {
    store::umask::narrow();
    cli::main(&config::run::AsWritten)
}
