//! `plan`: estimates the memory of each rung of a run file before anything is started; with `--measure`
//! next to the measured memory of a worker.

mod bound;
mod fit;
mod place;
pub mod size;
mod table;

use super::measure::{self, Limits, Meter, Protocol, Unmeasured};
use super::trust::{self, Trust};
use super::{Failure, Format, Outcome, line, occupied, run, say};
use crate::config::knobs::{MICRO_BATCH, Preset};
use crate::config::run::Run;
use crate::format::counted;
use crate::protocol::control::Status;
use crate::protocol::plan::{Card, Fit, Measured, PLAN_FILE, Plan, RungPlan, Site};
use crate::shipped;
use crate::store::permissions;
use crate::store::reader::{live_status, refuse_newer};
use crate::store::run_dir::{RunDir, RunDirError};
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use clap::Args;
use place::TrainingDevice;
pub use place::card_index;
use std::path::{Path, PathBuf};

/// No device: skips the checks that need one.
const NOWHERE: &str = "nowhere";
/// Steps of a measurement, unless `--measure` says otherwise.
const STEPS: u64 = 5;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A run file, one that ships inside, or a run (then with the measured memory of its rungs)
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Plan for a GPU of this size, present or not, such as 16GiB; with --fit, stay within this size
    #[arg(long, value_name = "SIZE")]
    gpu: Option<size::Size>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Train every rung for a few steps in a separate process and print its memory
    #[arg(long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "5")]
    measure: Option<u64>,
    /// Find the largest micro-batch that fits, by training at several; --gpu SIZE makes the budget smaller than what is free
    #[arg(long)]
    fit: bool,
    /// With --fit: the knob to enlarge instead
    #[arg(long, value_name = "PATH", default_value = MICRO_BATCH, requires = "fit")]
    knob: String,
    #[command(flatten)]
    limits: Limits,
    /// Only this rung, by name or number
    #[arg(long, value_name = "RUNG")]
    rung: Option<String>,
    #[command(flatten)]
    overrides: run::Overrides,
    #[command(flatten)]
    trust: Trust,
    /// Write plan.json into the run directory instead of printing.
    #[arg(long, hide = true)]
    write: bool,
}

pub fn plan(args: &PlanArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    if args.imagined_gpu().is_some() && args.measure.is_some() {
        return Err(Failure::new(
            2,
            "--measure and --gpu exclude each other: --measure trains here, --gpu plans for a GPU that may be absent",
        ));
    }
    let mut subject = Subject::find(args, runs, trainer)?;
    if args.trains() {
        subject.prepare_to_train(args)?;
    }
    if let (true, Some(dir)) = (args.write, &subject.dir) {
        bound::keep_within(dir.clone(), unplanned(&subject.run, &args.overrides.device))?;
    }
    let place = TrainingDevice::find(args, &subject.run, trainer, runs)?;
    if args.trains() {
        occupied::refuse_measurement(&place.devices, args.limits.another)?;
    }
    if args.fit {
        return fit::fit(args, &subject.run, &place, trainer);
    }
    let mut plan = lay_out(&subject.run, &place, trainer);
    subject.add_measured(&mut plan);
    // The measurements of a run are shown even where nothing can be planned.
    let has_run = !args.write && plan.rungs.iter().any(|rung| rung.measured.is_some());
    if let (None, false, Some(why)) = (args.measure, has_run, plan.unknown_for_all()) {
        return Err(Failure::config(why));
    }
    if let Some(rung) = &args.rung {
        let wanted = rung_of(&subject.run, rung)?;
        plan.rungs = vec![plan.rungs.swap_remove(wanted)];
    }
    let failures = match args.measure {
        Some(_) => measure_rungs(&mut plan, &subject.run, args, &place)?,
        None => Vec::new(),
    };
    plan.settle();
    for failed in failures.iter().filter(|failed| failed.of_memory) {
        plan.rungs[failed.rung].verdict = Fit::DoesNotFit;
    }
    if let (true, Some(dir)) = (args.write, &subject.dir) {
        dir.write_atomically(PLAN_FILE, &serde_json::to_vec_pretty(&plan)?)?;
        return Ok(0);
    }
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&plan)?),
        Format::Text => table::lines(&plan, args.measure.is_some()).iter().for_each(|row| line!("{row}")),
    }
    Ok(failures.first().map_or(0, |failed| failed.code))
}

impl PlanArgs {
    /// Reports whether anything is trained.
    fn trains(&self) -> bool {
        self.measure.is_some() || self.fit
    }

    /// Returns the GPU to plan for without training on it.
    fn imagined_gpu(&self) -> Option<size::Size> {
        self.gpu.filter(|_| !self.fit)
    }

    /// Returns how each measurement is made.
    fn protocol(&self) -> Protocol {
        Protocol { steps: self.measure.unwrap_or(STEPS).max(1), limit: self.limits.limit, budget: None }
    }
}

/// Returns the rung of this name or number.
fn rung_of(run: &Run, name: &str) -> Result<usize, Failure> {
    run.rung_named(name).ok_or_else(|| {
        let names: Vec<&str> = run.rungs.iter().map(|rung| rung.name.as_str()).collect();
        Failure::new(2, format!("unknown rung `{name}`; choose from {}", names.join(", ")))
    })
}

/// The run to plan.
struct Subject {
    run: Run,
    dir: Option<RunDir>,
    status: Option<Status>,
}

impl Subject {
    fn find(args: &PlanArgs, runs: &Path, trainer: &dyn Trainer) -> Result<Self, Failure> {
        let is_file = args.config.is_file() || shipped::run_file(&args.config).is_some();
        let name = args.config.to_string_lossy();
        let found = RunDir::find(runs, Some(&name));
        let meant = found.as_ref().err().map(RunDirError::suggestion).unwrap_or_default();
        if let (false, Ok(dir)) = (is_file, found) {
            refuse_newer(&dir)?;
            if args.trains() {
                permissions::check(&dir)?;
            }
            let (run, status) = (dir.run()?, live_status(&dir));
            if !args.write {
                say(&format!("plan of the run {}", dir.name()));
            }
            return Ok(Self { run, dir: Some(dir), status });
        }
        let device = if args.imagined_gpu().is_some() { NOWHERE } else { &args.overrides.device };
        let run =
            run::load_run_file(Some(&args.config), &args.overrides.set, device, trainer).map_err(|mut failure| {
                if !args.config.exists() {
                    failure.message.push_str(&meant);
                }
                if args.gpu.is_none() && only_lacks_gpu(args, trainer) {
                    failure
                        .message
                        .push_str("\nto plan for a GPU that is not in this machine, give its memory: --gpu 16GiB");
                }
                failure
            })?;
        Ok(Self { run, dir: None, status: None })
    }

    /// Checks that everything may be started, after showing what it is.
    fn prepare_to_train(&mut self, args: &PlanArgs) -> Result<(), Failure> {
        self.run = settle_program(self.run.clone()).map_err(Failure::config)?;
        let alive = self.status.as_ref().filter(|status| !status.state.is_over());
        if let (Some(status), Some(_), Some(dir)) = (alive, &self.run.command, &self.dir) {
            let message = format!(
                "{} is alive, and a second start of its command could write over its files; {} first",
                dir.name(),
                occupied::way_to_end(dir, status)
            );
            return Err(Failure::new(2, message));
        }
        if let Some(preview) = measure::preview(&self.run, &args.protocol()) {
            say(&preview);
        }
        trust::require_approval(&self.run, args.trust)
    }

    /// Adds the measured memory of a run's rungs.
    fn add_measured(&self, plan: &mut Plan) {
        let Some(status) = &self.status else { return };
        let gpu = plan.gpu;
        for (rung, record) in plan.rungs.iter_mut().zip(&status.rungs) {
            rung.measured = Measured::in_a_run(rung.estimate.as_ref(), record.vram_bytes, record.ram_bytes, gpu)
                .map(|seen| Measured { steps_per_s: record.steps_per_s, steps: record.steps, ..seen });
        }
    }
}

/// Reports whether a run file is valid, but has a precision that the device cannot train.
fn only_lacks_gpu(args: &PlanArgs, trainer: &dyn Trainer) -> bool {
    let misfits = |run: Run| {
        let mut precisions = run.rungs.iter().map(|rung| rung.preset.training.precision);
        precisions.any(|precision| trainer.precision_misfit(precision, &args.overrides.device).is_some())
    };
    run::load_run_file(Some(&args.config), &args.overrides.set, NOWHERE, trainer).is_ok_and(misfits)
}

fn lay_out(run: &Run, place: &TrainingDevice, trainer: &dyn Trainer) -> Plan {
    let (room, memory) = (place.card.as_ref().map(Card::room), place.card.as_ref().map(|card| card.total_bytes));
    let site = Site { gpu: place.gpu, room, memory };
    let (device, gpu, card) = (place.device.clone(), place.gpu, place.card.clone());
    let mut plan = Plan { gpu, card, ..unplanned(run, &device) };
    for (rung, outcome) in plan.rungs.iter_mut().zip(trainer.estimate_memory(run, site)) {
        match outcome {
            Ok(estimate) => rung.estimate = Some(estimate),
            Err(why) => rung.unknown = Some(why.to_string()),
        }
    }
    plan
}

/// Returns the plan of a run before anything is known.
fn unplanned(run: &Run, device: &str) -> Plan {
    let rungs = run.rungs.iter().map(|rung| RungPlan {
        name: rung.name.clone(),
        micro_batch: micro_batch(&rung.preset),
        estimate: None,
        unknown: None,
        total_bytes: None,
        verdict: Fit::Unknown,
        measured: None,
        failed: None,
    });
    Plan {
        version: 1,
        run: run.name.clone(),
        task: run.task.clone(),
        device: device.to_owned(),
        gpu: card_index(device).is_some(),
        card: None,
        rungs: rungs.collect(),
    }
}

/// Returns a rung's micro-batch; 0 if it is a command whose run file does not say.
fn micro_batch(preset: &Preset) -> u64 {
    let written = preset.written.as_ref().is_none_or(|_| preset.tree().pointer("/training/micro_batch").is_some());
    if written { preset.training.micro_batch } else { 0 }
}

/// A rung that could not be measured.
struct FailedRung {
    rung: usize,
    code: u8,
    of_memory: bool,
}

/// Measures each rung; returns those that failed. Lower rungs exist because upper ones may fail, so they are
/// measured regardless.
fn measure_rungs(
    plan: &mut Plan,
    run: &Run,
    args: &PlanArgs,
    place: &TrainingDevice,
) -> Result<Vec<FailedRung>, Failure> {
    let (count, mut failures, protocol) = (plan.rungs.len(), Vec::new(), args.protocol());
    let mut meter = Meter::new(run, &args.overrides.device, &place.device, &place.devices, protocol)?;
    for (number, rung) in plan.rungs.iter_mut().enumerate() {
        say(&format!("rung {} ({} of {count}): {}", rung.name, number + 1, counted(protocol.steps, "step")));
        let index = run.rung_named(&rung.name).unwrap_or(number);
        match meter.measure(run, index) {
            Ok(measurement) => rung.measured = Some(measurement.figures),
            Err(Unmeasured::Interrupted(failure)) => return Err(failure),
            Err(why) => {
                let of_memory = matches!(why, Unmeasured::OutOfMemory(_));
                let failure = Failure::from(why);
                say(&failure.message);
                failures.push(FailedRung { rung: number, code: failure.code, of_memory });
                (rung.measured, rung.failed) = (None, Some(failure.message));
            }
        }
    }
    Ok(failures)
}
