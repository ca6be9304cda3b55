//! Simulates a GPU for drills: if the run directory contains `drill.json`, the probe reports that GPU
//! instead of a real one. Only `downshift drill` writes such a file.

use super::more;
use crate::protocol::probe::{DRILL_FILE, Gpu, Metric, Reading, Throttle};
use crate::untrusted::file::{Limit, read_text};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The simulated GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drill {
    /// Its temperature.
    pub temperature_c: f64,
}

/// Replaces the GPU in a reading by the simulated one, if there is a drill.
pub fn play(run_dir: &Path, reading: &mut Reading) {
    let text = read_text(&run_dir.join(DRILL_FILE), Limit::Handwritten).ok();
    let Some(drill) = text.and_then(|text| serde_json::from_str::<Drill>(&text).ok()) else { return };
    reading.gpu = Ok(card(drill));
}

fn card(drill: Drill) -> Gpu {
    fn not<T>() -> Metric<T> {
        Metric::Not("a drill".to_owned())
    }
    Gpu {
        index: 0,
        name: "a card that is played".to_owned(),
        driver: not(),
        vram_total_bytes: not(),
        vram_used_bytes: not(),
        vram_worker_bytes: not(),
        temperature_c: Metric::Is(drill.temperature_c),
        slowdown_c: Metric::Is(95.0),
        utilisation: not(),
        power_w: not(),
        power_limit_w: not(),
        sm_clock_mhz: not(),
        throttle: Metric::Is(Throttle::default()),
        more: more::unread("a drill"),
    }
}
