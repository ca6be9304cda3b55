//! The initial status of a run.

use crate::config::command::{CommandSpec, SaveRequest};
use crate::config::run::Run;
use crate::config::watch::AGE_AT_LEAST;
use crate::outlook::capability::capability_of;
use crate::policy::command::{COMPANION_WAIT, CommandTimes, StartedBy};
use crate::policy::event::Limits;
use crate::protocol::capability::Level;
use crate::protocol::control::{RunState, RungRecord, Status};
use crate::protocol::time_spent::TimeSpent;
use crate::store::continuation::commands;
use crate::store::foreign::ForeignProcess;
use crate::store::run_dir::RunDir;
use crate::wsl::gpu_release_time;
use std::collections::BTreeMap;

/// Returns the status of a run that has not begun.
pub fn blank_status(run_dir: &RunDir, run: &Run, rung: usize) -> Status {
    let capability = capability_of(run.command.as_ref());
    Status {
        run: run_dir.name(),
        state: RunState::Starting,
        exit_code: None,
        why: None,
        rung,
        rung_name: run.rungs[rung].name.clone(),
        level: capability.level().map(Level::number),
        capability: Some(capability),
        resume: None,
        resumed: None,
        companion: None,
        awaits_companion: false,
        ranks: Vec::new(),
        step: 0,
        samples: 0,
        total_samples: None,
        total_steps: None,
        epoch_samples: None,
        unit: "samples".to_owned(),
        durable_step: None,
        attempts: 0,
        restarts: 0,
        pauses: 0,
        shifts: 0,
        failed_saves: None,
        rollbacks: 0,
        skipped: run.command.is_none().then_some(0),
        updates: None,
        unguarded: 0,
        not_finite: 0,
        progress: None,
        loss: None,
        eval: None,
        best: None,
        setback: None,
        ends_ms: None,
        unread: None,
        reduced: None,
        kernels: None,
        device: None,
        parameters: None,
        host: None,
        pid_keeper: Some(std::process::id()),
        pid_worker: None,
        pid_probe: None,
        pid_quality: None,
        autopilot: true,
        proposal: None,
        climb: None,
        plan: None,
        time: TimeSpent::default(),
        passage: None,
        rungs: run.rungs.iter().map(|rung| blank_record(&rung.name)).collect(),
        run_dir: run_dir.path().display().to_string(),
    }
}

/// Returns the record of a rung that has not run.
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
        unusable: None,
    }
}

/// Returns the settings that decisions depend on.
pub fn policy_limits(run: &Run, run_dir: &RunDir) -> Limits {
    Limits {
        commands: commands(run_dir, run.command.as_ref()),
        rungs: run.rungs.iter().map(|rung| rung.name.clone()).collect(),
        relieves: run.rungs.iter().map(|rung| rung.relieves.clone()).collect(),
        barriers: barriers(run),
        watch: run.watch.clone(),
        release_time: gpu_release_time(),
        plan: run.plan.clone(),
        capability: capability_of(run.command.as_ref()),
        times: run.command.as_ref().map(|spec| command_times(spec, run_dir)).unwrap_or_default(),
        save_every: run.rungs.iter().map(|rung| rung.preset.checkpoint.every).collect(),
        unfused: run.rungs.iter().map(|rung| rung.preset.without_fused_kernels()).collect(),
        knobs: run.command.iter().flat_map(|_| &run.rungs).map(|rung| rung.preset.tree()).collect(),
    }
}

fn command_times(spec: &CommandSpec, run_dir: &RunDir) -> CommandTimes {
    let foreign = ForeignProcess::of_run(run_dir);
    CommandTimes {
        old_after: spec.checkpoints.as_ref().map(|_| AGE_AT_LEAST),
        save_within: spec.save.as_ref().map(SaveRequest::limit),
        companion_within: foreign.is_none().then_some(COMPANION_WAIT),
    }
}

/// Returns who started the command of an attempt.
pub fn started_by(run_dir: &RunDir, attempt: u64) -> StartedBy {
    let foreign = ForeignProcess::of_attempt(run_dir, attempt);
    foreign.map_or(StartedBy::Run, |foreign| StartedBy::User { may_end: foreign.may_end })
}

/// Returns why one rung cannot be reached from another, for every such pair.
fn barriers(run: &Run) -> BTreeMap<(usize, usize), String> {
    let rungs = 0..run.rungs.len();
    let pairs = rungs.clone().flat_map(|from| rungs.clone().map(move |to| (from, to)));
    pairs.filter_map(|(from, to)| Some(((from, to), run.barrier(from, to)?.to_string()))).collect()
}
