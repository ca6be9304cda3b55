//! The messages between a harness and its helper on another node of the job, over the stdin and stdout of a job step.
//!
//! ```text
//! harness ── NodeOrder ──▶ node-command on another node ──▶ its part of the command
//!         ◀── NodeEvent ──                              ◀── companions, over a socket of that node
//!
//! Claim ──▶ Ready: nothing of an earlier attempt is left there        Begin ──▶ Started ──▶ Exited ──▶ Ended
//! ```
//! The end of the orders ends the part of the command: nothing on a node outlives its harness.

use super::companion::Setup;
use super::ranks::ProcessState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// A message to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum NodeOrder {
    /// End what an earlier attempt left, and keep later helpers off. The first order.
    Claim(Box<NodeClaim>),
    /// Start the command. The second order: the harness sends it once all nodes are ready.
    Begin(Box<NodeStart>),
    /// The setup of the companions has changed.
    Setup(Box<Setup>),
    /// A line for a companion.
    Companion {
        /// The number of its connection.
        connection: u64,
        /// The line, with its end.
        line: String,
    },
    /// Report what the command does, and where these ranks stand. Sent at intervals.
    Look {
        /// The ranks of this node that have introduced themselves.
        ranks: Vec<WatchedRank>,
    },
    /// Ask these processes for their stacks.
    Stacks {
        /// The processes.
        writers: Vec<StackWriter>,
    },
    /// Send the signal on which the script saves.
    Save {
        /// The number of the signal.
        signal: i32,
    },
    /// End every process of the command.
    End(EndWithin),
    /// End the times that an earlier order gave.
    EndNow,
}

/// The claim of an attempt on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClaim {
    /// The version of the harness's program. Another one may not understand it.
    pub build: String,
    /// The number of the node.
    pub node: u32,
    /// The number of the attempt.
    pub attempt: u64,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Marks the processes of the command on this node.
    pub token: String,
}

/// The start of a command on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStart {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The working directory.
    pub directory: PathBuf,
    /// Variables added to the environment.
    pub environment: BTreeMap<String, OsString>,
    /// Whether the command writes to a terminal.
    pub terminal: bool,
    /// The shortest silence that counts as a hang, in milliseconds.
    pub silence_ms: u64,
    /// The setup of the companions, without the node's own socket; none for a command without companions.
    pub setup: Option<Box<Setup>>,
}

/// Times to end a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndWithin {
    /// Time for the command to end on its own.
    pub alone_ms: u64,
    /// Time between SIGTERM to the command and to its other processes.
    pub command_ms: u64,
    /// Time between SIGTERM to all and SIGKILL.
    pub others_ms: u64,
}

/// A rank whose file is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedRank {
    /// Its process.
    pub pid: u32,
    /// Its file, as its companion named it.
    pub file: PathBuf,
}

/// A process that writes its stacks when it gets a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackWriter {
    /// The process.
    pub pid: u32,
    /// Its rank.
    pub rank: u32,
    /// The number of the signal.
    pub signal: i32,
    /// Its file.
    pub file: PathBuf,
}

/// A message from a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NodeEvent {
    /// The claim is taken, and nothing of an earlier attempt is left.
    Ready,
    /// The command runs.
    Started,
    /// The command cannot be started, or not watched.
    Refused {
        /// Why.
        reason: Refused,
    },
    /// News of a connection of a companion.
    Companion {
        /// The number of the connection.
        connection: u64,
        /// The news.
        news: ConnectionNews,
    },
    /// The answer to [`NodeOrder::Look`].
    Looked {
        /// The command printed something or used the processor.
        active: bool,
        /// The ranks whose files could be read.
        ranks: Vec<RankReading>,
    },
    /// These processes have written their stacks.
    Stacks {
        /// The processes.
        written: Vec<StackWriter>,
    },
    /// The command has exited on its own.
    Exited {
        /// Its exit code, unless a signal ended it.
        code: Option<i32>,
        /// The signal.
        signal: Option<i32>,
    },
    /// The command did not end on its own in the time that it had.
    CutOff,
    /// No process of the command is left except these, which cannot be killed.
    Ended {
        /// Their ids.
        left: Vec<u32>,
    },
}

/// Reason why a node does not start a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// Its program is another one.
    #[error("this program is {own} there, and {theirs} on the first node; install the same on all nodes")]
    Build {
        /// The version there.
        own: String,
        /// The version of the harness.
        theirs: String,
    },
    /// It does not find the run.
    #[error("{0}; all nodes must share the runs directory")]
    RunDir(String),
    /// Processes of an earlier attempt do not end.
    #[error("processes of an earlier attempt still run there")]
    EarlierAttempt,
    /// A later attempt has begun there.
    #[error("attempt {0} of the run has begun there")]
    LaterAttempt(u64),
    /// The command cannot be launched.
    #[error("{0}")]
    Launch(String),
    /// The system refused something.
    #[error("{what}: {message}")]
    Io {
        /// The subject.
        what: String,
        /// The system's error.
        message: String,
    },
}

/// News of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionNews {
    /// A process has connected.
    Connected,
    /// It sent a line.
    Line(String),
    /// It sent a part of a line, and no more.
    HalfLine,
    /// It closed the connection.
    Gone,
    /// Its process has ended; neither is known if its parent was faster.
    Ended {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// It closed the connection, and its process lives on.
    Remains,
}

/// Where a rank stands, as its node reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankReading {
    /// Its process.
    pub pid: u32,
    /// The numbers of its record, as its companion wrote them.
    pub record: Vec<u64>,
    /// The node's clock at the reading, in seconds: the record's times are on it.
    pub clock_s: f64,
    /// Its process; none if it cannot be read.
    pub process: Option<ProcessReading>,
    /// Processor time of what it has started, in seconds, where it stands for long.
    pub helpers_cpu_s: Option<f64>,
}

/// The state of a process in /proc.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProcessReading {
    /// Its state.
    pub state: ProcessState,
    /// Processor time that it has used, in seconds.
    pub cpu_s: f64,
    /// Its resident memory.
    pub resident_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::{ConnectionNews, EndWithin, NodeClaim, NodeEvent, NodeOrder, NodeStart, RankReading, Refused};
    use crate::protocol::line;
    use std::ffi::OsString;
    use std::fmt::Debug;
    use std::os::unix::ffi::OsStringExt;

    fn returns<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(message: &T) {
        let text = line::encode(message).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert_eq!(line::decode::<T>(&text).as_ref(), Some(message));
    }

    #[test]
    fn every_byte_of_a_start_and_of_a_line_arrives() {
        let (build, run_dir, token) = ("0.1.0".to_owned(), "/runs/a b".into(), "7".to_owned());
        returns(&NodeOrder::Claim(Box::new(NodeClaim { build, node: 1, attempt: 3, run_dir, token })));
        let start = NodeStart {
            argv: vec!["python".to_owned(), "zwei\nZeilen".to_owned()],
            directory: "/project".into(),
            environment: [("PYTHONPATH".to_owned(), OsString::from_vec(vec![b'/', 0xff]))].into(),
            terminal: true,
            silence_ms: 600_000,
            setup: None,
        };
        returns(&NodeOrder::Begin(Box::new(start)));
        returns(&NodeOrder::Companion { connection: 3, line: "{\"order\":\"checkpoint\"}\n".to_owned() });
        returns(&NodeOrder::EndNow);
        returns(&NodeOrder::End(EndWithin { alone_ms: 0, command_ms: 2000, others_ms: 750 }));
        let news = ConnectionNews::Line("{\"event\":\"ended\",\"step\":3}\n".to_owned());
        returns(&NodeEvent::Companion { connection: 3, news });
        for reason in [Refused::EarlierAttempt, Refused::LaterAttempt(4), Refused::RunDir("gone".to_owned())] {
            returns(&NodeEvent::Refused { reason });
        }
        // A record holds the bits of numbers: also those of NaN.
        let record = vec![1, f64::NAN.to_bits(), u64::MAX];
        let reading = RankReading { pid: 7, record, clock_s: 12.5, process: None, helpers_cpu_s: None };
        returns(&NodeEvent::Looked { active: true, ranks: vec![reading] });
    }
}
