//! Input and output types of the state machine.

use super::command::CommandTimes;
use super::lifecycle::{Back, Outcome, Start};
use super::reason::{Cancelled, Reason};
use super::room::CardUse;
use super::spill::GpuLoad;
use crate::config::climb::Stage;
use crate::config::knobs::{Relief, Watch};
use crate::config::units::Every;
use crate::outlook::continuation::Commands;
use crate::outlook::request::Refusal;
use crate::protocol::capability::Capability;
use crate::protocol::cause::Cause;
use crate::protocol::claim::Waiting;
use crate::protocol::control::{JournalKind, Request};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Level, Order};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The keeper is ready: start the first worker.
    Begin,
    /// The obstacle to the next start, if there is one: another run holds the device, or comes first.
    Turn(Option<Waiting>),
    /// A message of the worker.
    Worker(WorkerEvent),
    /// The worker's process has exited, and triage judged why.
    Exited(Exit, Cause),
    /// A worker could not be started.
    StartFailed(String),
    /// A worker may not start yet; retry this start after the given wait.
    StartPutOff(Start, Duration),
    /// Bytes in use on the whole GPU; none when unknown.
    Vram(Option<u64>),
    /// Processes that hold GPU memory; none when the driver does not report them. Arrives before [`Event::Vram`].
    Card(Option<CardUse>),
    /// Share of time with a kernel running on the GPU; none when unknown.
    Utilisation(Option<f64>),
    /// The GPU's memory, clocks and load in one reading.
    GpuLoad(GpuLoad),
    /// Whether the run's disk is almost full.
    DiskLow(bool),
    /// GPU temperature and its slowdown threshold; none when unknown.
    Temperature {
        /// Degrees Celsius.
        celsius: Option<f64>,
        /// Threshold at which the GPU slows itself down.
        slowdown_c: Option<f64>,
    },
    /// Trouble reported by the probe or the kernel log.
    Evidence(Evidence),
    /// The checkpoint of this step is proven.
    Proven(u64),
    /// The run directory is gone for good.
    Homeless(Reason),
    /// A request of the user.
    Request(Request),
    /// The keeper itself stalled for this long and heard nothing from the worker.
    StoodStill(Duration),
    /// Time has passed.
    Tick,
}

/// Trouble seen from outside the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Its class.
    pub class: FailureClass,
    /// Xid number.
    pub number: Option<u32>,
    /// A sentence that quotes the evidence.
    pub text: String,
}

/// An output of the state machine; effects are performed in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Start a worker. The attempt is committed to the store first.
    Start(Start),
    /// Send this order to the worker.
    Order(Order),
    /// Set this step's checkpoint aside if there is an older one; the next start resumes from that one.
    GoBack(u64),
    /// Put these steps' checkpoints back: an older one failed in the same way, so they were not to blame.
    PutBack(Vec<u64>),
    /// Roll back to an older checkpoint and skip the data behind it.
    RollBack(Back),
    /// From now on, skip the steps that begin in this range of the run's clock.
    LeaveOut {
        /// Start of the range.
        from: u64,
        /// Length of the range, in clock units.
        units: u64,
    },
    /// Send a signal to the worker's process group.
    Signal(Signal),
    /// The attempt is in trouble of this class, with this evidence; it causes the effects that follow.
    Trouble(FailureClass, String),
    /// Alert the user, in the cockpit and by notification. Repeats are held back; resets when the condition clears.
    Alarm {
        /// Key of the condition; one alert per key.
        key: &'static str,
        /// Title, two or three words.
        title: &'static str,
        /// Text, one sentence.
        text: String,
    },
    /// The alarm's condition has cleared.
    AlarmOver(&'static str),
    /// The newest shift changed nothing that the script follows: it does not count.
    UncountShift,
    /// Write a line into the journal.
    Journal(Level, JournalKind, String),
    /// Write a journal line about the current request; the keeper adds its author.
    Asked(Level, JournalKind, String),
    /// Answer the request: with its consequence, or why it is refused.
    Reply(Result<String, Refusal>),
    /// A request that was accepted cannot be carried out.
    Cancel(Cancelled),
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
    /// The commands that can continue the run after its end, for advice.
    pub commands: Commands,
    /// The names of the rungs, fastest first.
    pub rungs: Vec<String>,
    /// Reliefs that each rung offers.
    pub relieves: Vec<Vec<Relief>>,
    /// Reasons why one rung cannot be reached from another, by (from, to).
    pub barriers: BTreeMap<(usize, usize), String>,
    /// The `watch:` section of the run file.
    pub watch: Watch,
    /// Time after a worker's end at which its GPU memory counts as released, where it cannot be read.
    pub release_time: Duration,
    /// The climb plan; may be empty.
    pub plan: Vec<Stage>,
    /// Save interval of each rung.
    pub save_every: Vec<Every>,
    /// Abilities of the worker, as far as the run file tells.
    pub capability: Capability,
    /// The times of a command.
    pub times: CommandTimes,
    /// The knobs of each rung of a command, as a tree; empty for a built-in trainer.
    pub knobs: Vec<Value>,
    /// The knob that turns fused or compiled kernels off, for each rung that has one.
    pub unfused: Vec<Option<String>>,
}
