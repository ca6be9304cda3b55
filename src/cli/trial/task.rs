//! The trial of a built-in task: it runs for a few minutes, and halfway saves and restarts from that checkpoint, so that
//! the whole cycle is exercised.

use super::checklist::{self, Check, item, remark, unknown};
use super::figures::{evaluation_improves, is_steady, loss_falls};
use crate::cli::watching::Watched;
use crate::cli::{Failure, Outcome, client, line};
use crate::config::run::Run;
use crate::format::{count, counted, percent};
use crate::keeper::Launch;
use crate::protocol::control::{ReadingRow, Request, RunState, Status, StepRow};
use crate::protocol::worker::Eval;
use crate::store::command_line::record_command_line;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::path::Path;
use std::time::{Duration, Instant};

/// Share of the time in which the GPU of a healthy run works.
const HEALTHY_LOAD: f64 = 0.8;

/// Trains in a new run directory, and prints the checklist.
pub fn try_task(run: &Run, launch: &Launch, runs: &Path, time: Duration) -> Outcome {
    let dir = RunDir::create(runs, run)?;
    line!("trial of {} for {} s in {}", run.name, time.as_secs(), text::path(dir.path()));
    record_command_line(&dir);
    let status = follow_run(Watched::start(dir.clone(), launch)?, time)?;
    let checks = checklist(&dir, &status)?;
    let failed = checklist::print(&checks);
    match failed {
        0 => {
            let unknown = checks.iter().filter(|check| !check.is_measured).count();
            let but = if unknown == 0 { String::new() } else { format!(" ({unknown} could not be measured here)") };
            line!("all checks passed{but}: ready for `downshift run`");
        }
        _ => line!("{failed} of {} checks failed; see the journal of {}", checks.len(), dir.name()),
    }
    Ok(u8::from(failed > 0))
}

/// Follows the run until it is over; restarts it once on the way and stops it when the time is up.
fn follow_run(watched: Watched, time: Duration) -> Result<Status, Failure> {
    let (mut began, mut restarted, mut stopped) = (None::<Instant>, false, false);
    let limit = Instant::now() + time + Duration::from_mins(20);
    watched.follow(|dir, status| {
        if status.step > 0 {
            began.get_or_insert_with(Instant::now);
        }
        let so_far = began.map_or(Duration::ZERO, |began| began.elapsed());
        // A run about to finish is restarted before it does.
        let share = status.total_samples.map_or(0.0, |total| status.samples as f64 / total.max(1) as f64);
        if !restarted && (so_far >= time / 2 || share > 0.4) {
            restarted = client::send_request(dir, &Request::Restart).is_ok();
        }
        if !stopped && (so_far >= time || Instant::now() > limit) {
            stopped = client::send_request(dir, &Request::Stop).is_ok();
        }
        Ok(())
    })
}

fn checklist(dir: &RunDir, status: &Status) -> Result<Vec<Check>, Failure> {
    let reader = Reader::open(dir)?;
    let mut rows = Vec::new();
    reader.each_step(|row| rows.push(row))?;
    let evals: Vec<Eval> = reader.evals()?.into_iter().map(|row| row.eval).collect();
    let device = status.device.clone().unwrap_or_else(|| "no device".to_owned());
    let faults: Vec<String> = status.rungs.iter().filter_map(|rung| rung.fault.clone()).map(|(what, _)| what).collect();
    let faultless = status.restarts == 0 && faults.is_empty() && !broken(status);
    let readings = reader.samples(100_000)?;
    let mut checks = vec![
        item("started", !rows.is_empty(), format!("{} on {device}", counted(rows.len() as u64, "step"))),
        item("no fault", faultless, if faultless { "no worker died".to_owned() } else { faults.join("; ") }),
        vram_is_steady(&readings),
        loss_of_steps_falls(&rows),
        validation_improves(&evals),
        item(
            "full cycle done",
            status.attempts >= 2 && status.durable_step.is_some(),
            match status.durable_step {
                Some(step) => format!("loaded, trained, saved and resumed; step {} is durable", count(step)),
                None => "no checkpoint was saved".to_owned(),
            },
        ),
    ];
    if status.device.as_deref().is_some_and(|device| device.starts_with("cuda")) {
        checks.insert(3, gpu_is_loaded(&readings, &rows));
    }
    Ok(checks)
}

/// Compares the GPU's load while the run took steps with that of a healthy run. A lower one is a remark: a small model
/// cannot load a large card.
fn gpu_is_loaded(samples: &[ReadingRow], rows: &[StepRow]) -> Check {
    const WHAT: &str = "GPU utilisation";
    let trained = rows.first().zip(rows.last()).map_or(0..=0, |(first, last)| first.time_ms..=last.time_ms);
    let while_training = samples.iter().filter(|row| trained.contains(&row.time_ms));
    let mut shares: Vec<f64> =
        while_training.filter_map(|row| row.reading.gpu.as_ref().ok()?.utilisation.get()).collect();
    shares.sort_by(f64::total_cmp);
    let Some(median) = shares.get(shares.len() / 2).copied() else {
        return unknown(WHAT, "not measured: the GPU reports none, or the trial was too short");
    };
    let seen = format!("{} in the middle; a healthy run: 80–100 %", percent(median));
    if median >= HEALTHY_LOAD {
        return item(WHAT, true, seen);
    }
    let advice = "raise training.micro_batch, check training.loader and that fused kernels are on";
    remark(WHAT, format!("{seen}; {advice}"))
}

/// Reports whether a fault ended the run.
fn broken(status: &Status) -> bool {
    matches!(status.state, RunState::Failed | RunState::NeedsPerson | RunState::Interrupted)
}

fn vram_is_steady(samples: &[ReadingRow]) -> Check {
    const WHAT: &str = "VRAM stable";
    let used = |row: &ReadingRow| row.reading.gpu.as_ref().ok()?.vram_worker_bytes.get().filter(|bytes| *bytes > 0);
    let used: Vec<u64> = samples.iter().filter_map(used).collect();
    is_steady(WHAT, &used)
        .unwrap_or_else(|| unknown(WHAT, "not measured: the worker uses no GPU memory, or the GPU cannot be read"))
}

fn loss_of_steps_falls(rows: &[StepRow]) -> Check {
    let losses: Vec<(u64, f64)> = rows.iter().filter_map(|row| Some((row.step, row.loss?))).collect();
    loss_falls(&losses).unwrap_or_else(|| item("loss falls", false, format!("too few steps: {}", losses.len())))
}

fn validation_improves(evals: &[Eval]) -> Check {
    const WHAT: &str = "validation improves";
    evaluation_improves(WHAT, evals).unwrap_or_else(|| match evals.len() {
        0 | 1 => item(WHAT, false, "fewer than two evaluations: lower evaluation.every, or extend the trial"),
        _ => unknown(WHAT, "not measured: evaluations report no loss"),
    })
}
