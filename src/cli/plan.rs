//! `plan`: estimates the memory of each rung of a run file before anything is started; with `--measure`
//! next to the measured memory of a worker.

mod bound;
pub mod size;
mod table;

use super::isolated_worker::IsolatedWorker;
use super::trust::{self, Trust};
use super::{Failure, Format, Outcome, line, run, say};
use crate::config::run::Run;
use crate::config::shipped;
use crate::diagnose::readings::read_once;
use crate::format::counted;
use crate::protocol::control::Status;
use crate::protocol::device::DeviceChoice;
use crate::protocol::plan::{Card, Measured, PLAN_FILE, Plan, RungPlan, Site, Verdict};
use crate::protocol::worker::FailureClass;
use crate::store::permissions;
use crate::store::reader::{live_status, refuse_newer};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use clap::Args;
use std::path::{Path, PathBuf};

/// No device: skips the checks that need one.
const NOWHERE: &str = "nowhere";

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A run file, one that ships inside, or a run (then with the measured memory of its rungs)
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Plan for a GPU of this size, present or not, such as 16GiB
    #[arg(long, value_name = "SIZE")]
    gpu: Option<size::Size>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Train every rung for a few steps in a separate process and print its memory
    #[arg(long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "5")]
    measure: Option<u64>,
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
    if args.format == Format::Tmux {
        return Err(Failure::new(2, "plan has no tmux format; choose --format text or json"));
    }
    if args.gpu.is_some() && args.measure.is_some() {
        return Err(Failure::new(
            2,
            "--measure and --gpu exclude each other: --measure trains here, --gpu plans for a GPU that may be absent",
        ));
    }
    let subject = Subject::find(args, runs, trainer)?;
    if args.measure.is_some() {
        trust::require_approval(&subject.run, args.trust)?;
    }
    if let (true, Some(dir)) = (args.write, &subject.dir) {
        bound::keep_within(dir.clone(), unplanned(&subject.run, &args.overrides.device))?;
    }
    let place = Place::find(args, &subject.run, trainer, runs)?;
    let mut plan = lay_out(&subject.run, &place, trainer);
    if let (None, Some(why)) = (args.measure, plan.unknown_for_all()) {
        return Err(Failure::new(13, why));
    }
    subject.add_measured(&mut plan);
    if let Some(rung) = &args.rung {
        let wanted = subject.run.rung_named(rung).ok_or_else(|| {
            let names: Vec<&str> = subject.run.rungs.iter().map(|rung| rung.name.as_str()).collect();
            Failure::new(2, format!("unknown rung `{rung}`; choose from {}", names.join(", ")))
        })?;
        plan.rungs = vec![plan.rungs.swap_remove(wanted)];
    }
    let failures =
        args.measure.map_or_else(Vec::new, |steps| measure_rungs(&mut plan, &subject.run, args, &place, steps));
    plan.settle();
    for (rung, code) in &failures {
        if *code == FailureClass::DeviceOutOfMemory.exit_code() {
            plan.rungs[*rung].verdict = Verdict::DoesNotFit;
        }
    }
    if let (true, Some(dir)) = (args.write, &subject.dir) {
        dir.write_atomically(PLAN_FILE, &serde_json::to_vec_pretty(&plan)?)?;
        return Ok(0);
    }
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&plan)?),
        _ => table::lines(&plan, args.measure.is_some()).iter().for_each(|row| line!("{row}")),
    }
    Ok(failures.first().map_or(0, |(_, code)| *code))
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
        if let (false, Ok(dir)) = (is_file, RunDir::find(runs, Some(&name))) {
            refuse_newer(&dir)?;
            if args.measure.is_some() {
                permissions::check(&dir)?;
            }
            let (run, status) = (dir.run()?, live_status(&dir));
            if !args.write {
                say(&format!("plan of the run {}", dir.name()));
            }
            return Ok(Self { run, dir: Some(dir), status });
        }
        let device = if args.gpu.is_some() { NOWHERE } else { &args.overrides.device };
        let run =
            run::load_run_file(Some(&args.config), &args.overrides.set, device, trainer).map_err(|mut failure| {
                if args.gpu.is_none() && only_lacks_gpu(args, trainer) {
                    failure
                        .message
                        .push_str("\nto plan for a GPU that is not in this machine, give its memory: --gpu 16GiB");
                }
                failure
            })?;
        Ok(Self { run, dir: None, status: None })
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

/// The device to train on.
struct Place {
    device: String,
    card: Option<Card>,
    gpu: bool,
    /// The GPU's NVML index.
    index: Option<u32>,
}

impl Place {
    fn find(args: &PlanArgs, run: &Run, trainer: &dyn Trainer, runs: &Path) -> Result<Self, Failure> {
        if let Some(size) = &args.gpu {
            let name = "a GPU of any machine".to_owned();
            let card = Card { name: name.clone(), total_bytes: size.0, free_bytes: None };
            return Ok(Self { device: name, card: Some(card), gpu: true, index: None });
        }
        let prospect = trainer.look_ahead(run, &args.overrides.device).map_err(Failure::of)?;
        let device = prospect.device;
        let index = card_index(&device);
        let card = match index {
            Some(index) => card_of(runs, index),
            None => host(),
        };
        Ok(Self { device, card, gpu: index.is_some(), index })
    }
}

/// Returns the GPU index in a device's name; none for the CPU.
pub fn card_index(device: &str) -> Option<u32> {
    DeviceChoice::from_display_name(device)?.gpu_index()
}

fn card_of(runs: &Path, index: u32) -> Option<Card> {
    let place = if runs.is_dir() { runs } else { Path::new(".") };
    let gpu = read_once(place, index).ok()?.gpu.ok()?;
    let (total_bytes, used) = (gpu.vram_total_bytes.get()?, gpu.vram_used_bytes.get());
    Some(Card { name: gpu.name, total_bytes, free_bytes: used.map(|used| total_bytes.saturating_sub(used)) })
}

fn host() -> Option<Card> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let (total_bytes, used) = crate::probe::host::parse_ram(&text)?;
    Some(Card { name: "host memory".to_owned(), total_bytes, free_bytes: Some(total_bytes.saturating_sub(used)) })
}

fn lay_out(run: &Run, place: &Place, trainer: &dyn Trainer) -> Plan {
    let site = Site { gpu: place.gpu, room: place.card.as_ref().map(Card::room) };
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
        micro_batch: rung.preset.training.micro_batch,
        estimate: None,
        unknown: None,
        total_bytes: None,
        verdict: Verdict::Unknown,
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

/// Measures each rung; returns the positions and exit codes of those that failed. Lower rungs exist
/// because upper ones may fail, so they are measured regardless.
fn measure_rungs(plan: &mut Plan, run: &Run, args: &PlanArgs, place: &Place, steps: u64) -> Vec<(usize, u8)> {
    let (count, mut failures) = (plan.rungs.len(), Vec::new());
    let mut workers = IsolatedWorker::new(&args.overrides.device, place.index, steps);
    for (number, rung) in plan.rungs.iter_mut().enumerate() {
        say(&format!("rung {} ({} of {count}): {}", rung.name, number + 1, counted(steps, "step")));
        let index = run.rung_named(&rung.name).unwrap_or(number);
        match workers.measure(run, index) {
            Ok(measured) => rung.measured = Some(measured),
            Err(failure) => {
                say(&failure.message);
                failures.push((number, failure.code));
                (rung.measured, rung.failed) = (None, Some(failure.message));
            }
        }
    }
    failures
}
