//! What the command line needs of a trainer. A build without one (`--no-default-features`) still
//! has the cockpit, the keeper and every command that looks at runs.

use crate::config::knobs::Section;
use crate::config::problem::Problem;
use crate::config::run::{Run, TaskSections};
use crate::keeper::child::WORKER_VARIABLE;
use crate::protocol::inject::Inject;
use crate::protocol::worker::Eval;
use crate::recipe::interval::Faults;
use crate::recipe::leave_out::LeaveOut;
use std::path::{Path, PathBuf};

/// A trainer, or its absence.
pub trait Trainer: TaskSections {
    /// Becomes the worker; comes back only with an exit code.
    fn work(&self, order: WorkOrder) -> u8;

    /// Looks at the device and at the data, without starting anything: what would make the worker
    /// end at once. The error has a sentence and the exit code that the worker would end with.
    ///
    /// # Errors
    /// What cannot work.
    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)>;

    /// Measures checkpoints of a rung on the validation set, on the CPU: the card may be busy.
    ///
    /// # Errors
    /// What cannot work, as [`Trainer::look_ahead`]. What is wrong with one checkpoint is said in
    /// its place.
    fn measure(
        &self,
        run: &Run,
        rung: usize,
        checkpoints: &[PathBuf],
    ) -> Result<Vec<Result<Eval, String>>, (u8, String)>;
}

/// What a worker is told on its command line.
#[derive(Debug, Clone)]
pub struct WorkOrder {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The run as it was resolved.
    pub run: Run,
    /// The rung.
    pub rung: usize,
    /// Which life of a worker this is.
    pub attempt: u64,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Fail where there is no checkpoint to go on from.
    pub require_checkpoint: bool,
    /// Go on from this checkpoint rather than the newest.
    pub from: Option<u64>,
    /// How often workers of this run have died.
    pub faults: Faults,
    /// Parts of the data to leave out.
    pub leave_out: LeaveOut,
    /// One loader thread, one batch ahead: the host has run out of memory before.
    pub lean: bool,
    /// Faults on purpose.
    pub inject: Vec<Inject>,
}

/// What was seen by looking ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prospect {
    /// The device that would be used.
    pub device: String,
    /// What a person should know about it.
    pub notes: Vec<String>,
    /// Training and validation samples, where the data could be counted.
    pub samples: Option<(usize, usize)>,
    /// Trainable parameters, where the model could be counted.
    pub parameters: Option<u64>,
}

#[cfg(feature = "train")]
mod registry {
    use super::{Eval, PathBuf, Prospect, Run, Trainer, WorkOrder};
    use crate::config::knobs::{Loader, Training};
    use crate::protocol::device::DeviceChoice;
    use crate::recipe::class::{self, Class};
    use crate::store::checkpoint;
    use crate::store::checkpoint::state::TrainState;
    use crate::train::device;
    use crate::train::registry::Registry;
    use crate::train::worker::{self, WorkerArgs};

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
            };
            worker::main(&args, self)
        }

        fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)> {
            let choice: DeviceChoice = device.parse().map_err(|why| (2, why))?;
            let mut prospect = Prospect { device: String::new(), notes: Vec::new(), samples: None, parameters: None };
            for rung in &run.rungs {
                let precision = rung.preset.training.precision;
                let on_rung = |why: String| {
                    if rung.name == run.rungs[0].name { why } else { format!("rung {}: {why}", rung.name) }
                };
                let chosen = device::choose(choice, precision).map_err(|why| (13, on_rung(why)))?;
                (prospect.device, prospect.notes) = (chosen.name, chosen.notes);
            }
            let Some(task) = self.get(&run.task) else { return Ok(prospect) };
            let sizes = task.sizes(&run.rungs[0].preset).map_err(|error| (15, error.to_string()))?;
            prospect.samples = Some((sizes.training, sizes.validation));
            prospect.parameters = Some(sizes.parameters);
            for rung in &run.rungs {
                fits(&rung.name, &rung.preset.training, sizes.training as u64).map_err(|why| (13, why))?;
            }
            Ok(prospect)
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
    }

    /// A step larger than the data would leave micro-batches empty.
    fn fits(rung: &str, training: &Training, samples: u64) -> Result<(), String> {
        let (micro, times) = (training.micro_batch, training.accumulation);
        if micro * times <= samples {
            return Ok(());
        }
        Err(format!(
            "rung {rung}: training.micro_batch × training.accumulation = {micro} × {times} = {} samples a step, but \
             there are only {samples} training samples; {} × 1 would work",
            micro * times,
            micro.min(samples)
        ))
    }

    /// Whether what does not fit may start anew: the newest checkpoint was written by a rung of
    /// another model shape, and one of the two says `warm_start: true`.
    fn may_migrate(order: &WorkOrder) -> bool {
        let newest = checkpoint::list(&order.run_dir).into_iter().next();
        let state = newest.and_then(|entry| std::fs::read(entry.path.join("state.json")).ok());
        let state: Option<TrainState> = state.and_then(|text| serde_json::from_slice(&text).ok());
        let rungs = &order.run.rungs;
        state.and_then(|state| Some((state.rung, rungs.get(state.rung)?))).is_some_and(|(from, left)| {
            let changes = class::compare(&order.run.preset_tree(from), &order.run.preset_tree(order.rung));
            class::gravest(&changes) == Class::C && (left.warm_start || rungs[order.rung].warm_start)
        })
    }
}

/// The trainer is another program, which [`WORKER_VARIABLE`] names, or there is none: every task's
/// name and sections are taken as they stand.
#[derive(Debug, Default)]
pub struct Elsewhere;

const NO_TRAINER: &str =
    "this downshift was built without a trainer; build it with the feature `train` (on by default)";

impl TaskSections for Elsewhere {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn knows(&self, _: &str) -> bool {
        true
    }

    fn resolve(
        &self,
        _: &str,
        data: &Section,
        model: &Section,
        _: &Path,
    ) -> (Option<(Section, Section)>, Vec<Problem>) {
        (Some((data.clone(), model.clone())), Vec::new())
    }
}

impl Trainer for Elsewhere {
    fn work(&self, _: WorkOrder) -> u8 {
        super::say(NO_TRAINER);
        13
    }

    fn look_ahead(&self, _: &Run, device: &str) -> Result<Prospect, (u8, String)> {
        if is_elsewhere() {
            Ok(Prospect { device: device.to_owned(), notes: Vec::new(), samples: None, parameters: None })
        } else {
            Err((13, NO_TRAINER.to_owned()))
        }
    }

    fn measure(&self, _: &Run, _: usize, _: &[PathBuf]) -> Result<Vec<Result<Eval, String>>, (u8, String)> {
        Err((13, NO_TRAINER.to_owned()))
    }
}

/// Whether another program trains.
#[must_use]
pub fn is_elsewhere() -> bool {
    std::env::var_os(WORKER_VARIABLE).is_some()
}
