//! `trial`: tries a run before it is started for good. A built-in task trains for a few minutes, and so does a command that
//! nothing resumes; any other command is killed and resumed beside an unbroken training.

mod batch_size;
mod checklist;
mod command;
mod compare;
mod figures;
mod leg;
mod missing;
mod outputs;
mod task;
mod trace;
mod training;
mod verdict;

use super::bad_value::BadValue;
use super::devices::{Sharing, worker_device};
use super::occupied::{self, Answer};
use super::preflight::{Cleared, Preflight, Start};
use super::run::{Overrides, has_terminal, load_run_file};
use super::trust::{self, Trust};
use super::{Failure, Outcome, attach};
use crate::keeper::Launch;
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a training is tried.
const TIME: Duration = Duration::from_mins(5);
/// Steps of a command before the kill and after the resume.
const STEPS: u64 = 10;

/// Arguments of `trial`.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// A run file, or one that ships inside
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,
    /// Duration: 90s, 2m, 5min; where a resume is tried, a limit [default: 5m, or no limit]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Of a command: steps before it is killed, and again after it has resumed [default: 10]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(3..=100_000))]
    steps: Option<u64>,
    /// Of a command: let the script write where it always writes, although it may replace its own earlier outputs
    #[arg(long)]
    in_place: bool,
    /// Of a command: keep the run directories of the trial
    #[arg(long)]
    keep: bool,
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

pub fn trial(args: &TrialArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let Overrides { set, device } = &args.overrides;
    let run = load_run_file(args.config.as_deref(), set, device, trainer)?;
    let run = settle_program(run).map_err(Failure::config)?;
    if run.command.is_none() && (args.steps.is_some() || args.keep || args.in_place) {
        return Err(Failure::new(
            2,
            "--steps, --keep and --in-place are for commands; a task is tried --for some time",
        ));
    }
    let can_wait = run.command.is_none();
    if args.sharing.wait_for_card && !can_wait {
        return Err(Failure::new(
            2,
            "the trial of a command cannot wait for a device; start it when the device is free",
        ));
    }
    trust::require_approval(&run, args.trust)?;
    outputs::require_permission(&run, args.in_place)?;
    let device = worker_device(&run, device)?;
    let shares = args.sharing.another || args.sharing.wait_for_card || (can_wait && has_terminal());
    let start = Start { device: &device, runs, trainer, approved: true, nodes: 1, shares, can_wait };
    let Cleared { run, devices, .. } = Preflight::of(Ok(run), start).clear()?;
    if let Some(spec) = &run.command {
        occupied::refuse_measurement(&devices, args.sharing.another)?;
        let steps = args.steps.unwrap_or(STEPS);
        let options = command::Options { steps, keep: args.keep, limit: args.time, device: &device };
        if command::may_resume(spec) {
            return command::try_command(&run, &options, runs);
        }
        return training::try_training(&run, &options, &devices, runs);
    }
    let claim = match occupied::settle_devices(&devices, &args.sharing, false, (runs, None))? {
        Answer::Start(claim) => Some(claim),
        Answer::Attach(other) => return attach::open(&other),
    };
    let launch = Launch { device, claim, inject: Vec::new() };
    task::try_task(&run, &launch, runs, args.time.unwrap_or(TIME))
}

#[cfg(test)]
mod tests {
    use super::parse_duration;
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
}
