//! The run at a glance, before anything is known of it.

use crate::config::run::Run;
use crate::policy::event::Limits;
use crate::protocol::control::{RunState, RungRecord, Status};
use crate::store::run_dir::RunDir;
use std::collections::BTreeMap;

/// The settings that decisions depend on.
pub fn limits(run: &Run) -> Limits {
    Limits {
        rungs: run.rungs.iter().map(|rung| rung.name.clone()).collect(),
        relieves: run.rungs.iter().map(|rung| rung.relieves.clone()).collect(),
        barriers: barriers(run),
        watch: run.watch.clone(),
    }
}

/// The status of a run that has not begun.
pub fn blank_status(run_dir: &RunDir, run: &Run) -> Status {
    Status {
        run: run_dir.name(),
        state: RunState::Starting,
        why: None,
        rung: 0,
        rung_name: run.rungs[0].name.clone(),
        step: 0,
        samples: 0,
        total_samples: None,
        total_steps: None,
        epoch_samples: None,
        unit: "samples".to_owned(),
        durable_step: None,
        attempts: 0,
        restarts: 0,
        shifts: 0,
        skipped: 0,
        loss: None,
        eval: None,
        device: None,
        parameters: None,
        pid_keeper: Some(std::process::id()),
        pid_worker: None,
        pid_probe: None,
        autopilot: true,
        proposal: None,
        climb: None,
        passage: None,
        rungs: run.rungs.iter().map(|rung| blank_record(&rung.name)).collect(),
        run_dir: run_dir.path().display().to_string(),
    }
}

/// A rung of which nothing is known yet.
pub fn blank_record(name: &str) -> RungRecord {
    RungRecord {
        name: name.to_owned(),
        steps: 0,
        steps_per_s: None,
        units_per_s: None,
        vram_bytes: None,
        ram_bytes: None,
        planned_bytes: None,
        fault: None,
    }
}

/// Why one rung cannot be reached from another, for every pair where it cannot.
fn barriers(run: &Run) -> BTreeMap<(usize, usize), String> {
    let rungs = 0..run.rungs.len();
    let pairs = rungs.clone().flat_map(|from| rungs.clone().map(move |to| (from, to)));
    pairs.filter_map(|(from, to)| Some(((from, to), run.barrier(from, to)?))).collect()
}
