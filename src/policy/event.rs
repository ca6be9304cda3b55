//! What the state machine takes and gives.

use super::life::{Back, Outcome, Start};
use super::room::CardUse;
use crate::config::climb::Stage;
use crate::config::knobs::{Relief, Watch};
use crate::config::units::Every;
use crate::protocol::control::{JournalKind, Request};
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Level, Order};
use std::collections::BTreeMap;
use std::time::Duration;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The keeper is ready: start the first worker.
    Begin,
    /// A message of the worker.
    Worker(WorkerEvent),
    /// The worker's process is gone.
    Exited(Exit),
    /// A worker could not be started.
    StartFailed(String),
    /// A worker may not be started yet; this start is to be tried again after so long.
    StartPutOff(Start, Duration),
    /// Bytes in use on the whole card; none where that is unknown.
    Vram(Option<u64>),
    /// Who holds the card's memory; none where the driver does not say. Comes before [`Event::Vram`].
    Card(Option<CardUse>),
    /// The share of time with a kernel running on the card; none where that is unknown.
    Utilisation(Option<f64>),
    /// Whether the disk with the run is almost full.
    DiskLow(bool),
    /// The temperature of the card, and the one at which it slows down; none where unknown.
    Temperature {
        /// Degrees Celsius.
        celsius: Option<f64>,
        /// The card's own limit.
        slowdown_c: Option<f64>,
    },
    /// The probe or the kernel's log tell of trouble.
    Evidence(Evidence),
    /// The checkpoint of this step is proven.
    Proven(u64),
    /// A person asks.
    Request(Request),
    /// The keeper itself stood still for this long and heard nothing of the worker.
    StoodStill(Duration),
    /// Time has passed.
    Tick,
}

/// Trouble that was seen from outside of the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Its class.
    pub class: FailureClass,
    /// The number of an Xid.
    pub number: Option<u32>,
    /// A sentence that quotes what was seen.
    pub text: String,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What has to be done now, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Start a worker. The attempt is committed to the store first.
    Start(Start),
    /// Tell the worker.
    Order(Order),
    /// Set the checkpoint of this step aside if there is an older one: the next start goes on from
    /// that.
    GoBack(u64),
    /// Go back to an older checkpoint, and leave out the data behind it.
    RollBack(Back),
    /// Leave out steps that begin here on the clock of the run, from now on.
    LeaveOut {
        /// Where the first of them begins.
        from: u64,
        /// Up to here and no further.
        units: u64,
    },
    /// Send a signal to the worker's process group.
    Signal(Signal),
    /// The attempt is in trouble of this class, known by this: the cause of what is done next.
    Trouble(FailureClass, String),
    /// Tell the user, near and far, unless that was told a while ago and still lasts.
    Alarm {
        /// What it is about: the same alarm is told once.
        key: &'static str,
        /// In two or three words.
        title: &'static str,
        /// A sentence.
        text: String,
    },
    /// The cause of an alarm has ended.
    AlarmOver(&'static str),
    /// Write a line into the journal.
    Journal(Level, JournalKind, String),
    /// The same about what was just asked for; the keeper adds by whom.
    Asked(Level, JournalKind, String),
    /// Answer the request.
    Reply {
        /// Whether it will be done.
        accepted: bool,
        /// What will happen, or why not.
        message: String,
    },
    /// The run is over.
    Finish(Outcome),
}

/// How a worker is ended by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// The settings of a run that decisions depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The names of the rungs, fastest first.
    pub rungs: Vec<String>,
    /// What each rung helps against.
    pub relieves: Vec<Vec<Relief>>,
    /// Why one rung cannot be reached from another, where it cannot: by (from, to).
    pub barriers: BTreeMap<(usize, usize), String>,
    /// The section `watch:` of the run file.
    pub watch: Watch,
    /// The climb plan; empty where there is none.
    pub plan: Vec<Stage>,
    /// How often each rung saves.
    pub save_every: Vec<Every>,
}
