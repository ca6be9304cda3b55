//! The trace of the driver's calls: a line of JSON for each call that costs time on a GPU.

use serde::{Deserialize, Serialize};

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    Launch {
        kernel: String,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: usize,
        /// The bytes of each buffer, if the kernel's arguments tell them: from compute capability 7.0 on.
        buffers: Vec<u64>,
    },
    Copy {
        direction: Direction,
        bytes: u64,
    },
    Fill {
        bytes: u64,
    },
    Allocate {
        bytes: u64,
    },
    Free {
        bytes: u64,
    },
    /// The host waits until the device has done its work.
    Wait,
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    ToDevice,
    ToHost,
    Within,
}
