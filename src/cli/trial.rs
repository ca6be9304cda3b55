//! `trial`: runs for a few minutes and prints a checklist. Halfway it saves and restarts from that
//! checkpoint, so that the whole cycle is exercised.

use super::bad_value::BadValue;
use super::devices::{Sharing, worker_device};
use super::occupied::{self, Answer};
use super::preflight::{Cleared, Preflight, Start};
use super::run::{Overrides, load_run_file};
use super::trust::{self, Trust};
use super::watching::Watched;
use super::{Failure, Outcome, attach, client, line};
use crate::format::{bytes, count, counted};
use crate::keeper::Launch;
use crate::protocol::control::{Request, RunState, SampleRow, Status, StepRow};
use crate::protocol::metrics;
use crate::protocol::worker::Eval;
use crate::store::command_line::record_command_line;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::trainer::program::settle_program;
use crate::untrusted::text;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum ratio of VRAM in the second half to the first.
const STEADY: f64 = 1.05;

/// Arguments of `trial`.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// A run file, or one that ships inside
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,
    /// Duration: 90s, 2m, 5min
    #[arg(long = "for", default_value = "5m", value_name = "TIME", value_parser = parse_duration)]
    time: Duration,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    trust: Trust,
}

pub fn parse_duration(text: &str) -> Result<Duration, BadValue> {
    let bad = || BadValue::Duration(text.to_owned());
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic() || c == ' ');
    let factor = match text[digits.len()..].trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let seconds = digits.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 1e6);
    Ok(Duration::from_secs_f64(seconds.ok_or_else(bad)? * factor))
}

pub fn trial(args: &TrialArgs, runs: &Path, trainer: &dyn crate::trainer::Trainer) -> Outcome {
    let Overrides { set, device } = &args.overrides;
    let run = load_run_file(args.config.as_deref(), set, device, trainer)?;
    let run = settle_program(run).map_err(|error| Failure::new(13, error.to_string()))?;
    trust::require_approval(&run, args.trust)?;
    let device = worker_device(&run, device)?;
    let start = Start { device: &device, runs, trainer, approved: true };
    let Cleared { run, devices, .. } = Preflight::of(Ok(run), start).clear()?;
    let claim = match occupied::settle_devices(&devices, &args.sharing, false)? {
        Answer::Start(claim) => Some(claim),
        Answer::Attach(other) => return attach::open(&other),
    };
    let dir = RunDir::create(runs, &run)?;
    line!("trial of {} for {} s in {}", run.name, args.time.as_secs(), text::path(dir.path()));
    record_command_line(&dir);
    let launch = Launch { device, claim, inject: Vec::new() };
    let status = follow_run(Watched::start(dir.clone(), &launch)?, args.time)?;
    let checks = checklist(&dir, &status)?;
    for check in &checks {
        let mark = match check.holds {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "–",
        };
        line!("{mark} {:<24} {}", check.what, check.seen);
    }
    let failed = checks.iter().filter(|check| check.holds == Some(false)).count();
    match failed {
        0 => {
            let unknown = checks.iter().filter(|check| check.holds.is_none()).count();
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

/// One item of the checklist.
struct Check {
    what: &'static str,
    /// Whether it passed; `None` if it could not be measured.
    holds: Option<bool>,
    seen: String,
}

fn item(what: &'static str, holds: bool, seen: impl Into<String>) -> Check {
    Check { what, holds: Some(holds), seen: seen.into() }
}

fn checklist(dir: &RunDir, status: &Status) -> Result<Vec<Check>, Failure> {
    let reader = Reader::open(dir)?;
    let mut rows = Vec::new();
    reader.each_step(|row| rows.push(row))?;
    let evals: Vec<Eval> = reader.evals()?.into_iter().map(|row| row.eval).collect();
    let device = status.device.clone().unwrap_or_else(|| "no device".to_owned());
    let faults: Vec<String> = status.rungs.iter().filter_map(|rung| rung.fault.clone()).map(|(what, _)| what).collect();
    let faultless = status.restarts == 0 && faults.is_empty() && !broken(status);
    Ok(vec![
        item("started", !rows.is_empty(), format!("{} on {device}", counted(rows.len() as u64, "step"))),
        item("no fault", faultless, if faultless { "no worker died".to_owned() } else { faults.join("; ") }),
        vram_is_steady(&reader.samples(100_000)?),
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
    ])
}

/// Reports whether a fault ended the run.
fn broken(status: &Status) -> bool {
    matches!(status.state, RunState::Failed | RunState::NeedsPerson)
}

fn vram_is_steady(samples: &[SampleRow]) -> Check {
    const WHAT: &str = "VRAM stable";
    let used = |row: &SampleRow| row.reading.gpu.as_ref().ok()?.vram_worker_bytes.get().filter(|bytes| *bytes > 0);
    let used: Vec<u64> = samples.iter().filter_map(used).collect();
    let (early, late) = used.split_at(used.len() / 2);
    let peak = |part: &[u64]| part.iter().max().copied().unwrap_or(0);
    if early.is_empty() {
        let seen = "not measured: the worker uses no GPU memory, or the GPU cannot be read".to_owned();
        return Check { what: WHAT, holds: None, seen };
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
        _ => Check { what: WHAT, holds: None, seen: "not measured: evaluations report no loss".to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_duration, validation_improves};
    use crate::protocol::metrics;
    use crate::protocol::worker::Eval;
    use std::time::Duration;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("90s", 90), ("2m", 120), ("5 min", 300), ("1h", 3600)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "2", "m", "0s", "-1m", "2 weeks"] {
            assert!(parse_duration(text).unwrap_err().to_string().contains("2m"), "{text}");
        }
    }

    #[test]
    fn two_evaluations_are_needed_to_tell() {
        let eval = |loss: f64, accuracy: Option<f64>| {
            let metrics = accuracy.map(|share| (metrics::ACCURACY.to_owned(), share)).into_iter().collect();
            Eval { step: 1, samples: 1, loss: Some(loss), metrics }
        };
        assert_eq!(validation_improves(&[eval(1.0, None)]).holds, Some(false));
        assert_eq!(validation_improves(&[eval(1.0, None), eval(2.0, None), eval(0.5, None)]).holds, Some(true));
        assert_eq!(validation_improves(&[eval(1.0, Some(0.5)), eval(0.5, Some(0.5))]).holds, Some(false));
        assert_eq!(validation_improves(&[eval(1.0, Some(0.5)), eval(1.0, Some(0.6))]).holds, Some(true));
    }
}
