//! Commands, in front of the built-in trainer: a command brings its own code, so nothing about it is
//! compiled, planned or evaluated here.

use super::{Evals, Files, NoAnswer, Prospect, Refusal, Trainer, WorkerArgs};
use crate::config::knobs::{Precision, Preset};
use crate::config::problem::Problem;
use crate::config::run::{Run, TaskSections};
use crate::protocol::device::{DeviceChoice, UnknownDevice};
use crate::protocol::metrics::Metrics;
use crate::protocol::plan::{MemoryEstimate, Site};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A trainer that also knows commands.
pub struct WithCommands<'a> {
    /// The trainer for every other task.
    pub trainer: &'a dyn Trainer,
    /// Returns the name of the first GPU, if there is one.
    pub find_gpu: fn() -> Option<String>,
}

impl WithCommands<'_> {
    /// Returns the device that a command is started for.
    fn choose_device(&self, device: &str) -> Result<Prospect, Refusal> {
        let choice: DeviceChoice = device.parse().map_err(|error: UnknownDevice| Refusal::new(2, error.to_string()))?;
        if choice == DeviceChoice::Auto {
            let device = (self.find_gpu)().map_or_else(|| "cpu".to_owned(), |name| format!("cuda:0 {name}"));
            return Ok(Prospect { device, ..Prospect::default() });
        }
        let mut prospect = Prospect { device: choice.to_string(), ..Prospect::default() };
        if choice != DeviceChoice::Cpu && (self.find_gpu)().is_none() {
            prospect.notes.push(format!(
                "no NVIDIA GPU was found here, so {choice} may not exist, and the command may train on the CPU; `downshift \
                 doctor` says why"
            ));
        }
        Ok(prospect)
    }
}

impl Trainer for WithCommands<'_> {
    fn sections(&self) -> &dyn TaskSections {
        self.trainer.sections()
    }

    fn require_tasks(&self) -> Result<(), Refusal> {
        self.trainer.require_tasks()
    }

    fn work(&self, args: &WorkerArgs) -> Result<u8, Refusal> {
        self.trainer.work(args)
    }

    fn precision_misfit(&self, precision: Precision, device: &str) -> Option<Problem> {
        self.trainer.precision_misfit(precision, device)
    }

    fn samples(&self, task: &str, preset: &Preset) -> Option<u64> {
        self.trainer.samples(task, preset)
    }

    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, Refusal> {
        if run.command.is_some() { self.choose_device(device) } else { self.trainer.look_ahead(run, device) }
    }

    fn examine(&self, run: &Run) -> Result<(), Refusal> {
        if run.command.is_some() { Ok(()) } else { self.trainer.examine(run) }
    }

    fn check_checkpoint(&self, run: &Run, rung: usize, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Refusal> {
        if run.command.is_some() { Ok(()) } else { self.trainer.check_checkpoint(run, rung, files) }
    }

    fn end_of_run(&self, run: &Run, rung: usize, state: &[u8]) -> Option<String> {
        if run.command.is_some() { None } else { self.trainer.end_of_run(run, rung, state) }
    }

    fn estimate_memory(&self, run: &Run, site: Site) -> Vec<Result<MemoryEstimate, NoAnswer>> {
        if run.command.is_none() {
            return self.trainer.estimate_memory(run, site);
        }
        run.rungs.iter().map(|_| Err(NoAnswer::Command)).collect()
    }

    fn consider(&self, run: &Run, device: &str) -> Result<Prospect, Refusal> {
        if run.command.is_some() { self.choose_device(device) } else { self.trainer.consider(run, device) }
    }

    fn self_test(&self, device: &str, limit: Duration) -> Result<String, Refusal> {
        self.trainer.self_test(device, limit)
    }

    fn measure(&self, run: &Run, rung: usize, checkpoints: &[PathBuf]) -> Result<Evals, Refusal> {
        if run.command.is_some() {
            return Err(Refusal::new(13, "only the command's own script can evaluate its checkpoints"));
        }
        self.trainer.measure(run, rung, checkpoints)
    }

    fn measure_quality(&self, run: &Run, rung: usize, checkpoint: &Path) -> Result<Metrics, Refusal> {
        self.trainer.measure_quality(run, rung, checkpoint)
    }

    fn export(&self, run: &Run, rung: usize, weights: &[u8], format: &str) -> Result<Files, Refusal> {
        if run.command.is_some() {
            let text = "the weights of a command have the names of its own model, which no other format has; without \
                        --format they are written as they are";
            return Err(Refusal::new(13, text));
        }
        self.trainer.export(run, rung, weights, format)
    }
}
