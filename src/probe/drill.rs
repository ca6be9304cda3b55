//! Simulates a GPU for drills: if the run directory contains `drill.json`, the probe reports that GPU
//! instead of a real one. Only `downshift drill` writes such a file.

use super::nvml_more::all_unknown;
use crate::protocol::probe::{DRILL_FILE, Gpu, Metric, Reading, Throttle};
use crate::untrusted::file::{Limit, read_text};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Reason for every metric that a drill does not set.
const SIMULATED: &str = "simulated";

/// The simulated GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drill {
    /// Its temperature.
    pub temperature_c: f64,
}

/// Replaces the GPU in a reading by the simulated one, if there is a drill.
pub fn apply_drill(run_dir: &Path, reading: &mut Reading) {
    let text = read_text(&run_dir.join(DRILL_FILE), Limit::Handwritten).ok();
    let Some(drill) = text.and_then(|text| serde_json::from_str::<Drill>(&text).ok()) else { return };
    reading.gpu = Ok(simulate_gpu(drill));
}

fn simulate_gpu(drill: Drill) -> Gpu {
    fn unknown<T>() -> Metric<T> {
        Metric::Not(SIMULATED.to_owned())
    }
    Gpu {
        index: 0,
        name: "simulated GPU".to_owned(),
        driver: unknown(),
        vram_total_bytes: unknown(),
        vram_used_bytes: unknown(),
        vram_worker_bytes: unknown(),
        temperature_c: Metric::Is(drill.temperature_c),
        slowdown_c: Metric::Is(95.0),
        utilisation: unknown(),
        power_w: unknown(),
        power_limit_w: unknown(),
        sm_clock_mhz: unknown(),
        throttle: Metric::Is(Throttle::default()),
        more: all_unknown(SIMULATED),
    }
}
