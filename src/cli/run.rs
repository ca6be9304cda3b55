//! `run`: checks the start, starts the keeper, follows the run.

mod load;
mod queue;
mod ready;

use super::bad_value::parse_override;
use super::devices::Sharing;
use super::environment::NextStart;
use super::headless::JobSignals;
use super::job::{self, JobName};
use super::trust::{self, Trust};
use super::typed_run::{sections_of_profile, typed_run};
use super::{Failure, Faults, Outcome, attach, client, climb_plan, headless, say};
use crate::config::run::Run;
use crate::config::typed::suggest;
use crate::format::bytes;
use crate::keeper::{Launch, detach};
use crate::store::checkpoint;
use crate::store::disk;
use crate::store::run_dir::RunDir;
use crate::store::runs_directories::RunsDirectories;
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use clap::Args;
use load::{is_folder_of_run_files, refuse_run};
pub use load::{load_run_file, note_same_name};
pub use queue::wait_for_claim;
use ready::Checked;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A run file, or one that ships inside: digits (the default), pictures, text, lora, finetune,
    /// stable, sizes, cifar10, search, command. Several of them, or a folder of run files, are queued: one trains after the
    /// other
    #[arg(value_name = "CONFIG")]
    pub config: Vec<PathBuf>,
    #[command(flatten)]
    pub options: RunOptions,
    /// Without a run file: a program and its arguments, such as `run -- python train.py --lr 1e-3`
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "config")]
    command: Vec<String>,
}

/// Options applied on top of a run file.
#[derive(Debug, Clone, Args)]
pub struct Overrides {
    /// Override a knob, such as `--set training.micro_batch=4`
    #[arg(long, value_parser = parse_override, value_name = "PATH=VALUE")]
    pub set: Vec<(String, String)>,
    /// The device to train on: auto, cpu, cuda:N or cuda:UUID; commands may use several: cuda:0,1
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
}

/// Start options of a run.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// No cockpit: one line per event on stdout; the exit code reports how it ended
    #[arg(long)]
    headless: bool,
    /// Run as part of a batch job, headless: continue the run folder NAME if it exists, end with this process, and exit
    /// with 75 when interrupted (see `downshift sbatch`)
    #[arg(long, value_name = "NAME", conflicts_with = "after")]
    job: Option<JobName>,
    #[command(flatten)]
    sharing: Sharing,
    /// Start once RUN is over, however it ends, and the device is free
    #[arg(long, value_name = "RUN", conflicts_with = "another")]
    after: Option<String>,
    #[command(flatten)]
    overrides: Overrides,
    /// The name of the run, in place of that of the run file or the script
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The rung to begin on, by name or number; defaults to the climb plan's first stage, or `full`
    #[arg(long, value_name = "RUNG")]
    rung: Option<String>,
    /// Begin from the newest checkpoint of a run, or from one that the script wrote before; `@STEP` names another step, or
    /// that of a file whose name tells none
    #[arg(long, value_name = "RUN|PATH[@STEP]")]
    from: Option<String>,
    /// Injected faults, such as `nan@120,oom@150*,hang@400`; `*` = in every attempt
    #[arg(long, default_value = "", hide_default_value = true, value_name = "FAULT@STEP,…")]
    inject: Faults,
    #[command(flatten)]
    trust: Trust,
}

impl RunOptions {
    /// Reports whether no option was given.
    pub fn is_default(&self) -> bool {
        let Self { headless, job, sharing, after, overrides, name, rung, from, inject, trust } = self;
        let Overrides { set, device } = overrides;
        let plain = job.is_none()
            && after.is_none()
            && name.is_none()
            && rung.is_none()
            && from.is_none()
            && inject.0.is_empty()
            && *trust == Trust::default();
        plain && !headless && *sharing == Sharing::default() && set.is_empty() && device == "auto"
    }

    /// Returns what the options change in the run file.
    fn settings(&self) -> Vec<(String, String)> {
        let name = self.name.iter().map(|name| ("name".to_owned(), name.clone()));
        self.overrides.set.iter().cloned().chain(name).collect()
    }
}

pub fn run(args: &RunArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    if args.command.is_empty() {
        if std::env::args_os().next_back().is_some_and(|word| word == "--") {
            return Err(Failure::new(
                2,
                "no command follows `--`; write it as you would type it: downshift run -- python train.py",
            ));
        }
        return match &args.config[..] {
            [] => begin(None, &args.options, runs, trainer),
            [file] if !is_folder_of_run_files(file) => begin(Some(file), &args.options, runs, trainer),
            files => queue::begin_queue(files, &args.options, runs, trainer),
        };
    }
    let mut signals = signals_of_job(&args.options)?;
    if let (Some(dir), Some(signals)) = (earlier_start(&args.options, runs), &mut signals) {
        return job::go_on(&dir, &args.options.sharing, args.options.trust, trainer, signals);
    }
    let here = std::env::current_dir()?;
    let run = typed_run(&args.command, &here, sections_of_profile(&args.command, &here)?, &args.options.settings())?;
    let run = settle_program(run).map_err(Failure::config)?;
    trust::approve_typed(&run);
    start(run, &args.options, runs, trainer, signals)
}

/// Starts a run from a run file and follows it.
pub fn begin(config: Option<&Path>, options: &RunOptions, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let mut signals = signals_of_job(options)?;
    if let (Some(dir), Some(signals)) = (earlier_start(options, runs), &mut signals) {
        return job::go_on(&dir, &options.sharing, options.trust, trainer, signals);
    }
    let run = approved_run(config, options, runs, trainer)?;
    start(run, options, runs, trainer, signals)
}

/// Reads a run file, and asks for what it needs approval for.
fn approved_run(
    config: Option<&Path>,
    options: &RunOptions,
    runs: &Path,
    trainer: &dyn Trainer,
) -> Result<Run, Failure> {
    if let Some(config) = config {
        refuse_run(config, runs)?;
        note_same_name(config);
    }
    let run = load_run_file(config, &options.settings(), &options.overrides.device, trainer)?;
    if run.command.is_none() {
        trainer.require_tasks().map_err(Failure::of)?;
    }
    let run = settle_program(run).map_err(Failure::config)?;
    // A mistake in the words comes before a question.
    chosen_rung(&run, options)?;
    climb_plan::warn(&run, config);
    trust::require_approval(&run, options.trust)?;
    Ok(run)
}

/// Finds the run of this job, if an earlier start of the job began one.
fn earlier_start(options: &RunOptions, runs: &Path) -> Option<RunDir> {
    options.job.as_ref()?.find(runs)
}

/// Listens for the signals to a job, which may come at any time.
fn signals_of_job(options: &RunOptions) -> Result<Option<JobSignals>, Failure> {
    if options.job.is_none() {
        return Ok(None);
    }
    Ok(Some(JobSignals::listen()?))
}

/// Starts an approved run and follows it. `signals`: those to its job.
fn start(
    run: Run,
    options: &RunOptions,
    runs: &Path,
    trainer: &dyn Trainer,
    mut signals: Option<JobSignals>,
) -> Outcome {
    let ready = match ready::check_start(run, options, runs, trainer)? {
        Checked::Ready(ready) => ready,
        Checked::Attach(other) => return attach::open(&other),
    };
    if let (Some(job), Some(signals)) = (&options.job, &mut signals)
        && let Some(signal) = signals.arrived()
    {
        return job::interrupted_early(signal, job.as_str());
    }
    let (dir, launch) = ready.create(options, runs)?;
    if let Some(signals) = &mut signals {
        return job::keep(&dir, (&launch, NextStart::first(&dir)), 0, signals);
    }
    start_keeper(&dir, Some(&launch), NextStart::first(&dir))?;
    look_on(&dir, options.headless, 0)
}

/// Returns the rung that the options name, if they name one.
fn chosen_rung(run: &Run, options: &RunOptions) -> Result<Option<usize>, Failure> {
    let Some(name) = &options.rung else { return Ok(None) };
    let names: Vec<&str> = run.rungs.iter().map(|rung| rung.name.as_str()).collect();
    let unknown = || Failure::new(2, format!("--rung {name}: unknown rung; {}", suggest(name, &names)));
    run.rung_named(name).ok_or_else(unknown).map(Some)
}

/// Checks that the disk has room for the checkpoints a run will keep.
pub fn has_room(runs: &Path, run: &Run, parameters: Option<u64>) -> Result<(), Failure> {
    let Some(parameters) = parameters else { return Ok(()) };
    let (most, one) = (most_checkpoints(run), disk::checkpoint_bytes(parameters));
    disk::has_room(runs, disk::planned(one, most)).map_err(|shortage| too_full(&shortage, one, most))
}

/// Does the same for a run with checkpoints: those are already on the disk.
pub fn has_room_to_go_on(dir: &RunDir, run: &Run) -> Result<(), Failure> {
    let there = checkpoint::list(dir.path());
    let sizes: Vec<u64> =
        there.iter().filter_map(|entry| Some(checkpoint::manifest(&entry.path).ok()?.bytes())).collect();
    let Some(one) = sizes.first().copied() else { return Ok(()) };
    let most = most_checkpoints(run);
    let missing = disk::planned(one, most).saturating_sub(sizes.iter().sum()).max(one);
    disk::has_room(dir.path(), missing).map_err(|shortage| too_full(&shortage, one, most))
}

fn most_checkpoints(run: &Run) -> u64 {
    let kept = run.rungs.iter().map(|rung| rung.preset.checkpoint.max_on_disk()).max().unwrap_or(1);
    // The one that is measured stays, too.
    kept.saturating_add(u64::from(run.quality.is_some()))
}

fn too_full(shortage: &disk::Shortage, one: u64, most: u64) -> Failure {
    let one = bytes(one);
    Failure::new(
        1,
        format!(
            "{shortage} for this run (up to {most} checkpoints of {one}: the newest, the best, proven ones, and one being \
             written; and 16 MiB for its curve and logs); free some space, lower checkpoint.keep_last, or choose another disk with --runs-dir"
        ),
    )
}

/// Starts the keeper of a run, and notes its folder, where `resume --interrupted --everywhere` looks for runs.
pub fn start_keeper(dir: &RunDir, launch: Option<&Launch>, next: NextStart) -> Result<(), Failure> {
    if let (Some(list), Some(runs)) = (RunsDirectories::of_user(), dir.path().parent())
        && let Err(error) = list.add(runs)
    {
        say(&format!("after a reboot, `resume --interrupted` will not find this run by itself: {error}"));
    }
    launch_keeper(dir, launch, next)
}

/// Starts the keeper of a run.
pub fn launch_keeper(dir: &RunDir, launch: Option<&Launch>, next: NextStart) -> Result<(), Failure> {
    let began_ms = jiff::Timestamp::now().as_millisecond();
    detach::start(dir, launch, &next.keep(dir))?;
    client::wait_for_keeper(dir, began_ms)
}

/// Opens the cockpit on a terminal, else prints lines.
pub fn look_on(dir: &RunDir, headless: bool, since_ms: i64) -> Outcome {
    if headless || !has_terminal() {
        return headless::follow(dir, since_ms);
    }
    attach::open(dir)
}

/// Reports whether a cockpit has a terminal to open on.
pub fn has_terminal() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}
