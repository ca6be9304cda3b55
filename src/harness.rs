//! The harness runs a command in a worker's place: it sends the keeper the same messages and exit codes.
//!
//! ```text
//!  keeper ◀── worker contract ──▶ harness ──▶ terminal ──▶ python train.py ─▶ its own processes
//!  next keeper ◀──── socket ────────┘  ▲  └── worker.log, readings, checkpoints
//!                                      └── holder: reads the terminal if the harness dies
//! ```
//! The command survives the loss of either end. If the keeper dies, the harness goes on, keeps the events that were not
//! delivered, and sends them to the next keeper. If the harness dies, the holder reads the output, so that no write of
//! the command blocks or fails before the keeper has ended it. The harness itself ends everything it started.

mod activity;
mod attempt_dir;
mod backlog;
mod checkpoints;
mod companion;
mod companion_link;
mod companion_socket;
mod container_state;
mod copies;
mod counting;
mod earlier_outputs;
mod ending;
mod finish;
mod foreign;
mod hello;
mod holder;
mod job_nodes;
mod keeper_link;
mod launch;
mod metric_files;
mod node_claim;
mod node_companions;
mod node_events;
mod node_failure;
mod node_guard;
mod node_host;
mod node_link;
mod node_pid;
mod node_state;
mod node_wire;
mod nodes;
mod output_log;
mod own_count;
mod prepare;
mod progress;
mod rank_files;
mod rank_marks;
mod rank_watch;
mod ranks;
mod readings;
mod resume_check;
mod resume_point;
mod run_loop;
mod save_file;
mod save_signal;
mod save_timer;
mod saving;
mod setup;
mod signals;
mod skips;
mod stacks;
mod standby;
mod takeover;
mod terminal;
mod undeclared;
mod unread;

pub use holder::hold_output;
pub use job_nodes::JobNodes;
pub use launch::exec_command;
pub use node_guard::guard_command;
pub use node_host::host_command;
pub use undeclared::find_output;

use crate::config::command::CommandSpec;
use crate::config::knobs::Preset;
use crate::protocol::inject::Inject;
use crate::protocol::worker::{FailureClass, NOT_BEGUN};
use crate::recipe::interval::Faults;
use crate::store::adopted::AdoptError;
use crate::store::checkpoint::CheckpointError;
use crate::store::lock::LockError;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use launch::LaunchError;
use node_failure::NodeFailure;
use serde_json::Value;
use standby::Standby;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable that holds the folder of the attempt.
const ATTEMPT_DIR_VARIABLE: &str = "DOWNSHIFT_ATTEMPT_DIR";

/// The arguments of a harness.
#[derive(Debug, Clone)]
pub struct HarnessArgs {
    /// The run directory.
    pub run_dir: RunDir,
    /// The command.
    pub spec: CommandSpec,
    /// The rung, 0 = fastest.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: String,
    /// The rung's knobs.
    pub preset: Preset,
    /// Constants of the script that this rung changes.
    pub constants: BTreeMap<String, Value>,
    /// The number of this attempt.
    pub attempt: u64,
    /// The token of this attempt.
    pub token: String,
    /// The device, as given on the command line.
    pub device: String,
    /// NaN losses in a row that end the command.
    pub skips_in_a_row: u64,
    /// The shortest silence that counts as a hang.
    pub silence: Duration,
    /// Faults for the companion to cause.
    pub inject: Vec<Inject>,
    /// Failures of earlier attempts.
    pub faults: Faults,
    /// The purpose that it runs the command for.
    pub purpose: Purpose,
    /// The nodes that it runs the command on.
    pub nodes: JobNodes,
    /// A port of this node at which the ranks can meet.
    pub port: u16,
    /// It waits for [`Order::Begin`](crate::protocol::worker::Order::Begin) while its command imports ahead.
    pub stands_by: bool,
}

/// The purpose of a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A run with a keeper; the command survives it.
    Run,
    /// A measurement: none of its checkpoints is adopted.
    Measurement,
    /// A trial of its resume: it tells more of each step, and steps before its checkpoint too.
    Trial,
}

impl Purpose {
    /// Reports whether the command ends with the process that started the harness.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        self != Self::Run
    }
}

/// Reason why a harness cannot run its command.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// Another worker owns the run.
    #[error("worker.lock: {0}")]
    Lock(#[from] LockError),
    /// The command cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Every checkpoint of the command has changed or is missing.
    #[error(
        "no checkpoint of the command is usable, and started over it may overwrite them; the newest, of step {step}: \
         {source}. Put its files back, or allow a start from the beginning with `restart: from_start`"
    )]
    NoCheckpoint {
        /// The step of the newest checkpoint.
        step: u64,
        /// Why it is not usable.
        source: AdoptError,
    },
    /// The command is to be told how much is left, and nobody knows.
    #[error(
        "`resume` names {{steps_left}} or {{epochs_left}}, and no attempt has printed the number of steps: write it as `training.steps`"
    )]
    UnknownLength,
    /// An earlier attempt wrote an output that may be a checkpoint.
    #[error(
        "a start from the beginning would overwrite {}, which may be a checkpoint, and which `checkpoints.match` does not \
         match: correct the pattern in the run's run.yaml, or move the file away if it is none",
        text::path(.path)
    )]
    Unmatched {
        /// The output.
        path: PathBuf,
    },
    /// Every container of the companion is damaged.
    #[error(
        "no checkpoint that downshift saved in the script is whole; the newest, of step {step}: {source}. Put its files back, or allow a \
         start from the beginning with `restart: from_start`"
    )]
    NoContainer {
        /// The step of the newest container.
        step: u64,
        /// Why it is not usable.
        source: CheckpointError,
    },
    /// The copy of a checkpoint cannot be put back in place of its original.
    #[error("checkpoint {step} cannot be put back where the command looks for it: {source}")]
    NotRestored {
        /// Its step.
        step: u64,
        /// The error.
        source: AdoptError,
    },
    /// A step cannot be started on another node.
    #[error("no job step on node {name}: {source}; the job needs `srun` on its first node")]
    Node {
        /// The node.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another node is not ready for the command.
    #[error(transparent)]
    NotReady(#[from] NodeFailure),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The subject.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl HarnessError {
    /// Returns the exit code of a worker that ends for this reason.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoCheckpoint { .. }
            | Self::NoContainer { .. }
            | Self::NotRestored { .. }
            | Self::Unmatched { .. } => FailureClass::Checkpoint.exit_code(),
            Self::NotReady(failure) => failure.class().exit_code(),
            Self::Lock(_) | Self::UnknownLength | Self::Launch(_) | Self::Node { .. } | Self::Io { .. } => {
                FailureClass::Config.exit_code()
            }
        }
    }

    fn of(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Runs the command of one attempt until its last process has ended. Returns the exit code of a worker.
///
/// # Errors
/// Returns an error when the command cannot be started.
pub fn run(args: HarnessArgs) -> Result<u8, HarnessError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(HarnessError::of("the harness's runtime"))?;
    let code = runtime.block_on(async {
        let mut harness = if args.stands_by {
            let Some(mut standby) = Standby::start(&args)? else { return Ok(NOT_BEGUN) };
            if !standby.wait().await {
                standby.end();
                return Ok(NOT_BEGUN);
            }
            prepare::begin(args, Some(standby)).await?
        } else {
            prepare::begin(args, None).await?
        };
        Ok(harness.run_to_the_end().await)
    });
    runtime.shutdown_background();
    code
}

/// Returns a copy of stderr, which is worker.log.
fn stderr_file() -> io::Result<File> {
    let copy: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    Ok(File::from(copy))
}

/// Writes a message into worker.log, which is the stderr of the harness and of what it starts.
#[expect(clippy::print_stderr, reason = "stderr is the log")]
fn complain(message: &str) {
    eprintln!("downshift: {message}");
}
