//! A new run that begins with a checkpoint of another, or with its weights alone.

use super::{ResumeArgs, stored_launch};
use crate::cli::devices::{devices_of_start, worker_device};
use crate::cli::environment::NextStart;
use crate::cli::first_checkpoint::copy_container;
use crate::cli::occupied::{self, Answer};
use crate::cli::preflight::check_ranks;
use crate::cli::run::{has_room, look_on, start_keeper};
use crate::cli::{Failure, Outcome, attach, checkpoints, trust};
use crate::config::command::CommandSpec;
use crate::config::run::{Run, Source};
use crate::format::{count, counted};
use crate::keeper::Launch;
use crate::keeper::offline::OfflineKeeper;
use crate::store::checkpoint::{self, Contents, Loaded, MODEL, OPTIMIZER, STATE, STEPS, state::TrainState};
use crate::store::command_line::{record_command_line, with_option};
use crate::store::continuation::command_from_checkpoint;
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::text;
use std::path::Path;

/// The part of an old run that a new one begins with.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// The weights alone.
    Weights,
    /// A whole checkpoint: the new run continues where the old one was.
    Checkpoint,
}

/// Starts a new run whose first checkpoint comes from an old one.
pub fn begin_from(base: &RunDir, origin: Origin, args: &ResumeArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let base_run = base.run()?;
    if let (Origin::Weights, Some(spec)) = (origin, &base_run.command) {
        return Err(refuse_weights(base, &base_run, spec, args));
    }
    let loaded = checkpoints::load_chosen(base, args.from)?;
    let run = match origin {
        Origin::Weights => altered_run(base_run, args, trainer)?,
        Origin::Checkpoint => base_run,
    };
    trust::require_approval(&run, args.trust)?;
    let device = args.device.clone().or_else(|| Some(stored_launch(base)?.device));
    let device = worker_device(&run, device.as_deref().unwrap_or("auto"))?;
    let prospect = trainer.look_ahead(&run, &device).map_err(Failure::of)?;
    has_room(runs, &run, prospect.parameters)?;
    let devices = devices_of_start(&run, &device, &prospect.device);
    check_ranks(&run, &devices, 1)?;
    let claim = match occupied::settle_devices(&devices, &args.sharing, args.headless, (runs, None))? {
        Answer::Start(claim) => claim,
        Answer::Attach(other) => return attach::open(&other),
    };
    let launch = Launch { device, claim: Some(claim), inject: Vec::new() };
    let dir = RunDir::create(runs, &run)?;
    record_command_line(&dir);
    match origin {
        Origin::Weights => write_first(&dir, &run, &loaded)?,
        Origin::Checkpoint => copy_container(base, &dir, &loaded, None)?,
    }
    OfflineKeeper::step_in(&dir)?.begin_from(base, describe_origin(origin, base, loaded.manifest.step, args));
    start_keeper(&dir, Some(&launch), NextStart::first(&dir))?;
    look_on(&dir, args.headless, 0)
}

/// Refuses to start a command from weights alone: only its script can load them. Names the command that begins with the
/// whole checkpoint, at the rate and length that were asked for.
fn refuse_weights(base: &RunDir, run: &Run, spec: &CommandSpec, args: &ResumeArgs) -> Failure {
    let name = base.name();
    let rate = args.lr_factor.map(|factor| ("optimizer.lr", (run.rungs[0].preset.optimizer.lr * factor).to_string()));
    let length = args.epochs.map(|epochs| ("training.epochs", epochs.to_string()));
    let asked: Vec<(&str, String)> = [rate, length].into_iter().flatten().collect();
    let (set, own): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(knob, _)| run.unreached_knobs([*knob].into_iter()).is_empty());
    let whole = command_from_checkpoint(base, Some(spec), args.from).map_or_else(String::new, |line| {
        let line = set.iter().fold(line, |line, (knob, value)| with_option(&line, &format!("--set {knob}={value}")));
        format!("; `{line}` starts a new run from its checkpoint, with the optimizer")
    });
    let own = own
        .iter()
        .fold(String::new(), |text, (knob, _)| format!("{text}; no argument takes {knob}: change it in the script"));
    Failure::new(2, format!("--as-base: {name} is a command, and only its script can load weights alone{whole}{own}"))
}

/// Returns the journal line of a run that begins with a part of another.
fn describe_origin(origin: Origin, base: &RunDir, step: u64, args: &ResumeArgs) -> String {
    let (step, base) = (count(step), base.name());
    let Origin::Weights = origin else {
        return format!("branched from step {step} of {base}: weights, optimizer and clock");
    };
    let mut text = format!("starts from the weights of step {step} of {base}: fresh optimizer, clock at 0");
    text.extend(args.lr_factor.map(|factor| format!(", learning rate × {factor}")));
    text.extend(args.epochs.map(|epochs| format!(", {}", counted(epochs, "epoch"))));
    text
}

/// Returns the old run's knobs with another rate and length, validated like any run file.
fn altered_run(mut run: Run, args: &ResumeArgs, trainer: &dyn Trainer) -> Result<Run, Failure> {
    for rung in &mut run.rungs {
        rung.preset.optimizer.lr *= args.lr_factor.unwrap_or(1.0);
        if let Some(epochs) = args.epochs {
            (rung.preset.training.epochs, rung.preset.training.steps) = (Some(epochs), None);
        }
    }
    let text = run.to_yaml();
    let source = Source { file: "run.yaml", text: &text, base: Path::new("/"), overrides: &[] };
    Run::read(&source, trainer.sections()).map_err(|refusal| Failure::config(format!("invalid run:\n{refusal}")))
}

/// Writes the checkpoint of step 0: a restart before the first save continues from it, never from scratch.
fn write_first(dir: &RunDir, run: &Run, base: &Loaded) -> Result<(), Failure> {
    let unusable = |what: &str| Failure::checkpoint(format!("{} has no {what}", text::path(&base.path)));
    let weights = base.files.get(MODEL).ok_or_else(|| unusable(MODEL))?;
    let old: TrainState = TrainState::in_files(&base.files).ok_or_else(|| unusable(STATE))?;
    let seed = run.rungs[0].preset.training.seed;
    let TrainState { rung, rung_name, classes, .. } = old;
    let fresh = TrainState { seed, classes, rung, rung_name, ..TrainState::default() };
    let state = serde_json::to_vec_pretty(&fresh)?;
    // An empty safetensors file: a header of two characters, padded to eight.
    let no_moments = b"\x08\0\0\0\0\0\0\0{}      ";
    let files: [(&str, &[u8]); 4] = [(MODEL, weights), (OPTIMIZER, no_moments), (STATE, &state), (STEPS, b"")];
    let contents = Contents { step: 0, samples: 0, build: env!("CARGO_PKG_VERSION"), files: &files };
    checkpoint::write(dir.path(), &contents)?;
    Ok(())
}
