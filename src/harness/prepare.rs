//! Prepares the start of a command: its checkpoint, its files, and the socket for the next keeper.

use super::activity::Activity;
use super::attempt_dir::claim_attempt_dir;
use super::checkpoints::CheckpointWatch;
use super::companion::{Companion, base_state};
use super::companion_link::NewsQueue;
use super::container_state::ContainerState;
use super::copies::{Copies, write_files};
use super::counting::{recall_counting, recall_length};
use super::earlier_outputs::keep_before;
use super::foreign::{self, Foreign};
use super::hello::hello;
use super::holder::Holder;
use super::keeper_link::{FromKeeper, KeeperLink};
use super::metric_files::{MetricFiles, describe_pattern};
use super::nodes::Nodes;
use super::output_log::OutputLog;
use super::progress::CommandProgress;
use super::ranks::{RankFailures, find_obstacles};
use super::resume_check::ResumeCheck;
use super::resume_point::{Chosen, choose_checkpoint, restore_original};
use super::run_loop::{Harness, Life, Report};
use super::save_timer::SaveTimer;
use super::signals::Signals;
use super::standby::Standby;
use super::terminal::{Chunk, read_output};
use super::{ATTEMPT_DIR_VARIABLE, HarnessArgs, HarnessError, Purpose, launch, setup, stderr_file};
use crate::config::command::nodes::NodePlace;
use crate::config::command::{AttemptContext, CommandLaunch, names_rest, resolve_launch, resolve_pattern};
use crate::log_metrics::{OutputReader, Pattern};
use crate::process_tree::{Family, Process};
use crate::protocol::device::visible_devices;
use crate::protocol::node::{NodeClaim, NodeStart};
use crate::protocol::worker::{Event, Failed, FailureClass, Hello, Level};
use crate::recipe::class;
use crate::store::checkpoint;
use crate::store::foreign::ForeignProcess;
use crate::store::lock::Lock;
use crate::store::run_dir_watch::RunDirWatch;
use crate::store::worker_log::BoundedLog;
use crate::store::{owners, socket_place};
use crate::untrusted::glob::Glob;
use rustix::process::{getpid, set_child_subreaper};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

/// The running command and its resources.
pub(super) struct Running {
    pub(super) process: Process,
    pub(super) family: Family,
    foreign: Option<Foreign>,
    output: Option<mpsc::Receiver<Chunk>>,
    holder: Option<Holder>,
    /// The files outside the run directory that were written for it.
    copies: Copies,
}

/// A run that no earlier attempt trains any more.
struct Claimed {
    lock: Lock,
    /// The process that the run adopted.
    foreign: Option<ForeignProcess>,
    others: Nodes,
    queue: NewsQueue,
}

/// Takes the run on every node. Until then, an earlier attempt may still write a checkpoint.
async fn claim(args: &HarnessArgs) -> Result<Claimed, HarnessError> {
    let last = owners::worker_record(&args.run_dir).and_then(|record| record.token);
    let lock = owners::become_worker(args.run_dir.path())?;
    // Orphans are reparented to this process instead of to init.
    set_child_subreaper(Some(getpid())).map_err(|error| HarnessError::of("orphaned processes")(error.into()))?;
    let foreign = ForeignProcess::of_attempt(&args.run_dir, args.attempt);
    let queue = NewsQueue::new();
    if foreign.is_some() {
        return Ok(Claimed { lock, foreign, others: Nodes::none(), queue });
    }
    let others = claim_nodes(args, &queue, last).await?;
    checkpoint::clean(args.run_dir.path());
    Ok(Claimed { lock, foreign, others, queue })
}

/// Starts the command, or lets the standby begin, and announces it to the keeper.
pub async fn begin(args: HarnessArgs, standby: Option<Standby>) -> Result<Harness, HarnessError> {
    let Claimed { mut lock, foreign, mut others, queue } = claim(&args).await?;
    let mut notes = Vec::new();
    let (from, context) = or_report(choose_start(&args, foreign.is_some(), &mut notes)).await?;
    let watch = watch_checkpoints(&args, &context, &mut notes).transpose().map_err(HarnessError::of("adopted"))?;
    let checkpoints = watch.map(|watch| if foreign.is_none() { watch.settle() } else { watch });
    let files = args.spec.metrics.files.iter().map(|file| resolve_pattern(file, &args.preset, &context));
    let files = MetricFiles::begin(&files.collect::<Vec<_>>(), &args.spec.directory, &mut notes);
    let patterns = output_patterns(&args, &mut notes);
    let signals = Signals::listen().map_err(HarnessError::of("signals"))?;
    let listener = listen(&args, &mut lock, &mut notes);
    let mut link = KeeperLink::open(listener).map_err(HarnessError::of("the connection to the keeper"))?;
    let (reports, reported) = mpsc::unbounded_channel();
    // Whatever the command writes is younger.
    let now = Instant::now();
    let (running, companion) = if let Some(foreign) = foreign {
        (watch_process(&foreign, &args, reports.clone(), &mut notes)?, Companion::none(&args))
    } else {
        start_with_companion(&args, (&context, from.as_ref()), standby, (&mut others, queue), &mut notes)?
    };
    let resume_check = ResumeCheck::begin(&args, from.as_ref());
    let progress = progress_at(&args, context.step, &resume_check);
    let hello = hello(&args, &progress, from.as_ref());
    announce(&mut link, &hello, notes);
    Ok(Harness {
        activity: Activity::new(&running.family, args.silence, now),
        command: running.process,
        family: running.family,
        foreign: running.foreign,
        _until_the_end: (running.holder, running.copies),
        output: running.output,
        reader: OutputReader::new(&patterns)
            .resumed(resume_check.first_count(context.step))
            .recalling(recall_counting(&args.run_dir)),
        paused: false,
        printed: Duration::ZERO,
        output_log: OutputLog::default(),
        log: BoundedLog::new(stderr_file().map_err(HarnessError::of("worker.log"))?),
        files,
        checkpoints,
        progress,
        resume_check,
        companion,
        nodes: others,
        ranks: RankFailures::default(),
        hello,
        life: Life::Running,
        exit: None,
        signals,
        link,
        reports,
        reported,
        began: now,
        adopting: false,
        waiting: Vec::new(),
        touched: None,
        run_dir: RunDirWatch::new(args.run_dir.path()),
        args,
        lock,
    })
}

/// Chooses the checkpoint of the start, and puts it where the command looks for it; one that runs already has its own.
fn choose_start(
    args: &HarnessArgs,
    runs: bool,
    notes: &mut Vec<String>,
) -> Result<(Option<Chosen>, AttemptContext), HarnessError> {
    let from = choose_checkpoint(args, notes)?;
    let context = context_of(args, from.as_ref());
    if context.checkpoint.is_some() && context.length.is_none() && names_rest(&args.spec) {
        return Err(HarnessError::UnknownLength);
    }
    if let Some(from) = from.as_ref().and_then(Chosen::script).filter(|_| !runs) {
        restore_original(args, from, notes)?;
        notes.extend(keep_before(args));
    }
    Ok((from, context))
}

fn announce(link: &mut KeeperLink, hello: &Hello, notes: Vec<String>) {
    link.send(&Event::Hello(hello.clone()));
    for text in notes {
        link.send(&Event::Note { level: Level::Warn, text });
    }
}

/// Note about an adopted process whose output goes nowhere that is known.
const UNSEEN: &str = "the steps and losses of this process are not seen, only its checkpoints: `downshift adopt` reads them from the file \
                      that `--log` names, or from the tmux session that `--session` names";

/// Starts the command, with a companion where one can be prepared.
fn start_with_companion(
    args: &HarnessArgs,
    (context, from): (&AttemptContext, Option<&Chosen>),
    standby: Option<Standby>,
    (others, queue): (&mut Nodes, NewsQueue),
    notes: &mut Vec<String>,
) -> Result<(Running, Companion), HarnessError> {
    let timer = SaveTimer::new(setup::save_interval(args), args.faults);
    notes.extend(claim_attempt_dir(args, context)?);
    let prepared = setup::prepare(args, context, from, &timer, queue, notes);
    let launch = launch_of(args, context, prepared.as_ref().map(|prepared| &prepared.variables));
    notes.extend(find_obstacles(&launch, &args.device));
    let copies = write_files(&launch.files, context, notes)?;
    launch::create_outputs(&launch, &context.run_dir).map_err(HarnessError::of("the folder for outputs"))?;
    let running = match standby.and_then(|standby| standby.begin(&launch)) {
        Some(running) => running,
        None => start_command(args, &launch)?,
    };
    begin_on_nodes(args, context, others, prepared.as_ref());
    let state = ContainerState::new(base_state(args, from));
    Ok((
        Running { copies, ..running },
        Companion::new(prepared.map(|prepared| (prepared.link, prepared.setup)), state, timer),
    ))
}

/// Claims the other nodes of the job. `last` is the token of the last attempt.
async fn claim_nodes(args: &HarnessArgs, queue: &NewsQueue, last: Option<String>) -> Result<Nodes, HarnessError> {
    let claimed = Nodes::claim(&args.nodes, &args.token, &queue.news, |node| NodeClaim {
        build: env!("CARGO_PKG_VERSION").to_owned(),
        node,
        attempt: args.attempt,
        run_dir: args.run_dir.path().to_owned(),
        token: format!("{}-node-{node}", args.token),
    });
    let nodes = claimed.await;
    if let Err(HarnessError::NotReady(failure)) = &nodes {
        report_failure(failure.to_failed()).await;
    }
    let nodes = nodes?;
    if let Some(last) = last {
        nodes.kill_steps_of(&last);
    }
    Ok(nodes)
}

/// Tells the keeper why no checkpoint can be used.
async fn or_report<T>(found: Result<T, HarnessError>) -> Result<T, HarnessError> {
    if let Err(error) = &found {
        let message = error.to_string();
        let class = FailureClass::Checkpoint;
        report_failure(Failed { class, message, step: None, thread: None, injected: false }).await;
    }
    found
}

/// Tells the keeper why nothing is started.
async fn report_failure(failed: Failed) {
    if let Ok(mut link) = KeeperLink::open(None) {
        link.send(&Event::Failed(failed));
        while matches!(link.deliver().await, Some(FromKeeper::Order(_))) {}
    }
}

/// Starts the parts of the command on the other nodes of the job.
fn begin_on_nodes(args: &HarnessArgs, context: &AttemptContext, nodes: &mut Nodes, prepared: Option<&setup::Prepared>) {
    nodes.begin(|node| {
        let place = NodePlace { node, ..context.place.clone() };
        let launch = launch_of(args, &AttemptContext { place, ..context.clone() }, None);
        NodeStart {
            argv: launch.argv,
            directory: launch.directory,
            environment: launch.environment,
            terminal: args.spec.terminal,
            silence_ms: u64::try_from(args.silence.as_millis()).unwrap_or(u64::MAX),
            setup: prepared.map(|prepared| Box::new(prepared.setup.setup().clone())),
        }
    });
}

/// Returns the progress of a command that continues after a step.
fn progress_at(args: &HarnessArgs, step: u64, resume: &ResumeCheck) -> CommandProgress {
    let (units, micro_batches, total) = size_of(args);
    let total = total.map(|total| resume.total_on_clock(total));
    // A script that starts over counts from 1 again; a run shows only what is new, a trial has to see it.
    let before = if args.purpose == Purpose::Trial { 0 } else { step };
    let epochs = args.preset.tree().pointer("/training/epochs").and_then(serde_json::Value::as_u64);
    CommandProgress::new(before, units, micro_batches, total).of_epochs(epochs)
}

fn watch_process(
    adopted: &ForeignProcess,
    args: &HarnessArgs,
    reports: mpsc::UnboundedSender<Report>,
    notes: &mut Vec<String>,
) -> Result<Running, HarnessError> {
    let (process, foreign) = foreign::watch(adopted, reports).map_err(HarnessError::of("the adopted process"))?;
    if foreign.is_unseen && args.spec.metrics.files.is_empty() {
        notes.push(UNSEEN.to_owned());
    }
    let family = Family::Adopted(adopted.identity.pid);
    Ok(Running { process, family, foreign: Some(foreign), output: None, holder: None, copies: Copies::default() })
}

/// Returns what is started: the run file, the rung and the attempt, with the variables of downshift.
pub(super) fn launch_of(
    args: &HarnessArgs,
    context: &AttemptContext,
    companion: Option<&setup::Variables>,
) -> CommandLaunch {
    let mut launch = resolve_launch(&args.spec, &args.preset, context);
    let attempt_dir = || context.attempt_dir.clone().into_os_string();
    launch.environment.entry(ATTEMPT_DIR_VARIABLE.to_owned()).or_insert_with(attempt_dir);
    if let Some(companion) = companion {
        companion.add_to(&mut launch);
    }
    let cards = visible_devices(&args.device.parse().unwrap_or_default());
    launch.environment.extend(cards.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
    launch
}

pub(super) fn start_command(args: &HarnessArgs, launch: &CommandLaunch) -> Result<Running, HarnessError> {
    let log = stderr_file().map_err(HarnessError::of("worker.log"))?;
    let started = launch::start(launch, &args.token, args.spec.terminal, log)?;
    Ok(Running {
        process: started.process,
        family: Family::Attempt { token: args.token.clone(), root: std::process::id() },
        foreign: None,
        output: Some(read_output(started.output).map_err(HarnessError::of("the reader of the output"))?),
        holder: Some(started.holder),
        copies: Copies::default(),
    })
}

pub(super) fn watch_checkpoints(
    args: &HarnessArgs,
    context: &AttemptContext,
    notes: &mut Vec<String>,
) -> Option<io::Result<CheckpointWatch>> {
    let spec = args.spec.checkpoints.as_ref().filter(|_| args.purpose != Purpose::Measurement)?;
    let pattern = resolve_pattern(&spec.pattern, &args.preset, context);
    match Glob::parse(&pattern) {
        Ok(glob) => {
            let begun_ns =
                ForeignProcess::of_attempt(&args.run_dir, args.attempt).map(|process| process.identity.started_ns());
            let (complete, directory) = (spec.complete.as_deref(), &args.spec.directory);
            Some(CheckpointWatch::begin(glob, complete, directory, args.run_dir.path(), begun_ns))
        }
        Err(error) => {
            let note = describe_pattern("checkpoints.match", &pattern, &error);
            // An attempt that resumes looks twice.
            if !notes.contains(&note) {
                notes.push(note);
            }
            None
        }
    }
}

/// Compiles the patterns for lines of output. `check` refuses most invalid ones, but a stored run may hold others.
pub(super) fn output_patterns(args: &HarnessArgs, notes: &mut Vec<String>) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for text in &args.spec.metrics.patterns {
        match Pattern::new(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => notes.push(describe_pattern("metrics.patterns", text, &error)),
        }
    }
    patterns
}

pub(super) fn context_of(args: &HarnessArgs, from: Option<&Chosen>) -> AttemptContext {
    let run_dir = args.run_dir.path().to_owned();
    AttemptContext {
        attempt_dir: run_dir.join("attempts").join(args.attempt.to_string()),
        run_dir,
        rung_name: args.rung_name.clone(),
        attempt: args.attempt,
        checkpoint: from.and_then(Chosen::script).map(|script| script.path.clone()),
        original: from.and_then(Chosen::script).map(|script| script.original().path),
        length: size_of(args).2.or_else(|| recall_length(&args.run_dir)),
        step: from.map_or(0, Chosen::step),
        place: NodePlace { node: 0, nodes: args.nodes.count(), head: args.nodes.head().to_owned(), port: args.port },
    }
}

/// Returns the units in a step, the micro-batches in a step, and the number of steps, as far as the run file says.
pub(super) fn size_of(args: &HarnessArgs) -> (u64, u32, Option<u64>) {
    let knobs = args.preset.tree();
    let knob = |path: &str| knobs.pointer(path).and_then(serde_json::Value::as_u64);
    let times = knob("/training/accumulation").unwrap_or(1);
    (class::units_per_step(&knobs), u32::try_from(times).unwrap_or(u32::MAX), knob("/training/steps"))
}

/// Opens the socket for later keepers, and names it in the lock file. The command also runs without one; a measurement
/// and a trial have none.
fn listen(args: &HarnessArgs, lock: &mut Lock, notes: &mut Vec<String>) -> Option<UnixListener> {
    let bind = |path: PathBuf| {
        let _ = fs::remove_file(&path);
        Ok((UnixListener::bind(&path)?, path))
    };
    let bound = (!args.purpose.is_temporary()).then(|| socket_place::prepare_harness(&args.run_dir).and_then(bind));
    let (listener, path) = match bound {
        None => (None, None),
        Some(Ok((listener, path))) => (Some(listener), Some(path)),
        Some(Err(error)) => {
            notes.push(format!("no other keeper can take over this command: {error}"));
            (None, None)
        }
    };
    let named = lock.update(|record| {
        record.socket = path;
        (record.attempt, record.token) = (Some(args.attempt), Some(args.token.clone()));
    });
    if let Err(error) = named {
        notes.push(format!("worker.lock cannot be written: {error}"));
    }
    listener
}
