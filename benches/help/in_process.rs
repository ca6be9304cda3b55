//! A worker in the process of its benchmark.

use downshift::config::knobs::Preset;
use downshift::protocol::device::DeviceChoice;
use downshift::recipe::interval::Faults;
use downshift::recipe::leave_out::LeaveOut;
use downshift::train::job::WorkerArgs;
use std::path::Path;

/// Returns the arguments of the first attempt of a run, without anything that only faults or resumes need.
pub fn worker_args(run_dir: &Path, task: &str, preset: Preset, device: DeviceChoice) -> WorkerArgs {
    WorkerArgs {
        run_dir: run_dir.to_owned(),
        rung: 0,
        rung_name: "full".into(),
        attempt: 1,
        task: task.into(),
        preset,
        skips_in_a_row: 5,
        layers: false,
        device,
        from: None,
        require_checkpoint: false,
        migrate: false,
        leave_out: LeaveOut::default(),
        faults: Faults::default(),
        inject: Vec::new(),
        measure: false,
    }
}
