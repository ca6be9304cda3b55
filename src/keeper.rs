//! The keeper: the detached process that owns one run.
//!
//! ```text
//!  worker ── lines, exit ──▶┐
//!  probe ── readings ──────▶├─ one Input at a time ─▶ policy ─ Effects ─▶ worker, store, clients
//!  clients ── requests ────▶┘                    └─▶ recorder (what happened, for store and clients)
//! ```
//! The loop waits for one input, lets the policy decide, performs what it said. It is started with
//! a session of its own by [`detach`], and by a parent that does nothing but bring it back.

mod alarms;
mod attempt;
mod card_users;
pub mod caretaker;
mod checkpoints;
pub mod child;
pub mod detach;
mod glance;
mod health;
mod hearing;
mod home;
mod keep;
mod passage;
mod perform;
mod planned;
mod probe;
mod proving;
mod recorder;
mod retention;
pub mod sentences;
mod socket;
mod takeover;
mod witness;

pub use keep::{KeeperArgs, KeeperError, Launch, keep};

use crate::policy::event::Exit;
use crate::protocol::control::Request;
use crate::protocol::probe::Reading;
use crate::protocol::worker;
use tokio::sync::mpsc;

/// Everything that the keeper can hear.
#[derive(Debug)]
enum Input {
    /// The worker of this attempt said something.
    Worker(u64, worker::Event),
    /// The worker of this attempt is gone, and all it said was heard.
    Exited(u64, Exit),
    /// A probe was started.
    ProbeStarted(u32),
    /// The probe measured.
    Reading(Box<Reading>),
    /// The probe is gone; for good, if there is a sentence.
    ProbeLost(Option<String>),
    /// Somebody connected.
    Connected(u64, mpsc::Sender<String>),
    /// Somebody asks.
    Asked(u64, Request),
    /// Somebody sent what cannot be read.
    Garbled(u64),
    /// Somebody left.
    Left(u64),
    /// The system or a person wants this process to end.
    Terminated,
}
