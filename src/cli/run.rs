//! `run`: checks the start, starts the keeper, follows the run.

use super::bad_value::parse_override;
use super::devices::{Sharing, worker_device};
use super::environment::NextStart;
use super::first_checkpoint::{self, FirstCheckpoint};
use super::headless::JobSignals;
use super::job::{self, JobName};
use super::occupied::{self, Answer};
use super::preflight::{Cleared, Preflight, Start};
use super::trust::{self, Trust};
use super::typed_run::{sections_of_profile, typed_run};
use super::{Failure, Faults, Outcome, attach, client, climb_plan, find_run, headless, prepare, say};
use crate::config::command::invocation::is_script;
use crate::config::run::{Run, Source};
use crate::config::typed::{nearest, suggest};
use crate::format::bytes;
use crate::keeper::{Launch, detach};
use crate::protocol::claim::ClaimRequest;
use crate::shipped;
use crate::store::checkpoint;
use crate::store::command_line::record_command_line;
use crate::store::disk;
use crate::store::run_dir::RunDir;
use crate::store::runs_directories::RunsDirectories;
use crate::store::writer::Writer;
use crate::trainer::program::settle_program;
use crate::trainer::{OnDevice, Trainer};
use crate::untrusted::file::{self, Limit, ReadError};
use crate::untrusted::text;
use clap::Args;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A run file, or one that ships inside: digits (the default), pictures, text, lora, finetune,
    /// stable, sizes, cifar10, search, command
    #[arg(value_name = "CONFIG")]
    pub config: Option<PathBuf>,
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

/// Loads a run file, or a shipped one of that name, for training on `device`.
pub fn load_run_file(
    config: Option<&Path>,
    overrides: &[(String, String)],
    device: &str,
    trainer: &dyn Trainer,
) -> Result<Run, Failure> {
    let path = config.unwrap_or(Path::new("digits"));
    if is_script(path) {
        let shown = text::path(path);
        let fix = format!(
            "start it with `downshift run -- python {shown}`, or propose a run file with `downshift init -- python {shown}`"
        );
        return Err(Failure::new(2, format!("`{shown}` is a script, not a run file; {fix}")));
    }
    let (name, text, base) = match file::read_text(path, Limit::Handwritten) {
        Ok(text) => {
            let absolute = path.canonicalize()?;
            (text::path(path), text, absolute.parent().map(Path::to_owned).unwrap_or_default())
        }
        // A folder of pictures may have the name of a shipped run file.
        Err(error @ (ReadError::Kind(_) | ReadError::TooLarge { .. }))
            if !path.is_dir() || shipped::run_file(path).is_none() =>
        {
            let pictures = "; to train on a folder of pictures, begin with `downshift init pictures`";
            let has_folders = || path.read_dir().is_ok_and(|all| all.flatten().any(|entry| entry.path().is_dir()));
            let of_folder = || has_folders().then(|| pictures.to_owned());
            let meant = run_file_of_name(path).map(|meant| format!("; did you mean `{meant}`?")).or_else(of_folder);
            return Err(Failure::config(format!("{}: {error}{}", text::path(path), meant.unwrap_or_default())));
        }
        Err(ReadError::NotText { line }) => return Err(no_text(path, line)),
        Err(error) => {
            let Some((name, text)) = shipped::run_file(path) else {
                let (names, shown) = (shipped::names(), text::path(path));
                let shipped = || nearest(&shown, &names).map(str::to_owned);
                let meant = run_file_of_name(path).or_else(shipped).or_else(|| run_file_beside(path));
                let meant = meant.map(|name| format!("did you mean `{name}`? Otherwise "));
                let fix = format!("give the path of a run file, or one that ships inside: {}", names.join(", "));
                return Err(Failure::new(2, format!("{shown}: {error}; {}{fix}", meant.unwrap_or_default())));
            };
            (name.to_owned(), text.to_owned(), std::env::current_dir()?)
        }
    };
    let source = Source { file: &name, text: &text, base: &base, overrides };
    let tasks = OnDevice::new(trainer, device);
    Run::read(&source, &tasks).map_err(|refusal| Failure::config(format!("{}:\n{refusal}", refusal.subject())))
}

/// Refuses the name of a run in place of a run file.
fn refuse_run(config: &Path, runs: &Path) -> Result<(), Failure> {
    if config.is_file() || shipped::run_file(config).is_some() {
        return Ok(());
    }
    let found = config.to_str().and_then(|name| RunDir::find(runs, Some(name)).ok());
    // Of a name, a prefix is enough for other commands; here it may be a misspelt run file.
    let Some(run) = found.filter(|run| config.is_dir() || config == Path::new(&run.name())) else { return Ok(()) };
    let (resume, anew) = (run.command("resume"), run.file("run.yaml"));
    let ways = format!("`{resume}` continues it, `downshift run {}` starts another like it", text::path(&anew));
    Err(Failure::new(2, format!("{} is a run, not a run file; {ways}", run.name())))
}

/// Returns the run file with this name and the ending that was left out.
fn run_file_of_name(path: &Path) -> Option<String> {
    let file = path.with_added_extension("yaml");
    file.is_file().then(|| text::path(&file))
}

/// Says that a shipped run file is not the one of that name in this folder.
pub fn note_same_name(config: &Path) {
    if !config.is_file()
        && shipped::run_file(config).is_some()
        && let Some(here) = run_file_of_name(config)
    {
        say(&format!("`{}` is the run file that ships; the one in this folder is `{here}`", text::path(config)));
    }
}

/// Returns the run file in the same folder whose name was probably meant.
fn run_file_beside(missing: &Path) -> Option<String> {
    let folder = missing.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_run_file = |name: &String| Path::new(name).extension().is_some_and(|end| end == "yaml" || end == "yml");
    let names: Vec<String> = names.filter(is_run_file).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let meant = nearest(missing.file_name()?.to_str()?, &known)?;
    Some(text::path(&missing.with_file_name(meant)))
}

/// Reports a run file that is not UTF-8, with the line of the first bad byte.
fn no_text(path: &Path, line: usize) -> Failure {
    Failure::config(format!("{}:{line}: not UTF-8 text; save the file as UTF-8", text::path(path)))
}

pub fn run(args: &RunArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    if args.command.is_empty() {
        if std::env::args_os().next_back().is_some_and(|word| word == "--") {
            return Err(Failure::new(
                2,
                "no command follows `--`; write it as you would type it: downshift run -- python train.py",
            ));
        }
        return begin(args.config.as_deref(), &args.options, runs, trainer);
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
    start(run, options, runs, trainer, signals)
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
    let device = &options.overrides.device;
    let first = chosen_rung(&run, options)?;
    let begins_on = first.unwrap_or_else(|| run.first_rung());
    let from = options.from.as_deref().map(|from| FirstCheckpoint::named(from, &run, runs)).transpose()?;
    let after = options.after.as_deref().map(|name| find_run(runs, Some(name))).transpose()?;
    let device = worker_device(&run, device)?;
    let nodes = if options.job.is_some() { job::count_nodes()? } else { 1 };
    let sharing = Sharing { wait_for_card: options.sharing.wait_for_card || after.is_some(), ..options.sharing };
    let headless = options.headless || options.job.is_some();
    let shares = sharing.another || sharing.wait_for_card || (!headless && has_terminal());
    let start = Start { device: &device, runs, trainer, approved: true, nodes, shares, can_wait: true };
    let Cleared { run, prospect, devices } = Preflight::of(Ok(run), start).clear()?;
    if let Some(from) = &from {
        from.check(&run, begins_on, trainer)?;
    }
    let claim = match occupied::settle_devices(&devices, &sharing, headless, (runs, None))? {
        Answer::Start(claim) => ClaimRequest { after: after.map(|run| run.path().to_owned()), ..claim },
        Answer::Attach(other) => return attach::open(&other),
    };
    let from = match from {
        Some(from) => Some(from),
        None => first_checkpoint::settle(&run, begins_on, headless, runs)?,
    };
    if let (Some(job), Some(signals)) = (&options.job, &mut signals)
        && let Some(signal) = signals.arrived()
    {
        return job::interrupted_early(signal, job.as_str());
    }
    let dir = match &options.job {
        Some(job) => RunDir::create_named(runs, job.as_str(), &run)?,
        None => RunDir::create(runs, &run)?,
    };
    record_command_line(&dir);
    prepare::hand_over(&prospect.fingerprint, dir.path());
    if let Some(from) = from {
        from.give_to(&dir, &run, begins_on)?;
    }
    if let Some(first) = first {
        // The keeper reads its rung from this fact, also after a restart.
        Writer::open(&dir.file("run.db"))?.put_fact("rung", &first)?;
    }
    let launch = Launch { device, claim: Some(claim), inject: options.inject.0.clone() };
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
