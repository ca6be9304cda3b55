//! What the keeper concluded about an attempt, and what the kernel said while it lived.

use super::class::FailureClass;
use serde::{Deserialize, Serialize};

/// Why an attempt ended or is in trouble: one class, and everything it is known by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// What kind of trouble.
    pub class: FailureClass,
    /// The number, where the class is an Xid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// Whether starting the worker again can help: false for a card that needs a reset.
    pub restart_helps: bool,
    /// What it is known by, the strongest first: `signal 9 (SIGKILL)`, `kernel log: …`.
    pub evidence: Vec<String>,
    /// What a person can do; empty where nothing is known to help.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// A line of the kernel's log that matters here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLine {
    /// What it is about.
    pub kind: KernelKind,
    /// What it says.
    pub text: String,
}

/// What a line of the kernel's log is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// The NVIDIA driver reported an error of a card.
    Xid {
        /// NVIDIA's number.
        number: u32,
        /// The card: `0000:01:00`.
        pci: String,
    },
    /// A process was killed for want of memory.
    OutOfMemory {
        /// Its id, as the kernel counts; inside a container the process itself sees another.
        pid: Option<u32>,
        /// Its name.
        name: Option<String>,
    },
    /// A card is gone from the bus, or WSL's channel to it is broken.
    GpuLost,
    /// Windows has no room on the card for memory of this WSL.
    DeviceOutOfMemory,
}
