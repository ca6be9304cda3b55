//! The interface between the command line and a trainer. A build without one (`--no-default-features`)
//! still has the cockpit, the keeper, every command that reads runs, and runs whose task is a command.

pub mod command;
pub mod program;

use crate::config::knobs::{Precision, Preset, Training};
use crate::config::problem::Problem;
use crate::config::run::{AsWritten, OwnedSections, ResolvedSections, Run, TaskSections};
use crate::protocol::device::DeviceChoice;
use crate::protocol::inject::Inject;
use crate::protocol::metrics::Metrics;
use crate::protocol::plan::{MemoryEstimate, Site};
use crate::protocol::worker::Eval;
use crate::recipe::interval::Faults;
use crate::recipe::leave_out::LeaveOut;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Overrides the worker program; the replacement must speak the same contract.
pub const WORKER_VARIABLE: &str = "DOWNSHIFT_WORKER";

/// A trainer's refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The exit code that its worker would end with.
    pub code: u8,
    /// The problem and the fix, in a sentence.
    pub message: String,
}

impl Refusal {
    /// Builds a refusal.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A trainer, or its absence.
pub trait Trainer {
    /// Returns the checks of the sections that its tasks own.
    fn sections(&self) -> &dyn TaskSections;

    /// Checks that it has tasks of its own, beside commands.
    ///
    /// # Errors
    /// Returns an error in a build without a trainer.
    fn require_tasks(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Becomes the worker; returns only its exit code.
    ///
    /// # Errors
    /// Returns an error in a build without a trainer.
    fn work(&self, args: &WorkerArgs) -> Result<u8, Refusal>;

    /// Returns the reason why this precision cannot be trained on this device; none if it can, or if the
    /// device itself fails.
    fn precision_misfit(&self, _precision: Precision, _device: &str) -> Option<Problem> {
        None
    }

    /// Returns the number of training samples, if the data can be read.
    fn samples(&self, _task: &str, _preset: &Preset) -> Option<u64> {
        None
    }

    /// Checks the device and the data without starting anything: finds what would make the worker exit at
    /// once. The error has a sentence and the worker's exit code.
    ///
    /// # Errors
    /// Returns an error when the run cannot work there: the first problem found.
    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, Refusal>;

    /// Checks that the inputs of a fresh run exist and fit, without reading them. A run that has begun no
    /// longer needs them.
    ///
    /// # Errors
    /// Returns an error under the same conditions as [`Trainer::look_ahead`].
    fn examine(&self, _run: &Run) -> Result<(), Refusal> {
        Ok(())
    }

    /// Checks that a run can begin on this rung with a checkpoint, given by the names and contents of its files.
    ///
    /// # Errors
    /// Returns an error when its parameters or classes are not those of the rung's model.
    fn check_checkpoint(&self, _run: &Run, _rung: usize, _files: &BTreeMap<String, Vec<u8>>) -> Result<(), Refusal> {
        Ok(())
    }

    /// Returns why a run on this rung has no step left after a checkpoint, given by its state file; none if it has, or if that
    /// is not known.
    fn end_of_run(&self, _run: &Run, _rung: usize, _state: &[u8]) -> Option<String> {
        None
    }

    /// Estimates the memory of each rung, or returns the reason why it is unknown.
    fn estimate_memory(&self, run: &Run, _site: Site) -> Vec<Result<MemoryEstimate, NoAnswer>> {
        run.rungs.iter().map(|_| Err(NoAnswer::NoTrainer)).collect()
    }

    /// Does the same for a device that may be absent: leaves open what only the device could answer, and says so.
    ///
    /// # Errors
    /// Returns an error when the run cannot work there: the first problem found.
    fn consider(&self, run: &Run, device: &str) -> Result<Prospect, Refusal> {
        self.look_ahead(run, device)
    }

    /// Runs a small computation to test a device within this time, and describes it.
    ///
    /// # Errors
    /// Returns an error and an exit code when the computation fails: 13 if there is nothing to test.
    fn self_test(&self, _device: &str, _limit: Duration) -> Result<String, Refusal> {
        Err(Refusal::new(13, NO_TRAINER))
    }

    /// Measures checkpoints of a rung on the validation set, on the CPU, since the GPU may be busy.
    ///
    /// # Errors
    /// Returns an error as [`Trainer::look_ahead`] does. An error in one checkpoint is reported in its place.
    fn measure(&self, run: &Run, rung: usize, checkpoints: &[PathBuf]) -> Result<Evals, Refusal>;

    /// Measures the quality metrics of the run file on a checkpoint of a rung, on the CPU.
    ///
    /// # Errors
    /// Returns an error when the data or the checkpoint cannot be read, or the task has no such metric.
    fn measure_quality(&self, _run: &Run, _rung: usize, _checkpoint: &Path) -> Result<Metrics, Refusal> {
        Err(Refusal::new(13, NO_TRAINER))
    }

    /// Converts a checkpoint's weights to the files of another program, `hf`, `peft` or `genotype`; returns their
    /// names and contents.
    ///
    /// # Errors
    /// Returns an error as [`Trainer::look_ahead`] does.
    fn export(&self, _run: &Run, _rung: usize, _weights: &[u8], _format: &str) -> Result<Files, Refusal> {
        Err(Refusal::new(13, NO_TRAINER))
    }
}

/// Names and contents of files.
pub type Files = Vec<(String, Vec<u8>)>;

/// The evaluation of each checkpoint, or why it failed.
pub type Evals = Vec<Result<Eval, NoAnswer>>;

/// Reason why a trainer has no answer for one rung or one checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// A command brings its own code.
    #[error("the memory of a command is unknown before it has run; `plan --measure` starts it for a few steps")]
    Command,
    /// There is no trainer.
    #[error("{NO_TRAINER}")]
    NoTrainer,
    /// The registry has no such task.
    #[error("no task is called `{0}`")]
    UnknownTask(String),
    /// The trainer's own error.
    #[error(transparent)]
    Trainer(Box<dyn std::error::Error>),
}

/// A trainer that knows its target device. Anything a rung cannot do there is an error in the run file
/// like any other, reported together with the others at its position.
pub struct OnDevice<'a> {
    trainer: &'a dyn Trainer,
    device: &'a str,
    first: OnceCell<(Preset, Option<u64>)>,
}

impl<'a> OnDevice<'a> {
    /// Binds `trainer` to `device`.
    #[must_use]
    pub fn new(trainer: &'a dyn Trainer, device: &'a str) -> Self {
        Self { trainer, device, first: OnceCell::new() }
    }
}

impl TaskSections for OnDevice<'_> {
    fn names(&self) -> Vec<String> {
        self.trainer.sections().names()
    }

    fn knows(&self, task: &str) -> bool {
        self.trainer.sections().knows(task)
    }

    fn resolve(&self, task: &str, sections: OwnedSections<'_>) -> ResolvedSections {
        self.trainer.sections().resolve(task, sections)
    }

    fn eval_metrics(&self, task: &str) -> Option<&'static [&'static str]> {
        self.trainer.sections().eval_metrics(task)
    }

    fn quality_metrics(&self, task: &str) -> Option<&'static [&'static str]> {
        self.trainer.sections().quality_metrics(task)
    }

    fn misfits(&self, task: &str, preset: &Preset) -> Vec<Problem> {
        // Counting reads the data, so only the first rung's samples are counted here. A rung whose model
        // cuts the data into other samples is checked before the start.
        let (first, samples) = self.first.get_or_init(|| (preset.clone(), self.trainer.samples(task, preset)));
        let alike = first.data == preset.data && first.model == preset.model;
        let batch = samples.filter(|_| alike).and_then(|samples| batch_misfit(&preset.training, samples));
        let precision = self.trainer.precision_misfit(preset.training.precision, self.device);
        let own = self.trainer.sections().misfits(task, preset);
        precision.into_iter().chain(batch).chain(own).collect()
    }
}

/// Rejects a step larger than the data, which would leave micro-batches empty.
pub fn batch_misfit(training: &Training, samples: u64) -> Option<Problem> {
    let (micro, times) = (training.micro_batch, training.accumulation);
    let batch = micro.saturating_mul(times);
    (batch > samples).then(|| {
        let wrong = format!("{micro} × {times} are {batch} samples per step, but there are only {samples} to train on");
        Problem::at("training.micro_batch", wrong, format!("write {} × 1 or less", micro.min(samples)))
    })
}

/// The arguments of a worker.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct WorkerArgs {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The rung, 0 = fastest.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: String,
    /// The number of this attempt.
    pub attempt: u64,
    /// The name after `task:`.
    pub task: String,
    /// The rung's knobs, resolved.
    pub preset: Preset,
    /// Skipped steps in a row that end the worker.
    pub skips_in_a_row: u64,
    /// Whether to measure the layers at evaluations.
    pub layers: bool,
    /// The device to train on.
    pub device: DeviceChoice,
    /// The checkpoint to resume from, instead of the newest that verifies.
    pub from: Option<u64>,
    /// Whether to fail when there is no checkpoint to resume from.
    pub require_checkpoint: bool,
    /// Whether to take the matching parameters from a checkpoint of another model shape (`warm_start`).
    pub migrate: bool,
    /// Worker deaths of this run so far; `checkpoint.every: auto` depends on them.
    pub faults: Faults,
    /// Parts of the data to leave out.
    pub leave_out: LeaveOut,
    /// Faults to inject.
    pub inject: Vec<Inject>,
    /// Whether to report the memory of each phase.
    pub measure: bool,
}

/// The result of looking ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prospect {
    /// The device to be used.
    pub device: String,
    /// Memory of a GPU as its driver reports it, in bytes.
    pub memory_bytes: Option<u64>,
    /// Why this machine lacks the device, which was not checked then.
    pub missing: Option<String>,
    /// Fingerprint of everything compiled kernels and tuning depend on; empty if nothing is compiled.
    pub fingerprint: String,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Training and validation samples, if the data could be counted.
    pub samples: Option<(usize, usize)>,
    /// Parameters, including frozen ones, if the model could be counted.
    pub parameters: Option<u64>,
}

const NO_TRAINER: &str = "this downshift was built without a trainer: it keeps scripts, as in `downshift run -- python train.py`; for the built-in \
     tasks, install it with Cargo from a checkout (`cargo install --locked --path .`)";

/// The trainer is an external program, named by [`WORKER_VARIABLE`], or absent.
impl Trainer for AsWritten {
    fn sections(&self) -> &dyn TaskSections {
        self
    }

    fn require_tasks(&self) -> Result<(), Refusal> {
        if is_elsewhere() { Ok(()) } else { Err(Refusal::new(13, NO_TRAINER)) }
    }

    fn work(&self, _: &WorkerArgs) -> Result<u8, Refusal> {
        Err(Refusal::new(13, NO_TRAINER))
    }

    fn look_ahead(&self, _: &Run, device: &str) -> Result<Prospect, Refusal> {
        self.require_tasks()?;
        // Only the device's name is known here.
        let is_gpu = matches!(device.parse(), Ok(DeviceChoice::Cuda(_)));
        let fingerprint = if is_gpu { device.to_owned() } else { String::new() };
        Ok(Prospect { device: device.to_owned(), fingerprint, ..Prospect::default() })
    }

    fn measure(&self, _: &Run, _: usize, _: &[PathBuf]) -> Result<Evals, Refusal> {
        Err(Refusal::new(13, NO_TRAINER))
    }
}

/// Reports whether an external program trains.
#[must_use]
pub fn is_elsewhere() -> bool {
    std::env::var_os(WORKER_VARIABLE).is_some()
}
