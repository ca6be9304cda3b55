//! probe → keeper: one [`Reading`] a line, about once a second. keeper → probe: a [`ProbeOrder`].

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
}

impl<T> Metric<T> {
    /// Why the value is unknown, where it is.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Is(_) => None,
            Self::Not(why) => Some(why),
        }
    }
}

impl<T: Copy> Metric<T> {
    /// The value, where there is one.
    pub fn get(&self) -> Option<T> {
        match self {
            Self::Is(value) => Some(*value),
            Self::Not(_) => None,
        }
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
}
