//! Messages for tests, which fill in the values that matter to them.
#![expect(clippy::unwrap_used, reason = "for tests alone")]

use super::companion::{CompanionNews, Framework, Grade};
use super::control::Status;
use super::probe::{Gpu, GpuMore, Metric};
use super::ranks::{ProcessState, RankPhase, RankRow};
use serde_json::json;
use std::collections::BTreeMap;

/// Returns the status of a run that trains on its first rung, at step 0.
pub fn status() -> Status {
    serde_json::from_value(json!({
        "run": "run", "state": "training", "rung": 0, "rung_name": "full", "step": 0, "samples": 0,
        "unit": "samples", "attempts": 1, "restarts": 0, "pauses": 0, "shifts": 0, "skipped": 0,
        "autopilot": true, "rungs": [], "run_dir": "run",
    }))
    .unwrap()
}

/// Returns a GPU that reports nothing.
pub fn gpu() -> Gpu {
    Gpu {
        index: 0,
        name: String::new(),
        driver: Metric::default(),
        vram_total_bytes: Metric::default(),
        vram_used_bytes: Metric::default(),
        vram_worker_bytes: Metric::default(),
        temperature_c: Metric::default(),
        slowdown_c: Metric::default(),
        utilisation: Metric::default(),
        power_w: Metric::default(),
        power_limit_w: Metric::default(),
        sm_clock_mhz: Metric::default(),
        throttle: Metric::default(),
        more: GpuMore::default(),
    }
}

/// Returns what is known of a plain loop's companion.
pub fn companion(grade: Grade, saves: bool) -> CompanionNews {
    CompanionNews {
        framework: Framework::Loop,
        version: None,
        python: None,
        torch: None,
        grade,
        reason: None,
        saves,
        guards: true,
        counts_skips: true,
        parameters: None,
        epoch_units: None,
        unit: None,
        world: 1,
        sharded: false,
        knobs: BTreeMap::new(),
        ignored: Vec::new(),
        seen: BTreeMap::new(),
        imports_ahead: false,
    }
}

/// Returns a rank that computes in a step.
pub fn rank(rank: u32, step: u64, phase: RankPhase) -> RankRow {
    RankRow {
        rank,
        pid: 100 + rank,
        node: None,
        card: None,
        step,
        phase,
        stands_ms: 0,
        idle_ms: 0,
        process: Some(ProcessState::Sleeping),
        cpu: None,
        step_ms: None,
        own_ms: None,
        data_wait_ms: None,
        loss: None,
        memory_bytes: None,
        reserved_bytes: None,
        mark: None,
    }
}
