//! `compare-knob`: trains one knob at two values for some steps, each in a separate worker, and prints
//! their costs side by side.

use super::check::{align, leaves};
use super::devices::devices_of_start;
use super::measure::{self, Limits, Measurement, Meter, Protocol};
use super::trust::{self, Trust};
use super::{Failure, Format, Outcome, line, occupied, run, say};
use crate::config::run::Run;
use crate::format::{bytes, counted};
use crate::protocol::plan::Measured;
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `compare-knob`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A run file, or one that ships inside
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The knob, such as training.gradient_checkpointing
    #[arg(value_name = "KNOB")]
    knob: String,
    /// Its value in the first variant
    #[arg(value_name = "VALUE")]
    first: String,
    /// Its value in the second variant
    #[arg(value_name = "VALUE")]
    second: String,
    /// Number of steps for each variant
    #[arg(long, default_value_t = 20, value_name = "N")]
    steps: u64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    overrides: run::Overrides,
    #[command(flatten)]
    trust: Trust,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct Comparison<'a> {
    version: u32,
    run: &'a str,
    device: &'a str,
    knob: &'a str,
    steps: u64,
    /// The step of the losses: the last one that both variants report.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_step: Option<u64>,
    variants: [Variant<'a>; 2],
}

#[derive(Debug, Serialize)]
struct Variant<'a> {
    value: &'a str,
    #[serde(flatten)]
    measured: Measured,
}

pub fn compare(args: &CompareArgs, trainer: &dyn Trainer) -> Outcome {
    let base = run::load_run_file(Some(&args.config), &args.overrides.set, &args.overrides.device, trainer)?;
    let base = settle_program(base).map_err(Failure::config)?;
    let runs =
        [load_with_value(args, &args.first, &base, trainer)?, load_with_value(args, &args.second, &base, trainer)?];
    let protocol = Protocol { steps: args.steps.max(1), limit: args.limits.limit, budget: None };
    if let Some(preview) = measure::preview(&runs[0], &protocol) {
        say(&preview);
    }
    approve(&base, &runs, args.trust)?;
    let mut device = String::new();
    for run in &runs {
        let prospect = trainer.look_ahead(run, &args.overrides.device).map_err(Failure::of)?;
        device = prospect.device;
    }
    let devices = devices_of_start(&runs[0], &args.overrides.device, &device);
    occupied::refuse_measurement(&devices, args.limits.another)?;
    let steps = protocol.steps;
    let mut meter = Meter::new(&runs[0], &args.overrides.device, &device, &devices, protocol)?;
    let mut measured = |run: &Run, value: &str| {
        say(&format!("{} = {value}: {}", args.knob, counted(steps, "step")));
        meter.measure(run, 0)
    };
    let [mut first, mut second] = [measured(&runs[0], &args.first)?, measured(&runs[1], &args.second)?];
    let loss_step = align_losses(&mut first, &mut second);
    let variants = [(&args.first, first), (&args.second, second)]
        .map(|(value, measurement)| Variant { value, measured: measurement.figures });
    let (run, knob) = (&runs[0].name, &args.knob);
    let comparison = Comparison { version: 1, run, device: &device, knob, steps, loss_step, variants };
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&comparison)?),
        Format::Text => format_table(&comparison).iter().for_each(|row| line!("{row}")),
    }
    Ok(0)
}

fn load_with_value(args: &CompareArgs, value: &str, base: &Run, trainer: &dyn Trainer) -> Result<Run, Failure> {
    let run = if base.command.is_some() {
        // The value may be that of a rung below, which a run file may not repeat.
        measure::with_knob(&measure::only_rung(base, 0), &args.knob, value)
    } else {
        let overrides: Vec<(String, String)> =
            args.overrides.set.iter().cloned().chain([(args.knob.clone(), value.to_owned())]).collect();
        run::load_run_file(Some(&args.config), &overrides, &args.overrides.device, trainer)
    };
    run.map_err(|mut failure| {
        let mut knobs = Vec::new();
        leaves(String::new(), &base.preset_tree(0), &mut knobs);
        if !knobs.iter().any(|(path, _)| *path == args.knob) {
            let names: Vec<&str> = knobs.iter().map(|(path, _)| path.as_str()).collect();
            let _ = write!(failure.message, "\nknobs of this run: {}", names.join(", "));
        }
        failure
    })
}

/// Asks for approval of everything that is started. Both variants of a command are approved with its run file, as if
/// they were rungs of it.
fn approve(base: &Run, variants: &[Run; 2], trust: Trust) -> Result<(), Failure> {
    if base.command.is_none() {
        return variants.iter().try_for_each(|run| trust::require_approval(run, trust));
    }
    let rungs = base.rungs.iter().chain(variants.iter().flat_map(|run| &run.rungs)).cloned().collect();
    trust::require_approval(&Run { rungs, ..base.clone() }, trust)
}

/// Takes the losses at the last step that both report, and returns that step. A loss of another step would compare
/// how far they came.
fn align_losses(first: &mut Measurement, second: &mut Measurement) -> Option<u64> {
    let common = first.losses.keys().rev().find(|step| second.losses.contains_key(step)).copied();
    for measurement in [first, second] {
        measurement.figures.loss = common.and_then(|step| measurement.losses.get(&step).copied());
    }
    common
}

fn format_table(comparison: &Comparison<'_>) -> Vec<String> {
    let [first, second] = &comparison.variants;
    let row = |name: &str, of: &dyn Fn(&Measured) -> Option<f64>, show: &dyn Fn(f64) -> String| {
        let (left, right) = (of(&first.measured), of(&second.measured));
        let cell = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), show);
        let change = left.zip(right).filter(|(left, _)| *left != 0.0);
        let change = change.map_or_else(String::new, |(left, right)| format!("{:+.1} %", (right / left - 1.0) * 100.0));
        vec![name.to_owned(), cell(left), cell(right), change]
    };
    let (size, plain) = (|value: f64| bytes(value as u64), |value: f64| format!("{value:.4}"));
    let loss_step = comparison.loss_step.unwrap_or(comparison.steps);
    let rows = [
        vec![comparison.knob.to_owned(), first.value.to_owned(), second.value.to_owned(), String::new()],
        row("peak memory", &|seen| seen.peak_bytes.map(|peak| peak as f64), &size),
        row("median step", &|seen| seen.step_ms, &|ms| format!("{ms:.1} ms")),
        row("steps/s", &|seen| seen.steps_per_s, &|rate| format!("{rate:.3}")),
        row("units/s", &|seen| seen.units_per_s, &|rate| format!("{rate:.0}")),
        row("first step after", &|seen| seen.first_step_s, &|took| format!("{took:.2} s")),
        row(&format!("loss after {}", counted(loss_step, "step")), &|seen| seen.loss, &plain),
    ];
    let mut lines = align(&rows);
    lines.push(String::new());
    lines.push(format!(
        "{} on {}: one after the other, each in its own process. Memory excludes the baseline before the model.",
        comparison.run, comparison.device
    ));
    lines
}
