//! The probe contract. The probe sends the keeper one [`Reading`] per line, about once a second; the
//! keeper sends it [`ProbeOrder`]s.

use super::cause::KernelLine;
use super::claim::Card;
use super::gpu_error::{GpuError, GpuProblem};
use serde::{Deserialize, Serialize};
use std::fmt;

/// File in a run directory that makes the probe simulate a GPU; only for drills.
pub const DRILL_FILE: &str = "drill.json";

/// A message from keeper to probe, on the probe's stdin. A closed stdin ends the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeOrder {
    /// The worker to watch from now on; none while there is none. Required, so that no other line parses as an order.
    #[serde(deserialize_with = "Option::deserialize")]
    pub worker_pid: Option<u32>,
}

/// The cards of the machine, as listed by `probe --list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardList {
    /// The cards, by index.
    pub cards: Vec<Card>,
}

/// One metric's value, or the reason for its absence. An unknown metric is never zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric<T> {
    /// Measured.
    Is(T),
    /// Unknown, with the reason in two or three words: `not supported`, `GPU is lost`.
    Not(String),
    /// Measured earlier; currently unavailable for a reason that may pass.
    Stale {
        /// The last measured value.
        value: T,
        /// Seconds since that measurement.
        for_s: u64,
        /// Reason for the lack of a newer value.
        why: String,
    },
}

/// Reason for missing data of a GPU that the driver has lost.
pub const GPU_LOST: &str = "GPU is lost";
/// Reason for missing data of a GPU that needs a reset.
pub const GPU_NEEDS_RESET: &str = "GPU needs a reset";

impl<T> Default for Metric<T> {
    fn default() -> Self {
        Self::Not("not read".to_owned())
    }
}

/// Reliability of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Measured just now.
    Supported,
    /// Not reported by this GPU, driver or machine.
    NotSupported,
    /// Measured earlier.
    Stale,
    /// The GPU does not answer any more.
    Lost,
}

impl<T> Metric<T> {
    /// Returns why the value is unknown, if it is.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Is(_) => None,
            Self::Not(why) | Self::Stale { why, .. } => Some(why),
        }
    }

    /// Reports whether the driver has lost the GPU, or wants it to be reset.
    pub fn is_lost(&self) -> bool {
        self.why().is_some_and(|why| why == GPU_LOST || why == GPU_NEEDS_RESET)
    }

    /// Returns the value, if it was measured just now.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Not(_) | Self::Stale { .. } => None,
        }
    }

    /// Returns the value, including a stale one.
    pub fn last(&self) -> Option<&T> {
        match self {
            Self::Is(value) | Self::Stale { value, .. } => Some(value),
            Self::Not(_) => None,
        }
    }

    /// Returns the reliability of the metric.
    pub fn standing(&self) -> Standing {
        match self {
            Self::Is(_) => Standing::Supported,
            Self::Stale { .. } => Standing::Stale,
            Self::Not(_) if self.is_lost() => Standing::Lost,
            Self::Not(_) => Standing::NotSupported,
        }
    }
}

impl<T: Copy> Metric<T> {
    /// Returns a copy of the value, if there is one.
    pub fn get(&self) -> Option<T> {
        match self {
            Self::Is(value) => Some(*value),
            Self::Not(_) | Self::Stale { .. } => None,
        }
    }
}

impl Reading {
    /// Reports whether the driver may still answer: opening it takes seconds on some machines, and has a time limit.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.gpu.as_ref().is_err_and(|error| error.problem == GpuProblem::Opening)
    }
}

/// One reading of all metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The GPU, or the reason why it is unreadable.
    pub gpu: Result<Gpu, GpuError>,
    /// The machine.
    pub host: Host,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// Model name.
    pub name: String,
    /// Driver version, as the driver writes it.
    pub driver: Metric<String>,
    /// Total bytes of device memory.
    pub vram_total_bytes: Metric<u64>,
    /// Bytes in use on the whole GPU, by any process.
    pub vram_used_bytes: Metric<u64>,
    /// Bytes in use by the watched worker.
    pub vram_worker_bytes: Metric<u64>,
    /// Core temperature, in °C.
    pub temperature_c: Metric<f64>,
    /// Temperature at which the GPU slows down, in °C.
    pub slowdown_c: Metric<f64>,
    /// Share of time with a kernel running, 0 to 1.
    pub utilisation: Metric<f64>,
    /// Power draw, in watts.
    pub power_w: Metric<f64>,
    /// Power limit in force, in watts.
    pub power_limit_w: Metric<f64>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Metric<u32>,
    /// Reasons for reduced clocks; empty when they are not reduced.
    pub throttle: Metric<Throttle>,
    /// Further metrics.
    #[serde(default)]
    pub more: GpuMore,
}

/// Further metrics of a GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuMore {
    /// PCI address: `00000000:01:00.0`.
    pub pci: Metric<String>,
    /// Newest CUDA version the driver supports: `13.0`.
    pub cuda: Metric<String>,
    /// Free bytes of device memory. Not guaranteed under WSL2.
    pub vram_free_bytes: Metric<u64>,
    /// Bytes in use by other processes than the watched worker.
    pub vram_others_bytes: Metric<u64>,
    /// Temperature of the device memory, in °C.
    pub memory_temperature_c: Metric<f64>,
    /// Maximum operating temperature, in °C.
    pub max_c: Metric<f64>,
    /// Temperature at which the GPU shuts down, in °C.
    pub shutdown_c: Metric<f64>,
    /// Share of time in which device memory was read or written, 0 to 1.
    pub memory_utilisation: Metric<f64>,
    /// Clock of the device memory, in MHz.
    pub memory_clock_mhz: Metric<u32>,
    /// Maximum clock of the multiprocessors, in MHz.
    pub sm_clock_max_mhz: Metric<u32>,
    /// ECC errors since the driver was loaded.
    pub ecc: Metric<Ecc>,
    /// The PCIe link.
    pub pcie: Metric<Pcie>,
    /// Bytes per second received over PCIe.
    pub pcie_rx_bytes_s: Metric<u64>,
    /// Bytes per second sent over PCIe.
    pub pcie_tx_bytes_s: Metric<u64>,
    /// Transfers over PCIe that had to be repeated.
    pub pcie_replays: Metric<u32>,
    /// Processes that compute on the GPU.
    pub processes: Metric<Vec<GpuProcess>>,
    /// Recovery action requested by the driver: `none`, `reset the GPU`, `restart the machine`.
    pub recovery: Metric<String>,
    /// Xid errors since the last reading.
    pub xids: Metric<Vec<u32>>,
}

/// Memory error counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Corrected errors.
    pub corrected: u64,
    /// Uncorrected errors.
    pub uncorrected: u64,
}

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcie {
    /// Current generation; an idle GPU lowers it.
    pub generation: u32,
    /// Highest generation supported by both GPU and slot.
    pub max_generation: u32,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum number of lanes.
    pub max_width: u32,
}

/// A process on the GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id.
    pub pid: u32,
    /// Bytes of device memory.
    pub vram_bytes: Metric<u64>,
}

/// Reasons for reduced clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttle {
    /// The GPU or its driver reduces clocks because of heat.
    pub thermal: bool,
    /// The power limit reduces clocks.
    pub power: bool,
    /// The hardware reduced clocks itself.
    pub hardware: bool,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Total bytes of memory.
    pub ram_total_bytes: Metric<u64>,
    /// Bytes in use: total minus available.
    pub ram_used_bytes: Metric<u64>,
    /// Resident bytes of the watched worker.
    pub ram_worker_bytes: Metric<u64>,
    /// Share of all cores in use since the last reading, 0 to 1.
    pub cpu: Metric<f64>,
    /// Free bytes on the run directory's disk.
    pub disk_free_bytes: Metric<u64>,
    /// Further metrics.
    #[serde(default)]
    pub more: HostMore,
}

/// A process of the worker, in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamProcess {
    /// Process id.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub name: String,
    /// Resident bytes.
    pub bytes: u64,
}

impl Host {
    /// Returns the memory that is nearest to its end: that of the machine, or of the tightest cgroup of the run.
    #[must_use]
    pub fn tightest_ram(&self) -> Option<RamUse> {
        let of = |bound, used: u64, total: u64| (total > 0).then_some(RamUse { bound, used, total });
        let machine = self.ram_used_bytes.get().zip(self.ram_total_bytes.get());
        let machine = machine.and_then(|(used, total)| of(RamBound::Machine, used, total));
        let limit = self.more.ram_limit_bytes.get().zip(self.more.ram_limit_free_bytes.get());
        let limited = limit.and_then(|(limit, free)| of(RamBound::Cgroup, limit.saturating_sub(free), limit));
        machine.into_iter().chain(limited).max_by(|one, other| one.share().total_cmp(&other.share()))
    }
}

/// Memory of the host in use, below one of its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamUse {
    /// The bound.
    pub bound: RamBound,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that there are.
    pub total: u64,
}

impl RamUse {
    /// Returns the share in use.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.used as f64 / self.total as f64
    }
}

/// Where the memory of the host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RamBound {
    /// The memory of the machine.
    Machine,
    /// The limit of a cgroup, such as that of a container or a job.
    Cgroup,
}

impl fmt::Display for RamBound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Machine => "the host's memory",
            Self::Cgroup => "the memory that its cgroup allows this run",
        })
    }
}

/// Further metrics of the machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMore {
    /// Total bytes of swap.
    pub swap_total_bytes: Metric<u64>,
    /// Bytes of swap in use.
    pub swap_used_bytes: Metric<u64>,
    /// Load average: processes running or ready to run over the last minute.
    pub load_1m: Metric<f64>,
    /// Total bytes of the run directory's file system.
    pub disk_total_bytes: Metric<u64>,
    /// Limit of the tightest cgroup, and what may still be used of it; none where nothing limits the run.
    pub ram_limit_bytes: Metric<u64>,
    /// Bytes that may still be used below that limit.
    pub ram_limit_free_bytes: Metric<u64>,
    /// The largest processes of the watched worker.
    pub ram_processes: Metric<Vec<RamProcess>>,
    /// Processes in this cgroup that the kernel killed for lack of memory, since the cgroup exists.
    pub oom_kills: Metric<u64>,
    /// Relevant kernel log lines since the last reading.
    pub kernel: Metric<Vec<KernelLine>>,
}
