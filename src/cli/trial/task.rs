//! The trial of a built-in task: it runs for a few minutes, and halfway saves and restarts from that checkpoint, so that
//! the whole cycle is exercised.

use super::checklist::{self, Check, item, remark, unknown};
use crate::cli::watching::Watched;
use crate::cli::{Failure, Outcome, client, line};
use crate::config::run::Run;
use crate::format::{bytes, count, counted, percent};
use crate::keeper::Launch;
use crate::protocol::control::{Request, RunState, SampleRow, Status, StepRow};
use crate::protocol::metrics;
use crate::protocol::worker::Eval;
use crate::store::command_line::record_command_line;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::path::Path;
use std::time::{Duration, Instant};

/// Share of the time in which the GPU of a healthy run works.
const HEALTHY_LOAD: f64 = 0.8;

/// Maximum ratio of VRAM in the second half to the first.
const STEADY: f64 = 1.05;

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
        loss_falls(&rows),
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
fn gpu_is_loaded(samples: &[SampleRow], rows: &[StepRow]) -> Check {
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

fn vram_is_steady(samples: &[SampleRow]) -> Check {
    const WHAT: &str = "VRAM stable";
    let used = |row: &SampleRow| row.reading.gpu.as_ref().ok()?.vram_worker_bytes.get().filter(|bytes| *bytes > 0);
    let used: Vec<u64> = samples.iter().filter_map(used).collect();
    let (early, late) = used.split_at(used.len() / 2);
    let peak = |part: &[u64]| part.iter().max().copied().unwrap_or(0);
    if early.is_empty() {
        return unknown(WHAT, "not measured: the worker uses no GPU memory, or the GPU cannot be read");
    }
    let seen = format!("{} at most, then {}", bytes(peak(early)), bytes(peak(late)));
    item(WHAT, peak(late) as f64 <= peak(early) as f64 * STEADY, seen)
}

fn loss_falls(rows: &[StepRow]) -> Check {
    const WHAT: &str = "loss falls";
    let losses: Vec<f64> = rows.iter().filter_map(|row| row.loss).collect();
    let part = (losses.len() / 5).max(1);
    if losses.len() < 10 {
        return item(WHAT, false, format!("too few steps: {}", losses.len()));
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..part]), mean(&losses[losses.len() - part..]));
    item(WHAT, last < first, format!("{first:.4} → {last:.4}"))
}

fn validation_improves(evals: &[Eval]) -> Check {
    const WHAT: &str = "validation improves";
    let [first, .., last] = evals else {
        let seen = "fewer than two evaluations: lower evaluation.every, or extend the trial";
        return item(WHAT, false, seen);
    };
    if let (Some(before), Some(after)) = (first.value(metrics::ACCURACY), last.value(metrics::ACCURACY)) {
        let full = after >= 1.0;
        return item(WHAT, after > before || full, format!("{:.1} % → {:.1} % right", before * 100.0, after * 100.0));
    }
    match (first.loss, last.loss) {
        (Some(before), Some(after)) => item(WHAT, after < before, format!("loss {before:.4} → {after:.4}")),
        _ => unknown(WHAT, "not measured: evaluations report no loss"),
    }
}

#[cfg(test)]
mod tests {
    use super::validation_improves;
    use crate::protocol::metrics;
    use crate::protocol::worker::Eval;

    #[test]
    fn two_evaluations_are_needed_to_tell() {
        let eval = |loss: f64, accuracy: Option<f64>| {
            let metrics = accuracy.map(|share| (metrics::ACCURACY.to_owned(), share)).into_iter().collect();
            Eval { step: 1, samples: 1, loss: Some(loss), metrics, ..Eval::default() }
        };
        assert_eq!(validation_improves(&[eval(1.0, None)]).holds, Some(false));
        assert_eq!(validation_improves(&[eval(1.0, None), eval(2.0, None), eval(0.5, None)]).holds, Some(true));
        assert_eq!(validation_improves(&[eval(1.0, Some(0.5)), eval(0.5, Some(0.5))]).holds, Some(false));
        assert_eq!(validation_improves(&[eval(1.0, Some(0.5)), eval(1.0, Some(0.6))]).holds, Some(true));
    }
}
