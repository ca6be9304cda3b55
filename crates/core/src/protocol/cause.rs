//! The keeper's conclusion about an attempt, and the kernel's messages during it.

use super::class::FailureClass;
use serde::{Deserialize, Serialize};

/// Cause of an attempt's end or trouble: one class, with all its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Class of the trouble.
    pub class: FailureClass,
    /// Xid number, if the class is an Xid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// Damage that no restart repairs, if the messages tell of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<Damage>,
    /// Whether restarting the worker can help: false for a GPU that needs a reset, or a mistake in the script.
    pub restart_helps: bool,
    /// Whether the first occurrence may be transient, although a restart helps few failures of its class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_pass: bool,
    /// Whether the user ended it at its terminal, with Ctrl-C.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_user: bool,
    /// Evidence, strongest first: `killed by SIGKILL`, `kernel log: …`.
    pub evidence: Vec<String>,
    /// Advice for the user; empty when no remedy is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Cause {
    /// Creates a cause without advice, which a restart may help.
    #[must_use]
    pub const fn new(class: FailureClass, evidence: Vec<String>) -> Self {
        Self {
            class,
            xid: None,
            damage: None,
            restart_helps: true,
            may_pass: false,
            by_user: false,
            evidence,
            advice: String::new(),
        }
    }

    /// Returns the class with its strongest evidence. Some classes say no more than the exit itself.
    #[must_use]
    pub fn summary(&self) -> String {
        // The place in the log would push the message out of a line.
        let first = self.evidence.first().map(|first| {
            match first.strip_prefix("worker.log").and_then(|rest| rest.split_once(": ")) {
                Some((_, message)) => message.to_owned(),
                None => first.clone(),
            }
        });
        match (self.class, first) {
            (class, None) => class.to_string(),
            (
                FailureClass::Killed | FailureClass::Crash | FailureClass::EarlyExit | FailureClass::Unknown,
                Some(first),
            ) => first,
            (class, Some(first)) => format!("{class}: {first}"),
        }
    }
}

/// Damage that no restart of a program repairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// The GPU needs a reset.
    Gpu,
    /// The GPU's memory has uncorrectable errors.
    Memory,
    /// The GPU has fallen off the bus.
    Bus,
    /// A link between two GPUs failed.
    NvLink,
}

/// A relevant line of the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLine {
    /// Subject of the line.
    pub kind: KernelKind,
    /// Text of the line.
    pub text: String,
}

/// Subject of a kernel log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// The NVIDIA driver reported a GPU error.
    Xid {
        /// NVIDIA's Xid number.
        number: u32,
        /// PCI address of the GPU: `0000:01:00`.
        pci: String,
    },
    /// A process was killed because memory ran out.
    OutOfMemory {
        /// Process id in the kernel's numbering; inside a container the process itself sees another.
        pid: Option<u32>,
        /// Process name.
        name: Option<String>,
    },
    /// A GPU is gone from the bus, or WSL's channel to it is broken.
    GpuLost,
    /// Windows has no GPU memory left for this WSL.
    DeviceOutOfMemory,
}
