//! The built-in trainer: a registry of tasks on Burn.

use super::device::{self, DeviceError};
use super::first_checkpoint::{check_fit, check_length};
use super::registry::{AnyTask, Registry, Sizes};
use super::task::{DataError, Format};
use super::{self_test, worker};
use downshift_core::config::knobs::{Precision, Preset, Training};
use downshift_core::config::ladder::Rung;
use downshift_core::config::problem::Problem;
use downshift_core::config::run::{Run, TaskSections};
use downshift_core::protocol::device::{DeviceChoice, UnknownDevice};
use downshift_core::protocol::metrics::Metrics;
use downshift_core::protocol::plan::{MemoryEstimate, Site};
use downshift_core::recipe::batch::BatchPlan;
use downshift_core::store::checkpoint::STATE;
use downshift_core::trainer::{Evals, Files, NoAnswer, Prospect, Refusal, Trainer, WorkerArgs, batch_misfit};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

impl Trainer for Registry {
    fn sections(&self) -> &dyn TaskSections {
        self
    }

    fn work(&self, args: &WorkerArgs) -> Result<u8, Refusal> {
        worker::run_worker(args, self)
    }

    fn precision_misfit(&self, precision: Precision, device: &str) -> Option<Problem> {
        let choice: DeviceChoice = device.parse().ok()?;
        match device::choose_device(&choice, precision) {
            Err(DeviceError::PrecisionNeedsGpu(needs)) => {
                Some(Problem::at("training.precision", needs.to_string(), "use f32"))
            }
            _ => None,
        }
    }

    fn samples(&self, task: &str, preset: &Preset) -> Option<u64> {
        self.get(task)?.sizes(preset).ok().map(|sizes| sizes.training as u64)
    }

    fn estimate_memory(&self, run: &Run, site: Site) -> Vec<Result<MemoryEstimate, NoAnswer>> {
        let presets: Vec<&Preset> = run.rungs.iter().map(|rung| &rung.preset).collect();
        let unknown = || presets.iter().map(|_| Err(NoAnswer::UnknownTask(run.task.clone()))).collect();
        self.get(&run.task).map_or_else(unknown, |task| {
            let estimates = task.estimate_memory(&presets, site).into_iter();
            estimates.map(|estimate| estimate.map_err(|error| NoAnswer::Trainer(error.into()))).collect()
        })
    }

    fn self_test(&self, device: &str, limit: Duration) -> Result<String, Refusal> {
        let passed = self_test::run_self_test(&parse_device(device)?, limit);
        let passed = passed.map_err(|error| Refusal::new(self_test::FAILED, error.to_string()))?;
        Ok(passed.to_string())
    }

    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, Refusal> {
        let choice = parse_device(device)?;
        let mut prospect = Prospect::default();
        for rung in &run.rungs {
            let precision = rung.preset.training.precision;
            let chosen = device::choose_device(&choice, precision);
            let chosen = chosen.map_err(|why| Refusal::new(13, name_rung(rung, why)))?;
            prospect.notes = chosen.note().into_iter().collect();
            prospect.device = chosen.name;
            prospect.memory_bytes = chosen.memory_bytes;
            prospect.fingerprint = chosen.fingerprint;
        }
        count_data(self, run, prospect)
    }

    fn examine(&self, run: &Run) -> Result<(), Refusal> {
        let Some(task) = self.get(&run.task) else { return Ok(()) };
        task.check_pretrained(&run.rungs[0].preset).map_err(|error| Refusal::new(15, error.to_string()))
    }

    fn check_checkpoint(&self, run: &Run, rung: usize, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Refusal> {
        let Some(task) = self.get(&run.task) else { return Ok(()) };
        let preset = &run.rungs[rung].preset;
        let sizes = task.sizes(preset).map_err(|error| Refusal::new(15, error.to_string()))?;
        let plan = batch_plan(&sizes, &preset.training);
        // A rung with `warm_start` takes the weights that fit.
        let fit =
            if run.rungs[rung].warm_start { Ok(()) } else { check_fit(files, &sizes.shapes, sizes.classes.as_ref()) };
        fit.and_then(|()| check_length(files, &preset.training, &plan))
            .map_err(|misfit| Refusal::new(misfit.exit_code(), misfit.to_string()))
    }

    fn end_of_run(&self, run: &Run, rung: usize, state: &[u8]) -> Option<String> {
        let preset = &run.rungs[rung].preset;
        let plan = batch_plan(&self.get(&run.task)?.sizes(preset).ok()?, &preset.training);
        let files = BTreeMap::from([(STATE.to_owned(), state.to_vec())]);
        Some(check_length(&files, &preset.training, &plan).err()?.to_string())
    }

    fn consider(&self, run: &Run, device: &str) -> Result<Prospect, Refusal> {
        let choice = parse_device(device)?;
        match (&choice, device::choose_device(&choice, Precision::F32)) {
            (DeviceChoice::Cuda(_), Err(DeviceError::NoGpu(why))) => {
                let missing = Some(why.to_string());
                count_data(self, run, Prospect { device: device.to_owned(), missing, ..Prospect::default() })
            }
            _ => self.look_ahead(run, device),
        }
    }

    fn measure(&self, run: &Run, rung: usize, checkpoints: &[PathBuf]) -> Result<Evals, Refusal> {
        let task = find_task(self, run)?;
        let measured = task.evaluate_checkpoints(&run.rungs[rung].preset, checkpoints);
        let measured = measured.map_err(|failed| Refusal::new(failed.class.exit_code(), failed.message))?;
        Ok(measured.into_iter().map(|eval| eval.map_err(|error| NoAnswer::Trainer(error.into()))).collect())
    }

    fn measure_quality(&self, run: &Run, rung: usize, checkpoint: &Path) -> Result<Metrics, Refusal> {
        let (task, quality) = (find_task(self, run)?, run.quality.as_ref());
        let quality = quality.ok_or_else(|| Refusal::new(13, "the run file has no section `quality`"))?;
        let measured = task.measure_quality(&run.rungs[rung].preset, quality, checkpoint);
        measured.map_err(|error| Refusal::new(14, error.to_string()))
    }

    fn export(&self, run: &Run, rung: usize, weights: &[u8], format: &str) -> Result<Files, Refusal> {
        let task = find_task(self, run)?;
        let format = match format {
            "hf" => Format::HuggingFace,
            "peft" => Format::Peft,
            "genotype" => Format::Genotype,
            other => {
                let text = format!("unknown weight format `{other}`; choose hf, peft or genotype");
                return Err(Refusal::new(2, text));
            }
        };
        task.export(&run.rungs[rung].preset, weights, format).map_err(|error| Refusal::new(14, error.to_string()))
    }
}

fn batch_plan(sizes: &Sizes, training: &Training) -> BatchPlan {
    let &Training { micro_batch, accumulation, .. } = training;
    BatchPlan { epoch_samples: sizes.training as u64, units: sizes.units, micro_batch, accumulation }
}

fn find_task<'a>(registry: &'a Registry, run: &Run) -> Result<&'a dyn AnyTask, Refusal> {
    registry.get(&run.task).ok_or_else(|| Refusal::new(13, NoAnswer::UnknownTask(run.task.clone()).to_string()))
}

fn parse_device(device: &str) -> Result<DeviceChoice, Refusal> {
    device.parse().map_err(|error: UnknownDevice| Refusal::new(2, error.to_string()))
}

fn name_rung(rung: &Rung, why: impl Display) -> String {
    format!("rung {}: {why}", rung.name)
}

/// Adds the amount of data and the model's size, and checks that every rung has samples for its
/// batches and the parameters it names: otherwise its worker would fail in the middle of a shift.
fn count_data(registry: &Registry, run: &Run, mut prospect: Prospect) -> Result<Prospect, Refusal> {
    let Some(task) = registry.get(&run.task) else { return Ok(prospect) };
    for (number, rung) in run.rungs.iter().enumerate() {
        let preset = &rung.preset;
        let name = |error: DataError| if number == 0 { error.to_string() } else { name_rung(rung, error) };
        let sizes = task.sizes(preset).map_err(|error| Refusal::new(15, name(error)))?;
        let misfit = batch_misfit(&preset.training, sizes.training as u64).map(|misfit| misfit.to_string());
        let paths: Vec<String> = sizes.shapes.keys().cloned().collect();
        let rules = || task.check_rules(preset, &paths).err().map(|error| error.to_string());
        if let Some(why) = misfit.or_else(rules) {
            return Err(Refusal::new(13, name_rung(rung, why)));
        }
        if number == 0 {
            prospect.samples = Some((sizes.training, sizes.validation));
            prospect.parameters = Some(sizes.parameters);
            prospect.notes.extend(sizes.notes);
        }
    }
    Ok(prospect)
}
