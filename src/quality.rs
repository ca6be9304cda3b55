//! Measures the quality of one checkpoint, beside the training, and reports its numbers.
//!
//! ```text
//! keeper ── stdin, closed to end it ──▶ this process, of the lowest priority ── one line of JSON ──▶ keeper
//!                                        ├─ trainer: the metrics of the task, on the CPU
//!                                        └─ quality.command: prints numbers; ended with everything it started
//! ```
//! The keeper decides when, sets the time limit, and keeps the checkpoint in place meanwhile.

mod program;

use crate::config::command::AttemptContext;
use crate::config::command::launch::render_words;
use crate::config::quality::{Quality, Visible};
use crate::config::run::Run;
use crate::process_tree::background::{keeper_is_gone, yield_to_training};
use crate::process_tree::{Family, kill_all};
use crate::protocol::device::{DeviceChoice, visible_devices};
use crate::protocol::metrics::{Metrics, sanitize_name};
use crate::protocol::quality::QualityReport;
use crate::store::adopted::{self, AdoptError, Adopted};
use crate::store::checkpoint::{self, CheckpointError, STATE, state::TrainState};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::file::{self, Limit};
use program::Program;
use rustix::process::{getpid, set_child_subreaper};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{process, thread};

/// Time after which a killed process counts as unkillable.
const UNKILLABLE: Duration = Duration::from_secs(2);

/// The measurement to make.
#[derive(Debug)]
pub struct QualityArgs {
    /// The run directory.
    pub run_dir: RunDir,
    /// The step of the checkpoint.
    pub step: u64,
    /// The current rung, for a checkpoint that does not name its own.
    pub rung: usize,
    /// The attempt that wrote the checkpoint.
    pub attempt: u64,
    /// Marks the processes of the command.
    pub token: String,
    /// The devices of the run.
    pub device: DeviceChoice,
}

/// Ends this process, and the command with everything it started, as soon as the keeper closes stdin.
///
/// # Errors
/// Returns an error when the system refuses a thread.
pub fn end_with_keeper(token: String) -> io::Result<()> {
    yield_to_training();
    // Orphans of the command come to this process. Without it they are found by their token alone.
    let _ = set_child_subreaper(Some(getpid()));
    let watch = move || {
        while !keeper_is_gone() {}
        end_command(&token);
        process::exit(0);
    };
    thread::Builder::new().name("keeper".to_owned()).spawn(watch).map(drop)
}

/// Kills everything that the command started.
fn end_command(token: &str) {
    let family = Family::Attempt { token: token.to_owned(), root: process::id() };
    let _ = kill_all(&family, UNKILLABLE);
}

/// Measures a checkpoint. Every failure is in the report.
#[must_use]
pub fn measure(args: &QualityArgs, run: &Run, trainer: &dyn Trainer) -> QualityReport {
    let Some(quality) = &run.quality else { return QualityReport::failed("run.yaml has no section `quality`") };
    let found = match FoundCheckpoint::find(args.run_dir.path(), args.step) {
        Ok(found) => found,
        Err(error) => return QualityReport::unusable(error.to_string()),
    };
    let rung = found.rung().filter(|rung| *rung < run.rungs.len()).unwrap_or(args.rung);
    let mut report = QualityReport::default();
    if !quality.metrics.is_empty() {
        match trainer.measure_quality(run, rung, found.path()) {
            Ok(metrics) => add_finite(&mut report, metrics),
            Err(refusal) => report.failures.push(refusal.message),
        }
    }
    if !quality.command.is_empty() {
        match new_program(args, run, quality, &found, rung).run(&args.run_dir) {
            Ok(metrics) => add_finite(&mut report, metrics),
            Err(error) => report.failures.push(error.to_string()),
        }
    }
    // A script may overwrite or delete its files at any time.
    match found.verify_again() {
        Ok(()) => report,
        Err(error) => QualityReport::unusable(error.to_string()),
    }
}

/// Adds numbers; known ones stay. One that is not finite is a failure.
fn add_finite(report: &mut QualityReport, metrics: Metrics) {
    for (name, value) in metrics {
        let Some(name) = sanitize_name(&name) else { continue };
        if value.is_finite() {
            report.metrics.entry(name).or_insert(value);
        } else {
            report.failures.push(format!("{name} is {value}"));
        }
    }
}

fn new_program(args: &QualityArgs, run: &Run, quality: &Quality, found: &FoundCheckpoint, rung: usize) -> Program {
    let context = AttemptContext {
        run_dir: args.run_dir.path().to_owned(),
        rung_name: run.rungs[rung].name.clone(),
        attempt: args.attempt,
        checkpoint: Some(found.path().to_owned()),
        step: args.step,
        ..AttemptContext::default()
    };
    let preset = &run.rungs[rung].preset;
    let device = match quality.device {
        Visible::Cpu => DeviceChoice::Cpu,
        Visible::Run => args.device.clone(),
    };
    let devices = visible_devices(&device).into_iter().map(|(name, value)| (name.to_owned(), value));
    let variables = preset.environment.iter().filter(|_| run.command.is_some());
    let variables =
        variables.filter_map(|(name, text)| Some((name.clone(), render_words([text], preset, &context).pop()?)));
    Program {
        words: render_words(&quality.command, preset, &context),
        directory: quality.directory.clone().unwrap_or_else(|| args.run_dir.path().to_owned()),
        environment: variables.chain(devices).collect(),
        token: args.token.clone(),
    }
}

/// The checkpoint to measure, verified.
enum FoundCheckpoint {
    Container(PathBuf),
    Adopted(Adopted),
}

/// Reason why a checkpoint cannot be measured.
#[derive(Debug, thiserror::Error)]
enum FindError {
    #[error(transparent)]
    Container(#[from] CheckpointError),
    #[error(transparent)]
    Adopted(#[from] AdoptError),
}

impl FoundCheckpoint {
    fn find(run_dir: &Path, step: u64) -> Result<Self, FindError> {
        let container = run_dir.join(checkpoint::relative_path(step));
        if let Some(adopted) = adopted::find(run_dir, step).filter(|_| !container.is_dir()) {
            adopted.verify()?;
            return Ok(Self::Adopted(adopted));
        }
        checkpoint::verify(&container)?;
        Ok(Self::Container(container))
    }

    /// Checks that it is still the same. The keeper deletes no container meanwhile.
    fn verify_again(&self) -> Result<(), FindError> {
        match self {
            Self::Container(path) => checkpoint::manifest(path).map(drop).map_err(FindError::Container),
            Self::Adopted(adopted) => adopted.verify().map_err(FindError::Adopted),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Container(path) => path,
            Self::Adopted(adopted) => &adopted.path,
        }
    }

    /// Returns the rung that wrote it, which determines the shape of its model.
    fn rung(&self) -> Option<usize> {
        let Self::Container(path) = self else { return None };
        let text = file::read(&path.join(STATE), Limit::Record).ok()?;
        serde_json::from_slice::<TrainState>(&text).ok().map(|state| state.rung)
    }
}
