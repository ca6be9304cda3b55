//! The keeper: the detached process that owns one run.
//!
//! ```text
//!  worker ── lines, exit ──▶┐
//!  probe ── readings ──────▶├─ one Input at a time ─▶ policy ─ Effects ─▶ worker, store, clients
//!  clients ── requests ────▶┘                    └─▶ recorder (records events for store and clients)
//! ```
//! The loop takes one input, lets the policy decide, and performs the effects. [`detach`] starts the
//! keeper in a session of its own, under a parent that only restarts it.

mod alarms;
mod attempt;
mod author;
mod card_users;
pub mod caretaker;
mod checkpoints;
pub mod child;
mod delay;
pub mod detach;
mod failure;
mod glance;
mod guard;
mod health;
mod hearing;
mod home;
mod keep;
pub mod parent;
mod passage;
mod perform;
mod planned;
mod planner;
mod probe;
mod proving;
mod recorder;
mod remembered;
mod retention;
pub mod sentences;
mod socket;
mod takeover;
mod witness;

pub use failure::KeeperError;
pub use keep::{KeeperArgs, Launch, keep};
pub use perform::ENDED_BY_SIGNAL;

use crate::policy::event::Exit;
use crate::protocol::control::Request;
use crate::protocol::probe::Reading;
use crate::protocol::worker;
use author::Author;
use tokio::sync::mpsc;

/// The keeper's inputs.
#[derive(Debug)]
enum Input {
    /// A message of this attempt's worker.
    Worker(u64, worker::Event),
    /// This attempt's worker has exited, and all of its output was read.
    Exited(u64, Exit),
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
    /// A signal asks the keeper to end.
    Terminated(Author),
}
