//! probe → keeper: one [`Reading`] a line, about once a second. keeper → probe: a [`ProbeOrder`].

use super::cause::KernelLine;
use serde::{Deserialize, Serialize};

/// The file in a run directory that makes the probe play a card; for drills alone.
pub const DRILL_FILE: &str = "drill.json";

/// keeper → probe, on the probe's stdin. A closed stdin ends the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeOrder {
    /// The worker to watch from now on; none while there is none. Must be written, so that a line
    /// that is something else does not pass for an order.
    #[serde(deserialize_with = "Option::deserialize")]
    pub worker_pid: Option<u32>,
}

/// One measurement, or the reason why there is none. A metric that is unknown is never a zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric<T> {
    /// Measured.
    Is(T),
    /// Unknown, with the reason in two or three words: `not supported`, `GPU is lost`.
    Not(String),
    /// Measured a while ago; now it does not answer, for a reason that may pass.
    Stale {
        /// The last value that was measured.
        value: T,
        /// Seconds since then.
        for_s: u64,
        /// Why there is no newer one.
        why: String,
    },
}

impl<T> Default for Metric<T> {
    fn default() -> Self {
        Self::Not("not read".to_owned())
    }
}

/// Whether a metric can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It was measured just now.
    Supported,
    /// This card, driver or machine does not tell.
    NotSupported,
    /// It was measured a while ago.
    Stale,
    /// The card does not answer any more.
    Lost,
}

impl<T> Metric<T> {
    /// Why the value is unknown, where it is.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Is(_) => None,
            Self::Not(why) | Self::Stale { why, .. } => Some(why),
        }
    }

    /// The value, where it was measured just now.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Not(_) | Self::Stale { .. } => None,
        }
    }

    /// The value, also one of a while ago.
    pub fn last(&self) -> Option<&T> {
        match self {
            Self::Is(value) | Self::Stale { value, .. } => Some(value),
            Self::Not(_) => None,
        }
    }

    /// Whether the metric can be trusted.
    pub fn standing(&self) -> Standing {
        match self {
            Self::Is(_) => Standing::Supported,
            Self::Stale { .. } => Standing::Stale,
            Self::Not(why) if why.contains("lost") || why.contains("reset") => Standing::Lost,
            Self::Not(_) => Standing::NotSupported,
        }
    }
}

impl<T: Copy> Metric<T> {
    /// The value, where there is one.
    pub fn get(&self) -> Option<T> {
        match self {
            Self::Is(value) => Some(*value),
            Self::Not(_) | Self::Stale { .. } => None,
        }
    }
}

/// Why there is nothing of the GPU, or only something stale, while a call of the driver does not
/// come back.
pub const DRIVER_SILENT: &str = "the NVIDIA driver does not answer";
/// Why there is nothing of the GPU in the first seconds.
pub const DRIVER_OPENS: &str = "the NVIDIA driver is being opened";

impl Reading {
    /// Whether the driver may still answer: opening it takes seconds on some machines, and has a
    /// bound.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.gpu.as_ref().is_err_and(|why| why == DRIVER_OPENS)
    }
}

/// Everything the probe saw at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The GPU, or one sentence why there is none to read, with the way out.
    pub gpu: Result<Gpu, String>,
    /// The machine around it.
    pub host: Host,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// The model's name.
    pub name: String,
    /// Driver version, as the driver writes it.
    pub driver: Metric<String>,
    /// Bytes of device memory in all.
    pub vram_total_bytes: Metric<u64>,
    /// Bytes in use on the whole card, by whomever.
    pub vram_used_bytes: Metric<u64>,
    /// Bytes in use by the watched worker.
    pub vram_worker_bytes: Metric<u64>,
    /// Core temperature.
    pub temperature_c: Metric<f64>,
    /// Temperature at which the card slows down.
    pub slowdown_c: Metric<f64>,
    /// Share of time with a kernel running, 0 to 1.
    pub utilisation: Metric<f64>,
    /// Power drawn.
    pub power_w: Metric<f64>,
    /// Power limit in force.
    pub power_limit_w: Metric<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Metric<u32>,
    /// Why the clocks are held back, in words; empty when they are not.
    pub throttle: Metric<Throttle>,
    /// What else it tells.
    #[serde(default)]
    pub more: GpuMore,
}

/// What else a GPU tells.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuMore {
    /// Its place on the bus: `00000000:01:00.0`.
    pub pci: Metric<String>,
    /// The newest CUDA that the driver can run: `13.0`.
    pub cuda: Metric<String>,
    /// Bytes of device memory that nobody uses. Under WSL2 no promise.
    pub vram_free_bytes: Metric<u64>,
    /// Bytes in use by others than the watched worker.
    pub vram_others_bytes: Metric<u64>,
    /// Temperature of the card's memory.
    pub memory_temperature_c: Metric<f64>,
    /// The highest temperature at which the card is meant to work.
    pub max_c: Metric<f64>,
    /// Temperature at which the card turns itself off.
    pub shutdown_c: Metric<f64>,
    /// Share of time in which device memory was read or written, 0 to 1.
    pub memory_utilisation: Metric<f64>,
    /// Clock of the device memory.
    pub memory_clock_mhz: Metric<u32>,
    /// The highest clock of the multiprocessors.
    pub sm_clock_max_mhz: Metric<u32>,
    /// ECC errors since the driver was loaded.
    pub ecc: Metric<Ecc>,
    /// The PCIe link.
    pub pcie: Metric<Pcie>,
    /// Received over PCIe.
    pub pcie_rx_bytes_s: Metric<u64>,
    /// Sent over PCIe.
    pub pcie_tx_bytes_s: Metric<u64>,
    /// Transfers over PCIe that had to be repeated.
    pub pcie_replays: Metric<u32>,
    /// Processes that compute on it.
    pub processes: Metric<Vec<GpuProcess>>,
    /// What the driver wants done: `none`, `reset the GPU`, `restart the machine`.
    pub recovery: Metric<String>,
    /// Xid errors since the last reading.
    pub xids: Metric<Vec<u32>>,
}

/// Counts of memory errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Found and corrected.
    pub corrected: u64,
    /// Found and not corrected.
    pub uncorrected: u64,
}

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcie {
    /// Generation now; cards at rest go down.
    pub generation: u32,
    /// The best generation that card and slot can do together.
    pub max_generation: u32,
    /// Lanes now.
    pub width: u32,
    /// The most lanes.
    pub max_width: u32,
}

/// A process on the card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its id.
    pub pid: u32,
    /// Bytes of device memory.
    pub vram_bytes: Metric<u64>,
}

/// Reasons for slower clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttle {
    /// The card or its driver holds back because of heat.
    pub thermal: bool,
    /// The power limit holds it back.
    pub power: bool,
    /// The hardware slowed itself down.
    pub hardware: bool,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Bytes of memory in all.
    pub ram_total_bytes: Metric<u64>,
    /// Bytes in use: total less available.
    pub ram_used_bytes: Metric<u64>,
    /// Resident bytes of the watched worker.
    pub ram_worker_bytes: Metric<u64>,
    /// Share of all cores in use since the last reading, 0 to 1.
    pub cpu: Metric<f64>,
    /// Free bytes where the run directory lies.
    pub disk_free_bytes: Metric<u64>,
    /// What else it tells.
    #[serde(default)]
    pub more: HostMore,
}

/// What else the machine tells.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMore {
    /// Bytes of swap in all.
    pub swap_total_bytes: Metric<u64>,
    /// Bytes of swap in use.
    pub swap_used_bytes: Metric<u64>,
    /// Processes that ran or wanted to, over the last minute.
    pub load_1m: Metric<f64>,
    /// Bytes of the file system of the run directory.
    pub disk_total_bytes: Metric<u64>,
    /// Processes that the kernel killed in this cgroup for want of memory, since it exists.
    pub oom_kills: Metric<u64>,
    /// Lines of the kernel's log since the last reading that matter here.
    pub kernel: Metric<Vec<KernelLine>>,
}
