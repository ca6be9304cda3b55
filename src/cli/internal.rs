//! Hidden commands: this program as keeper, worker, harness and probe.

use super::{Failure, Faults, Outcome};
use crate::config::command::constants::changed_constants;
use crate::config::knobs::Loader;
use crate::config::run::Run;
use crate::harness::{self, HarnessArgs, JobNodes, Purpose};
use crate::keeper::detach::Asked;
use crate::keeper::lifeline::Lifetime;
use crate::keeper::{self, Launch, detach, keeper_parent};
use crate::protocol::claim::ClaimRequest;
use crate::protocol::environment::EnvironmentNews;
use crate::protocol::line;
use crate::quality::{self, QualityArgs};
use crate::recipe::class::{self, Class};
use crate::recipe::interval;
use crate::recipe::leave_out::LeaveOut;
use crate::store::checkpoint;
use crate::store::checkpoint::state::TrainState;
use crate::store::run_dir::RunDir;
use crate::trainer::{Trainer, WorkerArgs};
use crate::untrusted::file::{Limit, read};
use crate::untrusted::port::find_free_port;
use clap::{Args, Subcommand, ValueEnum};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `worker`.
#[derive(Debug, Args)]
pub struct WorkerCommand {
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long)]
    rung: usize,
    #[arg(long)]
    attempt: u64,
    #[arg(long, default_value = "auto")]
    device: String,
    #[arg(long)]
    from: Option<u64>,
    #[arg(long)]
    require_checkpoint: bool,
    #[arg(long, default_value_t = 0)]
    faults: u64,
    #[arg(long, default_value_t = 0.0)]
    lived_s: f64,
    /// Parts of the data to skip.
    #[arg(long, default_value = "")]
    leave_out: LeaveOut,
    /// One loader thread, one batch of prefetch.
    #[arg(long)]
    lean: bool,
    #[arg(long, default_value = "")]
    inject: Faults,
    /// Report the memory of each phase.
    #[arg(long)]
    measure: bool,
}

/// Arguments of `harness`.
#[derive(Debug, Args)]
pub struct HarnessCommand {
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long)]
    rung: usize,
    #[arg(long)]
    attempt: u64,
    #[arg(long, default_value = "auto")]
    device: String,
    /// Marks the processes of the command.
    #[arg(long)]
    token: String,
    #[arg(long, default_value_t = 0)]
    faults: u64,
    #[arg(long, default_value_t = 0.0)]
    lived_s: f64,
    #[arg(long, default_value = "")]
    inject: Faults,
    /// End the command with the process that started the harness, and adopt none of its checkpoints.
    #[arg(long)]
    measure: bool,
    /// Also end with the process that started the harness, but adopt checkpoints.
    #[arg(long, conflicts_with = "measure")]
    trial: bool,
    /// Start the command ahead, and wait for the order to begin.
    #[arg(long)]
    standby: bool,
    /// The nodes that it runs the command on.
    #[arg(long, value_enum, default_value_t = WhichNodes::This)]
    nodes: WhichNodes,
}

/// The nodes that a command runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WhichNodes {
    /// This one.
    This,
    /// All nodes of the job.
    Job,
}

impl HarnessCommand {
    fn purpose(&self) -> Purpose {
        match (self.measure, self.trial) {
            (true, _) => Purpose::Measurement,
            (false, true) => Purpose::Trial,
            (false, false) => Purpose::Run,
        }
    }
}

/// Arguments of `measure-quality`.
#[derive(Debug, Args)]
pub struct QualityCommand {
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long)]
    step: u64,
    #[arg(long)]
    rung: usize,
    #[arg(long)]
    attempt: u64,
    #[arg(long, default_value = "auto")]
    device: String,
    /// Marks the processes of the command.
    #[arg(long)]
    token: String,
}

/// A process beside a command.
#[derive(Debug, Subcommand)]
pub enum Helper {
    /// Become the command, in a session of its own.
    #[command(hide = true)]
    ExecCommand {
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Read its output once the harness is gone.
    #[command(hide = true)]
    HoldOutput,
    /// Run its part on another node of the job.
    #[command(hide = true)]
    NodeCommand,
    /// End its part once the helper of the node is gone.
    #[command(hide = true)]
    GuardCommand {
        /// Marks its processes.
        token: String,
    },
}

/// Arguments of `keeper`.
#[derive(Debug, Args)]
pub struct KeeperArgs {
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long)]
    device: Option<String>,
    /// The claim on devices, as JSON.
    #[arg(long, value_parser = parse_claim)]
    claim: Option<ClaimRequest>,
    #[arg(long, default_value = "")]
    inject: Faults,
    /// The user asked for it, with this process.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "an unknown process")]
    by_person: Option<String>,
    /// How the environment compares with that of the first start, as JSON.
    #[arg(long, value_parser = parse_news, requires = "by_person")]
    environment: Option<EnvironmentNews>,
    /// Detach from the terminal and exit; the parent continues in the background.
    #[arg(long)]
    detach: bool,
    /// Be the parent: start the keeper and restart it when it dies.
    #[arg(long)]
    parent: bool,
    /// End the run when the other end of stdin is closed.
    #[arg(long, conflicts_with = "detach")]
    bound: bool,
}

impl KeeperArgs {
    fn lifetime(&self) -> Lifetime {
        if self.bound { Lifetime::Bound } else { Lifetime::Detached }
    }

    fn launch(&self) -> Option<Launch> {
        let device = self.device.clone()?;
        Some(Launch { device, claim: self.claim.clone(), inject: self.inject.0.clone() })
    }

    fn asked(&self) -> Option<Asked> {
        Some(Asked { by: self.by_person.clone()?, environment: self.environment.clone().unwrap_or_default() })
    }
}

fn parse_news(text: &str) -> Result<EnvironmentNews, serde_json::Error> {
    serde_json::from_str(text)
}

fn parse_claim(text: &str) -> Result<ClaimRequest, serde_json::Error> {
    serde_json::from_str(text)
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    #[arg(long)]
    once: bool,
    /// Print the cards of the machine and exit.
    #[arg(long)]
    list: bool,
}

/// Opens a run that has this rung.
fn open_run(path: &Path, rung: usize) -> Result<(RunDir, Run), Failure> {
    let run_dir = RunDir::open(path)?;
    let run = run_dir.run().map_err(Failure::config)?;
    if rung >= run.rungs.len() {
        return Err(Failure::config(format!("rung {rung} is not on the ladder of {}", run_dir.name())));
    }
    Ok((run_dir, run))
}

pub fn worker(args: &WorkerCommand, trainer: &dyn Trainer) -> Outcome {
    let (run_dir, run) = open_run(&args.run_dir, args.rung)?;
    let rung = &run.rungs[args.rung];
    let mut preset = rung.preset.clone();
    if args.lean {
        preset.training.loader = Loader { threads: 1, prefetch: 1 };
    }
    let worker = WorkerArgs {
        run_dir: run_dir.path().to_owned(),
        rung: args.rung,
        rung_name: rung.name.clone(),
        attempt: args.attempt,
        task: run.task.clone(),
        preset,
        skips_in_a_row: run.watch.skips_in_a_row,
        layers: run.watch.layers,
        device: args.device.parse().unwrap_or_default(),
        migrate: may_migrate(&run_dir, &run, args.rung),
        require_checkpoint: args.require_checkpoint,
        from: args.from,
        faults: interval::Faults { count: args.faults, lived_s: args.lived_s },
        leave_out: args.leave_out.clone(),
        inject: args.inject.0.clone(),
        measure: args.measure,
    };
    trainer.work(&worker).map_err(Failure::of)
}

/// Lets a write beyond the file size limit (`ulimit -f`) fail with an error: its signal would kill the process.
fn outlive_file_limit() -> io::Result<()> {
    let signal = rustix::process::Signal::XFSZ.as_raw();
    signal_hook::flag::register(signal, std::sync::Arc::default()).map(drop)
}

pub fn harness(args: HarnessCommand) -> Outcome {
    outlive_file_limit()?;
    let (run_dir, run) = open_run(&args.run_dir, args.rung)?;
    let rung = &run.rungs[args.rung];
    let purpose = args.purpose();
    let no_command = || Failure::config(format!("{} has no command to run", run_dir.name()));
    let spec = run.command.clone().ok_or_else(no_command)?;
    let nodes = match args.nodes {
        WhichNodes::This => Ok(JobNodes::alone()),
        WhichNodes::Job => JobNodes::find(),
    };
    let constants = changed_constants(&spec, &run.rungs[0].preset, &rung.preset);
    let harness = HarnessArgs {
        run_dir,
        spec,
        constants,
        rung: args.rung,
        rung_name: rung.name.clone(),
        preset: rung.preset.clone(),
        attempt: args.attempt,
        token: args.token,
        device: args.device,
        skips_in_a_row: run.watch.skips_in_a_row,
        silence: run.watch.shortest_silence(),
        inject: args.inject.0,
        faults: interval::Faults { count: args.faults, lived_s: args.lived_s },
        purpose,
        nodes: nodes.map_err(Failure::config)?,
        port: find_free_port()?,
        stands_by: args.standby,
    };
    harness::run(harness).map_err(|error| Failure::new(error.exit_code(), error.to_string()))
}

pub fn measure_quality(args: QualityCommand, trainer: &dyn Trainer) -> Outcome {
    quality::end_with_keeper(args.token.clone())?;
    let (run_dir, run) = open_run(&args.run_dir, args.rung)?;
    let device = args.device.parse().unwrap_or_default();
    let QualityCommand { step, rung, attempt, token, .. } = args;
    let report = quality::measure(&QualityArgs { run_dir, step, rung, attempt, token, device }, &run, trainer);
    print!("{}", line::encode(&report)?);
    Ok(0)
}

pub fn help(helper: &Helper) -> ExitCode {
    match helper {
        Helper::ExecCommand { argv } => return ExitCode::from(harness::exec_command(argv)),
        Helper::NodeCommand => return ExitCode::from(harness::host_command()),
        Helper::HoldOutput => {
            // Without it, the command would lose its reader at the limit.
            let _ = outlive_file_limit();
            harness::hold_output();
        }
        Helper::GuardCommand { token } => harness::guard_command(token),
    }
    ExitCode::SUCCESS
}

/// Reports whether weights that do not fit may be reinitialized: the newest checkpoint was written by another run, or by
/// a rung with another model shape, and one of the two rungs sets `warm_start: true`.
fn may_migrate(dir: &RunDir, run: &Run, rung: usize) -> bool {
    let newest = checkpoint::list(dir.path()).into_iter().next();
    let state = newest.and_then(|entry| read(&entry.path.join("state.json"), Limit::Record).ok());
    let state: Option<TrainState> = state.and_then(|text| serde_json::from_slice(&text).ok());
    let rungs = &run.rungs;
    let Some(TrainState { rung: from, is_foreign, .. }) = state else { return false };
    rungs.get(from).is_some_and(|left| {
        let changes = class::compare_presets(&run.preset_tree(from), &run.preset_tree(rung));
        let may_differ = is_foreign || class::worst_class(&changes) == Class::C;
        may_differ && (left.warm_start || rungs[rung].warm_start)
    })
}

pub fn keeper(args: &KeeperArgs) -> Outcome {
    outlive_file_limit()?;
    if !args.detach && !args.parent {
        return run_keeper(args);
    }
    let run = RunDir::open(&args.run_dir)?;
    let launch = args.launch();
    if args.detach {
        detach::leave_terminal(&run, launch.as_ref(), args.asked().as_ref())?;
        return Ok(0);
    }
    Ok(keeper_parent::bring_back(&run, launch.as_ref(), args.asked().as_ref(), args.lifetime())?)
}

/// Runs the keeper. An error that prevents it goes to the parent as a line on stdout, which may be a pipe
/// without a reader.
fn run_keeper(args: &KeeperArgs) -> Outcome {
    let keeping = keeper::KeeperArgs {
        run_dir: args.run_dir.clone(),
        launch: args.launch(),
        asked: args.asked(),
        lifetime: args.lifetime(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| keeper::KeeperError::Io { what: "the keeper's runtime".to_owned(), source });
    let outcome = runtime.and_then(|runtime| {
        let outcome = runtime.block_on(keeper::keep_run(keeping));
        runtime.shutdown_background();
        outcome
    });
    outcome.map_err(|error| {
        let word = error.last_word();
        if let Ok(line) = line::encode(&word) {
            let _ = io::stdout().write_all(line.as_bytes());
        }
        Failure::new(word.code, word.why)
    })
}

pub fn probe(args: &ProbeArgs) -> ExitCode {
    let probing = crate::probe::ProbeArgs {
        run_dir: args.run_dir.clone(),
        interval: Duration::from_millis(args.interval_ms),
        gpu: args.gpu,
        once: args.once,
        list: args.list,
    };
    crate::probe::run(&probing)
}
