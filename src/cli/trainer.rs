//! The trainer interface of the command line. A build without a trainer (`--no-default-features`) still
//! has the cockpit, the keeper and every command that reads runs.

use crate::config::knobs::{Precision, Preset, Section, Training};
use crate::config::problem::Problem;
use crate::config::run::{AsWritten, Run, TaskSections};
use crate::keeper::worker_process::WORKER_VARIABLE;
use crate::protocol::inject::Inject;
use crate::protocol::plan::{Foreseen, Site};
use crate::protocol::worker::Eval;
use crate::recipe::interval::Faults;
use crate::recipe::leave_out::LeaveOut;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// A trainer, or its absence.
pub trait Trainer: TaskSections {
    /// Becomes the worker; returns only its exit code.
    fn work(&self, order: WorkOrder) -> u8;

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
    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)>;

    /// Checks that the inputs of a fresh run exist and fit, without reading them. A run that has begun no
    /// longer needs them.
    ///
    /// # Errors
    /// Returns an error under the same conditions as [`Trainer::look_ahead`].
    fn examine(&self, _run: &Run) -> Result<(), (u8, String)> {
        Ok(())
    }

    /// Estimates the memory of each rung, or returns the reason why it is unknown.
    fn foresee(&self, run: &Run, _site: Site) -> Vec<Result<Foreseen, String>> {
        run.rungs.iter().map(|_| Err(NO_TRAINER.to_owned())).collect()
    }

    /// Does the same for a device that may be absent: leaves open what only the device could answer, and says so.
    ///
    /// # Errors
    /// Returns an error when the run cannot work there: the first problem found.
    fn consider(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)> {
        self.look_ahead(run, device)
    }

    /// Runs a small computation to test a device, and describes it.
    ///
    /// # Errors
    /// Returns an error and an exit code when the computation fails: 13 if there is nothing to test.
    fn self_test(&self, _device: &str) -> Result<String, (u8, String)> {
        Err((13, NO_TRAINER.to_owned()))
    }

    /// Measures checkpoints of a rung on the validation set, on the CPU, since the GPU may be busy.
    ///
    /// # Errors
    /// Returns an error as [`Trainer::look_ahead`] does. An error in one checkpoint is reported in its place.
    fn measure(
        &self,
        run: &Run,
        rung: usize,
        checkpoints: &[PathBuf],
    ) -> Result<Vec<Result<Eval, String>>, (u8, String)>;

    /// Converts a checkpoint's weights to the files of another program, `hf` or `peft`; returns their
    /// names and contents.
    ///
    /// # Errors
    /// Returns an error as [`Trainer::look_ahead`] does.
    fn export(&self, _run: &Run, _rung: usize, _weights: &[u8], _format: &str) -> Result<Files, (u8, String)> {
        Err((13, NO_TRAINER.to_owned()))
    }
}

/// Names and contents of files.
pub type Files = Vec<(String, Vec<u8>)>;

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
        self.trainer.names()
    }

    fn knows(&self, task: &str) -> bool {
        self.trainer.knows(task)
    }

    fn resolve(
        &self,
        task: &str,
        data: &Section,
        model: &Section,
        base: &Path,
    ) -> (Option<(Section, Section)>, Vec<Problem>) {
        self.trainer.resolve(task, data, model, base)
    }

    fn misfits(&self, task: &str, preset: &Preset) -> Vec<Problem> {
        // Counting reads the data, so only the first rung's samples are counted here. A rung whose model
        // cuts the data into other samples is checked before the start.
        let (first, samples) = self.first.get_or_init(|| (preset.clone(), self.trainer.samples(task, preset)));
        let alike = first.data == preset.data && first.model == preset.model;
        let batch = samples.filter(|_| alike).and_then(|samples| batch_misfit(&preset.training, samples));
        self.trainer.precision_misfit(preset.training.precision, self.device).into_iter().chain(batch).collect()
    }
}

/// Rejects a step larger than the data, which would leave micro-batches empty.
fn batch_misfit(training: &Training, samples: u64) -> Option<Problem> {
    let (micro, times) = (training.micro_batch, training.accumulation);
    let batch = micro.saturating_mul(times);
    (batch > samples).then(|| {
        let wrong = format!("{micro} × {times} are {batch} samples a step, and there are only {samples} to train on");
        Problem::at("training.micro_batch", wrong, format!("{} × 1 would work", micro.min(samples)))
    })
}

/// The arguments of a worker.
#[derive(Debug, Clone)]
pub struct WorkOrder {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The resolved run.
    pub run: Run,
    /// The rung.
    pub rung: usize,
    /// The attempt number.
    pub attempt: u64,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Fail if there is no checkpoint to continue from.
    pub require_checkpoint: bool,
    /// Continue from this checkpoint instead of the newest.
    pub from: Option<u64>,
    /// Counts of how workers of this run have died.
    pub faults: Faults,
    /// Parts of the data to skip.
    pub leave_out: LeaveOut,
    /// One loader thread, one batch of prefetch: the host has run out of memory before.
    pub lean: bool,
    /// Injected faults.
    pub inject: Vec<Inject>,
    /// Report the memory of each phase.
    pub measure: bool,
}

/// The result of looking ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prospect {
    /// The device to be used.
    pub device: String,
    /// Fingerprint of everything compiled kernels and tuning depend on; empty if nothing is compiled.
    pub fingerprint: String,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Training and validation samples, if the data could be counted.
    pub samples: Option<(usize, usize)>,
    /// Parameters, including frozen ones, if the model could be counted.
    pub parameters: Option<u64>,
}

#[cfg(feature = "train")]
mod registry {
    use super::{
        Eval, Files, Foreseen, PathBuf, Precision, Preset, Problem, Prospect, Run, Site, Trainer, WorkOrder,
        batch_misfit,
    };
    use crate::config::knobs::Loader;
    use crate::config::ladder::Rung;
    use crate::protocol::device::DeviceChoice;
    use crate::recipe::class::{self, Class};
    use crate::store::checkpoint;
    use crate::store::checkpoint::state::TrainState;
    use crate::train::device;
    use crate::train::registry::Registry;
    use crate::train::selftest;
    use crate::train::task::{DataError, Format};
    use crate::train::worker::{self, WorkerArgs};
    use crate::untrusted::file::{Limit, read};
    use std::fmt::Display;

    impl Trainer for Registry {
        fn work(&self, order: WorkOrder) -> u8 {
            let migrate = may_migrate(&order);
            let rung = &order.run.rungs[order.rung];
            let mut preset = rung.preset.clone();
            if order.lean {
                preset.training.loader = Loader { threads: 1, prefetch: 1 };
            }
            let args = WorkerArgs {
                run_dir: order.run_dir,
                rung: order.rung,
                rung_name: rung.name.clone(),
                attempt: order.attempt,
                task: order.run.task.clone(),
                preset,
                skips_in_a_row: order.run.watch.skips_in_a_row,
                device: order.device.parse().unwrap_or_default(),
                from: order.from,
                require_checkpoint: order.require_checkpoint,
                migrate,
                faults: order.faults,
                leave_out: order.leave_out,
                inject: order.inject,
                measure: order.measure,
            };
            worker::main(&args, self)
        }

        fn precision_misfit(&self, precision: Precision, device: &str) -> Option<Problem> {
            let choice: DeviceChoice = device.parse().ok()?;
            device::choose(choice, Precision::F32).ok()?;
            let why = device::choose(choice, precision).err()?;
            Some(Problem::at("training.precision", why.trim_end_matches("; use f32"), "use f32"))
        }

        fn samples(&self, task: &str, preset: &Preset) -> Option<u64> {
            self.get(task)?.sizes(preset).ok().map(|sizes| sizes.training as u64)
        }

        fn foresee(&self, run: &Run, site: Site) -> Vec<Result<Foreseen, String>> {
            let presets: Vec<&Preset> = run.rungs.iter().map(|rung| &rung.preset).collect();
            let unknown = || presets.iter().map(|_| Err(format!("no task is called `{}`", run.task))).collect();
            self.get(&run.task).map_or_else(unknown, |task| task.foresee(&presets, site))
        }

        fn self_test(&self, device: &str) -> Result<String, (u8, String)> {
            selftest::run(device.parse().map_err(|why| (2, why))?)
        }

        fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)> {
            let choice: DeviceChoice = device.parse().map_err(|why| (2, why))?;
            let mut prospect = Prospect::default();
            for rung in &run.rungs {
                let precision = rung.preset.training.precision;
                let chosen = device::choose(choice, precision).map_err(|why| (13, named(rung, why)))?;
                (prospect.device, prospect.notes) = (chosen.name, chosen.notes);
                prospect.fingerprint = chosen.fingerprint;
            }
            count(self, run, prospect)
        }

        fn examine(&self, run: &Run) -> Result<(), (u8, String)> {
            let Some(task) = self.get(&run.task) else { return Ok(()) };
            task.examine(&run.rungs[0].preset).map_err(|error| (15, error.to_string()))
        }

        fn consider(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)> {
            let choice: DeviceChoice = device.parse().map_err(|why| (2, why))?;
            match (choice, device::choose(choice, Precision::F32)) {
                (DeviceChoice::Cuda(_), Err(why)) => {
                    let notes = vec![format!("{device} is not here, so nothing was tried on it: {why}")];
                    count(self, run, Prospect { device: device.to_owned(), notes, ..Prospect::default() })
                }
                _ => self.look_ahead(run, device),
            }
        }

        fn measure(
            &self,
            run: &Run,
            rung: usize,
            checkpoints: &[PathBuf],
        ) -> Result<Vec<Result<Eval, String>>, (u8, String)> {
            let task = self.get(&run.task).ok_or_else(|| (13, format!("no task is called `{}`", run.task)))?;
            let measured = task.measure(&run.rungs[rung].preset, checkpoints);
            measured.map_err(|failed| (failed.class.exit_code(), failed.message))
        }

        fn export(&self, run: &Run, rung: usize, weights: &[u8], format: &str) -> Result<Files, (u8, String)> {
            let task = self.get(&run.task).ok_or_else(|| (13, format!("no task is called `{}`", run.task)))?;
            let format = match format {
                "hf" => Format::HuggingFace,
                "peft" => Format::Peft,
                other => return Err((2, format!("`{other}` is no format of weights; choose hf or peft"))),
            };
            task.export(&run.rungs[rung].preset, weights, format).map_err(|why| (14, why))
        }
    }

    fn named(rung: &Rung, why: impl Display) -> String {
        format!("rung {}: {why}", rung.name)
    }

    /// Adds the amount of data and the model's size, and checks that every rung has samples for its
    /// batches and the parameters it names: otherwise its worker would fail in the middle of a shift.
    fn count(registry: &Registry, run: &Run, mut prospect: Prospect) -> Result<Prospect, (u8, String)> {
        let Some(task) = registry.get(&run.task) else { return Ok(prospect) };
        for (number, rung) in run.rungs.iter().enumerate() {
            let preset = &rung.preset;
            let name = |error: DataError| if number == 0 { error.to_string() } else { named(rung, error) };
            let sizes = task.sizes(preset).map_err(|error| (15, name(error)))?;
            let misfit = batch_misfit(&preset.training, sizes.training as u64).map(|misfit| misfit.to_string());
            if let Some(why) = misfit.or_else(|| task.check_groups(preset, &sizes.paths).err()) {
                return Err((13, named(rung, why)));
            }
            if number == 0 {
                prospect.samples = Some((sizes.training, sizes.validation));
                prospect.parameters = Some(sizes.parameters);
            }
        }
        Ok(prospect)
    }

    /// Reports whether weights that do not fit may be reinitialized: the newest checkpoint was written by
    /// a rung with another model shape, and one of the two sets `warm_start: true`.
    fn may_migrate(order: &WorkOrder) -> bool {
        let newest = checkpoint::list(&order.run_dir).into_iter().next();
        let state = newest.and_then(|entry| read(&entry.path.join("state.json"), Limit::Record).ok());
        let state: Option<TrainState> = state.and_then(|text| serde_json::from_slice(&text).ok());
        let rungs = &order.run.rungs;
        state.and_then(|state| Some((state.rung, rungs.get(state.rung)?))).is_some_and(|(from, left)| {
            let changes = class::compare(&order.run.preset_tree(from), &order.run.preset_tree(order.rung));
            class::gravest(&changes) == Class::C && (left.warm_start || rungs[order.rung].warm_start)
        })
    }
}

const NO_TRAINER: &str =
    "this downshift was built without a trainer; build it with the feature `train` (on by default)";

/// The trainer is an external program, named by [`WORKER_VARIABLE`], or absent.
impl Trainer for AsWritten {
    fn work(&self, _: WorkOrder) -> u8 {
        super::say(NO_TRAINER);
        13
    }

    fn look_ahead(&self, _: &Run, device: &str) -> Result<Prospect, (u8, String)> {
        if is_elsewhere() {
            // Only the device's name is known here.
            let fingerprint = super::plan::card_index(device).map_or_else(String::new, |_| device.to_owned());
            Ok(Prospect { device: device.to_owned(), fingerprint, ..Prospect::default() })
        } else {
            Err((13, NO_TRAINER.to_owned()))
        }
    }

    fn measure(&self, _: &Run, _: usize, _: &[PathBuf]) -> Result<Vec<Result<Eval, String>>, (u8, String)> {
        Err((13, NO_TRAINER.to_owned()))
    }
}

/// Reports whether an external program trains.
#[must_use]
pub fn is_elsewhere() -> bool {
    std::env::var_os(WORKER_VARIABLE).is_some()
}
