//! The command line: one file per command. No policy lives here; commands read the store, talk to the
//! keeper, or become one of the processes.

mod adopt;
mod attach;
mod bad_value;
mod bundle;
mod check;
mod checkpoints;
mod client;
mod climb_plan;
mod compare_knob;
mod completions;
mod delete;
mod devices;
mod doctor;
mod drill;
mod elsewhere;
mod environment;
mod errand;
mod export;
mod first_checkpoint;
mod guide;
mod headless;
mod init;
mod internal;
mod interrupted;
mod job;
mod kept_script;
mod labels;
mod man;
mod measure;
mod notify;
mod occupied;
mod output;
mod patience;
mod plan;
mod plot;
mod preferences;
mod preflight;
mod prepare;
mod profiles;
mod queue;
mod report;
mod request;
mod resume;
mod run;
mod runs;
mod samples;
mod sbatch;
mod settings_copies;
mod show;
mod start;
mod status;
mod triage;
mod trial;
mod trust;
mod typed_run;
mod undeclared;
mod wait;
mod watch;
mod watching;
mod words;

use crate::config::run::AsWritten;
use crate::diagnose::readings::read_once;
use crate::protocol::exit_code;
use crate::protocol::inject::{Inject, InjectError};
use crate::store::file_system::check_override;
use crate::store::reader::refuse_newer;
use crate::store::run_dir::RunDir;
use crate::trainer::command::WithCommands;
use crate::trainer::{self, Trainer};
use crate::untrusted::text;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// A training cockpit that keeps a run alive.
///
/// Without a command: the runs to choose from, on a terminal; without any, `downshift run` with the run file that
/// ships inside (handwritten digits).
#[derive(Debug, Parser)]
#[command(name = "downshift", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::RunOptions,
    #[command(flatten)]
    place: RunsFolder,
}

/// The location of runs.
#[derive(Debug, Clone, Args)]
struct RunsFolder {
    /// The folder that contains all runs
    #[arg(long, global = true, env = "DOWNSHIFT_RUNS_DIR", default_value = "runs", value_name = "DIR")]
    runs_dir: PathBuf,
}

/// Selects a run.
#[derive(Debug, Clone, Default, Args)]
struct Which {
    /// The run's name, a prefix of it, or its folder; defaults to the newest run
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

/// Selects a living run.
#[derive(Debug, Clone, Default, Args)]
struct WhichAlive {
    /// The run's name, a prefix of it, or its folder; defaults to the only run that is alive
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a run with a detached keeper and open the cockpit on it; several run files are queued
    Run(run::RunArgs),
    /// Write or submit a Slurm job that keeps a run across requeues
    Sbatch(sbatch::SbatchArgs),
    /// Adopt a training process that already runs, by its tmux session or its id
    Adopt(adopt::AdoptArgs),
    /// Open the cockpit on a run, alive or finished
    Attach(attach::AttachArgs),
    /// List runs: state, times, steps, best evaluation, device, rung and tags
    Runs(runs::RunsArgs),
    /// Add and remove tags of a run: tag RUN +baseline -old
    Tag(labels::TagArgs),
    /// Set or print the note of a run
    Note(labels::NoteArgs),
    /// List the runs that wait for a device, move them, hold them or remove them
    Queue(queue::QueueArgs),
    /// Leave runs out of the lists, until --undo
    Archive(labels::ArchiveArgs),
    /// Delete runs that have ended, with their checkpoints; asks first
    Delete(delete::DeleteArgs),
    /// Show a run's status
    Status(status::StatusArgs),
    /// Wait until a run is over; the exit code is the run's
    Wait(wait::WaitArgs),
    /// Continue from the newest checkpoint that verifies, or an older one; resets the restart budget
    Resume(resume::ResumeArgs),
    /// Save, then end a run; the second time ends it without waiting for the checkpoint
    Stop(WhichAlive),
    /// Continue on another rung from exactly the current step
    Shift(request::ShiftArgs),
    /// Save a checkpoint now
    Checkpoint(Which),
    /// Save, end the worker and free the GPU; `resume` continues
    Pause(Which),
    /// Save, then restart on the same rung
    Restart(Which),
    /// Accept the keeper's proposal (with the autopilot off)
    Accept(Which),
    /// Run for a few minutes and print a checklist; exits with 1 if an item fails
    Trial(trial::TrialArgs),
    /// Demonstrate recovery: the default run through out of memory, NaN, a hang, a kill and heat
    Drill(drill::DrillArgs),
    /// Write a run file from a template, or propose one for a script: init -- python train.py …
    Init(init::InitArgs),
    /// Print a run file, theme or keymap that ships inside, with its comments
    Show(show::ShowArgs),
    /// Validate a run file and every rung of its ladder without starting anything
    Check(check::CheckArgs),
    /// Estimate the memory of each rung, against the GPU or the host
    Plan(plan::PlanArgs),
    /// Train one knob at two values for some steps each: memory, speed and loss side by side
    CompareKnob(compare_knob::CompareArgs),
    /// Compile and tune the kernels of every rung in advance, so that a shift takes seconds
    Prepare(prepare::PrepareArgs),
    /// Export the curve, one row per attempt and step, or as TensorBoard event files
    Export(export::ExportArgs),
    /// Plot one or several runs as SVG or PNG
    Plot(plot::PlotArgs),
    /// Show what the model did at its evaluations, or copy the pictures with --out
    Samples(samples::SamplesArgs),
    /// Write a run as one page for a browser, which loads nothing from the network
    Report(report::ReportArgs),
    /// Work with a run's checkpoints: [RUN] list | verify | compare | export | copy | prune
    Checkpoints(checkpoints::CheckpointsArgs),
    /// Check everything a run depends on, one line each, with the fix
    Doctor(doctor::DoctorArgs),
    /// Create an archive for a bug report, without secrets and home paths
    Bundle(bundle::BundleArgs),
    /// Monitor the GPU and the machine, without a run
    Watch(watch::WatchArgs),
    /// Send a test notification: test
    Notify(notify::NotifyArgs),
    /// Diagnose a training log, from this program or any other
    Triage(triage::TriageArgs),
    /// Print the script that lets a shell complete commands, runs and run files
    Completions(completions::CompletionsArgs),
    /// Write a manual page for each command
    Man(man::ManArgs),
    #[command(hide = true)]
    Worker(internal::WorkerCommand),
    #[command(hide = true)]
    Harness(internal::HarnessCommand),
    #[command(hide = true)]
    MeasureQuality(internal::QualityCommand),
    #[command(flatten)]
    Helper(internal::Helper),
    #[command(hide = true)]
    Keeper(internal::KeeperArgs),
    #[command(hide = true)]
    Probe(internal::ProbeArgs),
    #[command(hide = true)]
    SelfTest(doctor::SelfTestArgs),
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For reading
    Text,
    /// For other programs
    Json,
}

/// An output format of a command whose answer fits into a status line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LineFormat {
    /// For reading
    Text,
    /// For tmux's status line
    Tmux,
    /// For other programs
    Json,
}

/// An early end of a command: the message for stderr and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The problem, its subject, and the fix.
    pub message: String,
    /// One of [`exit_code`].
    pub code: u8,
}

impl Failure {
    /// Builds the failure from a trainer's refusal, with the exit code its worker would end with.
    fn of(trainer::Refusal { code, message }: trainer::Refusal) -> Self {
        Self { message, code }
    }

    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), code }
    }

    /// Builds the failure of an invalid run file.
    fn config(message: impl fmt::Display) -> Self {
        Self::new(exit_code::CONFIG, message.to_string())
    }

    /// Builds the failure of an unusable checkpoint.
    fn checkpoint(message: impl fmt::Display) -> Self {
        Self::new(exit_code::CHECKPOINT, message.to_string())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(1, error.to_string())
    }
}

type Outcome = Result<u8, Failure>;

/// Refuses to write where something is: it may be the only copy. `option` names another place.
fn refuse_existing(path: &Path, option: &str) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        let shown = text::path(path);
        return Err(Failure::new(2, format!("{shown} exists; nothing was written; choose another file with {option}")));
    }
    Ok(())
}

/// Finds the selected run, if this version can read it.
fn find_run(runs: &Path, name: Option<&str>) -> Result<RunDir, Failure> {
    let run = RunDir::find(runs, name)?;
    refuse_newer(&run).map_err(|refusal| Failure::new(1, format!("{}: {refusal}", run.name())))?;
    Ok(run)
}

/// Parses the command line, runs the command, returns its exit code.
pub fn main(trainer: &dyn Trainer) -> ExitCode {
    completions::answer_shell();
    let cli = match words::parse(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let trainer = &WithCommands { trainer: if trainer::is_elsewhere() { &AsWritten } else { trainer }, find_gpu };
    let runs = &cli.place.runs_dir;
    if let Some(code) = refuse_override() {
        return code;
    }
    let outcome = match cli.command {
        None => start::start(&cli.run, runs, trainer),
        Some(Command::Run(args)) => run::run(&args, runs, trainer),
        Some(Command::Sbatch(args)) => sbatch::sbatch(&args, runs, trainer),
        Some(Command::Adopt(args)) => adopt::adopt(&args, runs, trainer),
        Some(Command::Attach(args)) => attach::attach(&args, runs),
        Some(Command::Runs(args)) => runs::print_list(&args, runs),
        Some(Command::Tag(args)) => labels::tag(&args, runs),
        Some(Command::Note(args)) => labels::note(&args, runs),
        Some(Command::Queue(args)) => queue::queue(&args, runs),
        Some(Command::Archive(args)) => labels::archive(&args, runs),
        Some(Command::Delete(args)) => delete::delete(&args, runs),
        Some(Command::Status(args)) => status::print_status(&args, runs),
        Some(Command::Wait(args)) => wait::wait(&args, runs),
        Some(Command::Resume(args)) => resume::resume(&args, runs, trainer),
        Some(Command::Stop(which)) => request::stop(&which, runs),
        Some(Command::Shift(args)) => request::shift(&args, runs),
        Some(Command::Checkpoint(which)) => request::checkpoint(&which, runs),
        Some(Command::Pause(which)) => request::pause(&which, runs),
        Some(Command::Restart(which)) => request::restart(&which, runs),
        Some(Command::Accept(which)) => request::accept(&which, runs),
        Some(Command::Trial(args)) => trial::trial(&args, runs, trainer),
        Some(Command::Drill(args)) => drill::drill(&args, runs, trainer),
        Some(Command::Init(args)) => init::init(&args, trainer),
        Some(Command::Show(args)) => show::show(&args),
        Some(Command::Check(args)) => check::check(&args, runs, trainer),
        Some(Command::Plan(args)) => plan::plan(&args, runs, trainer),
        Some(Command::CompareKnob(args)) => compare_knob::compare(&args, trainer),
        Some(Command::Prepare(args)) => prepare::prepare(&args, trainer),
        Some(Command::Export(args)) => export::export(&args, runs),
        Some(Command::Plot(args)) => plot::plot(&args, runs),
        Some(Command::Samples(args)) => samples::samples(&args, runs),
        Some(Command::Report(args)) => report::report(&args, runs),
        Some(Command::Checkpoints(args)) => checkpoints::run_action(&args, runs, trainer),
        Some(Command::Doctor(args)) => doctor::doctor(&args, runs),
        Some(Command::Bundle(args)) => bundle::bundle(&args, runs),
        Some(Command::SelfTest(args)) => Ok(doctor::self_test(&args, trainer)),
        Some(Command::Watch(args)) => watch::watch(&args, runs),
        Some(Command::Notify(args)) => notify::notify(&args, trainer),
        Some(Command::Triage(args)) => triage::triage(&args, runs),
        Some(Command::Completions(args)) => completions::completions(&args),
        Some(Command::Man(args)) => man::write_pages(&args),
        Some(Command::Worker(args)) => internal::worker(&args, trainer),
        Some(Command::Harness(args)) => internal::harness(args),
        Some(Command::MeasureQuality(args)) => internal::measure_quality(args, trainer),
        Some(Command::Helper(helper)) => return internal::help(&helper),
        Some(Command::Keeper(args)) => internal::keeper(&args),
        Some(Command::Probe(args)) => return internal::probe(&args),
    };
    report_end(outcome)
}

/// Refuses a wrong override of the kinds of file systems.
fn refuse_override() -> Option<ExitCode> {
    let wrong = check_override().err()?;
    say(&wrong.to_string());
    Some(ExitCode::from(2))
}

/// Reports a failure on stderr; returns the exit code.
fn report_end(outcome: Outcome) -> ExitCode {
    let code = outcome.unwrap_or_else(|failure| {
        say(&failure.message);
        failure.code
    });
    ExitCode::from(code)
}

/// Returns the name of the machine's first GPU.
fn find_gpu() -> Option<String> {
    read_once(Path::new("."), 0).ok()?.gpu.ok().map(|gpu| gpu.name)
}

/// `println!` for commands whose reader may close the pipe early.
macro_rules! line {
    ($($words:tt)*) => { $crate::cli::print(&format_args!($($words)*)) };
}
use line;
use output::{confirm, print, print_raw, say};

/// Injected faults, as given on the command line.
#[derive(Debug, Clone, Default)]
struct Faults(Vec<Inject>);

impl FromStr for Faults {
    type Err = InjectError;

    fn from_str(text: &str) -> Result<Self, InjectError> {
        Inject::parse_list(text).map(Self)
    }
}

#[cfg(test)]
mod tests;
