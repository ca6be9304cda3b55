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

pub use failure::{Class, KeeperError, LastWord};
pub use keep::{KeeperArgs, Launch, keep};
pub use perform::ENDED_BY_SIGNAL;

use crate::policy::event::Exit;
use crate::protocol::control::Request;
use crate::protocol::probe::Reading;
use crate::protocol::worker;
use author::Author;
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
    /// Somebody connected: this process, where the system names it.
    Connected(u64, mpsc::Sender<String>, Author),
    /// Somebody asks.
    Asked(u64, Request),
    /// Somebody sent what cannot be read.
    Garbled(u64),
    /// Somebody left.
    Left(u64),
    /// Somebody wants this process to end.
    Terminated(Author),
}
