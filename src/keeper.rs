//! The keeper: the detached process that owns one run.
//!
//! ```text
//!  worker ── lines, exit ──▶┐
//!  probe ── readings ──────▶├─ one Input at a time ─▶ policy ─ Effects ─▶ worker, store, clients
//!  clients ── requests ────▶┘                    └─▶ recorder (records events for store and clients)
//! ```
//! The loop takes one input, lets the policy decide, and performs the effects. [`detach`] starts the
//! keeper in a session of its own, under a parent that only restarts it.

mod adopt_command;
mod alarms;
mod attempt;
mod author;
mod batch_job;
mod card_users;
mod checkpoints;
mod companion;
mod delay;
pub mod detach;
mod environment;
mod failure;
mod file_watch;
mod footing;
pub mod keeper_parent;
mod keeper_state;
pub mod lifeline;
mod metric_names;
mod notice;
pub mod offline;
mod perform;
mod planned;
mod planner;
mod probe;
mod proving;
mod quality;
mod ram_growth;
mod readings;
mod recorder;
#[cfg(test)]
mod responses;
pub mod retention;
mod run_loop;
pub mod sentences;
pub mod set_aside;
mod shared_folder;
mod shift_timer;
mod socket;
mod standby;
mod status_snapshot;
mod stored_state;
mod takeover;
mod turn;
pub mod witness;
mod worker_arguments;
mod worker_events;
pub mod worker_process;

pub use failure::{Class, KeeperError, LastWord};
pub use perform::ENDED_BY_SIGNAL;
pub use run_loop::{KeeperArgs, Launch, keep_run};

use crate::protocol::control::Request;
use crate::protocol::probe::Reading;
use crate::protocol::worker;
use author::Author;
use tokio::sync::mpsc;
use worker_process::WorkerEnd;

/// The keeper's inputs.
#[derive(Debug)]
enum Input {
    /// A message of this attempt's worker.
    Worker(u64, worker::Event),
    /// This attempt's worker has exited, and all of its output was read.
    Exited(u64, WorkerEnd),
    /// A probe was started.
    ProbeStarted(u32),
    /// A reading of the probe.
    Reading(Box<Reading>),
    /// The probe is gone; permanently if there is a sentence.
    ProbeLost(Option<String>),
    /// A client connected; its process, if the system reports it.
    Connected(u64, mpsc::Sender<String>, Author),
    /// A client sent a request.
    Asked(u64, Request),
    /// A client sent an unreadable line.
    Garbled(u64),
    /// A client disconnected.
    Left(u64),
    /// News of a run directory that other hosts use too.
    Folder(shared_folder::News),
    /// This measurement of quality has ended.
    Measured(u64, quality::Ended),
    /// A signal asks the keeper to end.
    Terminated(Author),
}
