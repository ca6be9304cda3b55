//! The command line: one file a command. Nothing is decided here; commands read the store, talk to
//! the keeper, or become one of the processes.

mod alone;
mod attach;
mod bundle;
mod check;
mod checkpoints;
mod client;
mod command_line;
mod compare_knob;
mod doctor;
mod drill;
mod export;
mod headless;
mod internal;
mod interrupted;
mod notify;
mod occupied;
mod plan;
mod plot;
mod preflight;
mod prepare;
mod request;
mod resume;
mod run;
mod runs;
mod status;
mod taste;
mod tensorboard;
pub mod trainer;
mod triage;
mod trial;
mod trust;
mod watch;
mod watching;

use crate::config::run::AsWritten;
use crate::protocol::inject::Inject;
use crate::store::reader::refuse_newer;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use trainer::Trainer;

/// A training cockpit that keeps a run alive.
///
/// Without a command: `downshift run` with the run file that ships inside (handwritten digits).
#[derive(Debug, Parser)]
#[command(name = "downshift", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::RunOptions,
    #[command(flatten)]
    place: Place,
}

/// Where runs live.
#[derive(Debug, Clone, Args)]
struct Place {
    /// The folder of all runs
    #[arg(long, global = true, env = "DOWNSHIFT_RUNS_DIR", default_value = "runs", value_name = "DIR")]
    runs_dir: PathBuf,
}

/// Which run is meant.
#[derive(Debug, Clone, Args)]
struct Which {
    /// The name of a run, the beginning of it, or its folder; the newest run if left out
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a run (its keeper detached) and open the cockpit on it
    Run(run::RunArgs),
    /// Open the cockpit on a run, alive or finished
    Attach(attach::AttachArgs),
    /// List runs
    Runs,
    /// One run at a glance
    Status(status::StatusArgs),
    /// Start again from the newest checkpoint that verifies, or an older one; opens a fresh budget
    Resume(resume::ResumeArgs),
    /// Save, then end a run; a second time ends it without waiting for the checkpoint
    Stop(Which),
    /// Go on under another rung, from exactly the step where the run is
    Shift(request::ShiftArgs),
    /// Save now
    Checkpoint(Which),
    /// Save, end the worker and free the card; `resume` goes on
    Pause(Which),
    /// Save, then start again on the same rung
    Restart(Which),
    /// Do what the keeper proposes (with the autopilot off)
    Accept(Which),
    /// A run of a few minutes that ends in a checklist; exit code 0 only if all of it holds
    Trial(trial::TrialArgs),
    /// See it survive: the default run through an out of memory, NaN, a hang, a kill and heat
    Drill(drill::DrillArgs),
    /// Validate a run file and every rung of its ladder; nothing is started
    Check(check::CheckArgs),
    /// What each rung needs of memory, against the card or the host
    Plan(plan::PlanArgs),
    /// One knob at two values, trained for some steps each: memory, speed and loss side by side
    CompareKnob(compare_knob::CompareArgs),
    /// Compile and tune the kernels of every rung ahead, so that a shift takes seconds
    Prepare(prepare::PrepareArgs),
    /// The curve, one row per attempt and step, or as TensorBoard event files
    Export(export::ExportArgs),
    /// Charts of one or several runs as a picture, SVG or PNG
    Plot(plot::PlotArgs),
    /// The checkpoints of a run: [RUN] list | verify | compare | export | copy | prune
    Checkpoints(checkpoints::CheckpointsArgs),
    /// Everything that a run depends on, a line each, with the fix
    Doctor(doctor::DoctorArgs),
    /// One archive for a bug report, without secrets and home paths
    Bundle(bundle::BundleArgs),
    /// The GPU and the machine, without a run
    Watch(watch::WatchArgs),
    /// See whether a person would be told: test
    Notify(notify::NotifyArgs),
    /// What broke, by a log: of this program or any other that trains
    Triage(triage::TriageArgs),
    #[command(hide = true)]
    Worker(internal::WorkerArgs),
    #[command(hide = true)]
    Keeper(internal::KeeperArgs),
    #[command(hide = true)]
    Probe(internal::ProbeArgs),
    #[command(hide = true)]
    SelfTest(doctor::SelfTestArgs),
}

/// A way to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For tmux's status line
    Tmux,
    /// For programs
    Json,
}

/// What ends a command early: the sentence for stderr and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What happened, to what, and what to do.
    pub message: String,
    /// 1 = own failure, 2 = usage, others as the worker's.
    pub code: u8,
}

impl Failure {
    /// What a trainer refuses, with the exit code that its worker would end with.
    fn of((code, message): (u8, String)) -> Self {
        Self { message, code }
    }

    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), code }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(1, error.to_string())
    }
}

type Outcome = Result<u8, Failure>;

/// The run that is meant, if this version can read it.
fn find_run(runs: &Path, name: Option<&str>) -> Result<RunDir, Failure> {
    let run = RunDir::find(runs, name)?;
    refuse_newer(&run).map_err(|refusal| Failure::new(1, format!("{}: {refusal}", run.name())))?;
    Ok(run)
}

/// Parses the command line, runs the command, gives its exit code.
pub fn main(trainer: &dyn Trainer) -> ExitCode {
    let cli = Cli::parse();
    let trainer: &dyn Trainer = if trainer::is_elsewhere() { &AsWritten } else { trainer };
    let runs = &cli.place.runs_dir;
    let outcome = match cli.command {
        None => run::begin(None, &cli.run, runs, trainer),
        Some(Command::Run(args)) => run::run(&args, runs, trainer),
        Some(Command::Attach(args)) => attach::attach(&args, runs),
        Some(Command::Runs) => Ok(runs::list(runs)),
        Some(Command::Status(args)) => status::print(&args, runs),
        Some(Command::Resume(args)) => resume::resume(&args, runs, trainer),
        Some(Command::Stop(which)) => request::stop(&which, runs),
        Some(Command::Shift(args)) => request::shift(&args, runs),
        Some(Command::Checkpoint(which)) => request::checkpoint(&which, runs),
        Some(Command::Pause(which)) => request::pause(&which, runs),
        Some(Command::Restart(which)) => request::restart(&which, runs),
        Some(Command::Accept(which)) => request::accept(&which, runs),
        Some(Command::Trial(args)) => trial::trial(&args, runs, trainer),
        Some(Command::Drill(args)) => drill::drill(&args, runs, trainer),
        Some(Command::Check(args)) => check::check(&args, runs, trainer),
        Some(Command::Plan(args)) => plan::plan(&args, runs, trainer),
        Some(Command::CompareKnob(args)) => compare_knob::compare(&args, trainer),
        Some(Command::Prepare(args)) => prepare::prepare(&args, trainer),
        Some(Command::Export(args)) => export::export(&args, runs),
        Some(Command::Plot(args)) => plot::plot(&args, runs),
        Some(Command::Checkpoints(args)) => checkpoints::look(&args, runs, trainer),
        Some(Command::Doctor(args)) => doctor::doctor(&args, runs),
        Some(Command::Bundle(args)) => bundle::bundle(&args, runs),
        Some(Command::SelfTest(args)) => Ok(doctor::self_test(&args, trainer)),
        Some(Command::Watch(args)) => watch::watch(&args, runs),
        Some(Command::Notify(args)) => notify::notify(&args, trainer),
        Some(Command::Triage(args)) => triage::triage(&args),
        Some(Command::Worker(args)) => internal::worker(&args, trainer),
        Some(Command::Keeper(args)) => internal::keeper(&args),
        Some(Command::Probe(args)) => return internal::probe(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// A line on stdout, without anything that a terminal obeys. A reader that has gone, as `head` does, is no failure: there is nobody left to
/// tell.
fn print(line: &std::fmt::Arguments<'_>) {
    let text = line.to_string();
    let written = writeln!(std::io::stdout().lock(), "{}", text::lines(&text));
    if written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// `println!` for commands whose reader may leave early.
macro_rules! line {
    ($($words:tt)*) => { $crate::cli::print(&format_args!($($words)*)) };
}
use line;

/// A sentence on stderr.
#[expect(clippy::print_stderr, reason = "the one place that speaks to a person outside the cockpit")]
fn say(message: &str) {
    eprintln!("downshift: {}", text::lines(message));
}

/// A list of faults on the command line.
#[derive(Debug, Clone, Default)]
struct Faults(Vec<Inject>);

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Inject::parse_list(text).map(Self)
    }
}
