//! Tasks by name, type-erased, for configs, `check` and the worker.

use super::backends::{self, Cpu, TrainAll};
use super::checkpoint_eval::{self, EvalError};
use super::job::TrainingJob;
use super::memory_estimate::{self, EstimateError};
use super::param_rules::{ParamRules, RulesError};
use super::params;
use super::params::safetensors_file::tensor_data;
use super::quality::{self, QualityError};
use super::sections::{parse_sections, read_section, write_section};
use super::task::{DataError, ExportError, Format, NamedFile, Split, Train, load_data};
use super::tasks::{lm::LanguageModel, search::Search, vision::Vision};
use burn::backend::flex::FlexDevice;
use downshift_core::config::{
    knobs::{Preset, Section},
    problem::Problem,
    quality::Quality,
    run::{OwnedSections, ResolvedSections, TaskSections},
};
use downshift_core::protocol::metrics::Metrics;
use downshift_core::protocol::plan::{MemoryEstimate, Site};
use downshift_core::protocol::worker::{DoneReason, Eval, Failed};
use downshift_core::store::checkpoint::classes::PictureClasses;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Sizes of the data and the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// Training samples.
    pub training: usize,
    /// Validation samples.
    pub validation: usize,
    /// Units per sample on the clock.
    pub units: u64,
    /// Parameters, including frozen ones.
    pub parameters: u64,
    /// Paths and shapes of the parameters.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The classes, if it is a picture classifier.
    pub classes: Option<PictureClasses>,
    /// Notes about the data for the user.
    pub notes: Vec<String>,
}

/// A [`Task`] with its types erased.
pub trait AnyTask: Send + Sync {
    /// Returns the name after `task:` in a run file.
    fn name(&self) -> &'static str;

    /// Returns the unit of the run's clock.
    fn unit(&self) -> &'static str;

    /// Returns the metrics of evaluations beside the loss.
    fn eval_metrics(&self) -> &'static [&'static str];

    /// Returns the mistakes in `training:` that follow from the task's own section.
    fn misfits(&self, preset: &Preset) -> Vec<Problem>;

    /// Resolves the sections of the task; problems have paths from the root of the file.
    fn resolve(&self, sections: OwnedSections<'_>) -> ResolvedSections;

    /// Reads the data and returns the sizes.
    ///
    /// # Errors
    /// Returns an error that names the file and the place in it; an unreadable section counts as a file.
    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError>;

    /// Checks that the weights a fresh run starts from exist and fit.
    ///
    /// # Errors
    /// Returns an error that names the file and the mismatch.
    fn check_pretrained(&self, preset: &Preset) -> Result<(), DataError>;

    /// Checks that `training.trained` and `optimizer.groups` apply to a model with parameters at `paths`.
    ///
    /// # Errors
    /// Returns the first mistake in them.
    fn check_rules(&self, preset: &Preset, paths: &[String]) -> Result<(), RulesError>;

    /// Evaluates the weights of checkpoints on the validation set, on the CPU, one after another.
    ///
    /// # Errors
    /// Returns an error when the data cannot be read. A problem with one checkpoint is reported in its own result.
    fn evaluate_checkpoints(
        &self,
        preset: &Preset,
        checkpoints: &[PathBuf],
    ) -> Result<Vec<Result<Eval, EvalError>>, Failed>;

    /// Returns the quality metrics.
    fn quality_metrics(&self) -> &'static [&'static str];

    /// Measures the quality metrics of a run file on a checkpoint, on the CPU.
    ///
    /// # Errors
    /// Returns an error when the data or the checkpoint cannot be read.
    fn measure_quality(&self, preset: &Preset, quality: &Quality, checkpoint: &Path) -> Result<Metrics, QualityError>;

    /// Converts a checkpoint's weights to the files of another program.
    ///
    /// # Errors
    /// Returns the reason.
    fn export(&self, preset: &Preset, weights: &[u8], format: Format) -> Result<Vec<NamedFile>, ExportError>;

    /// Estimates the memory of each of these rungs.
    fn estimate_memory(&self, presets: &[&Preset], site: Site) -> Vec<Result<MemoryEstimate, EstimateError>>;

    /// Runs one attempt.
    ///
    /// # Errors
    /// Returns the reason when the worker has to end.
    fn train(&self, job: TrainingJob) -> Result<DoneReason, Failed>;
}

/// The tasks that this program can train.
#[derive(Default)]
pub struct Registry(Vec<Box<dyn AnyTask>>);

impl Registry {
    /// Returns a registry without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a registry of the tasks shipped with downshift.
    #[must_use]
    pub fn with_builtin() -> Self {
        Self::new().with::<Vision>().with::<LanguageModel>().with::<Search>()
    }

    /// Adds a task, replacing one of the same name.
    #[must_use]
    pub fn with<T: TrainAll>(mut self) -> Self {
        self.0.retain(|task| task.name() != T::NAME);
        self.0.push(Box::new(Erased::<T> { cache: Mutex::default(), task: PhantomData }));
        self
    }

    /// Returns the task with this name.
    pub fn get(&self, name: &str) -> Option<&dyn AnyTask> {
        self.0.iter().find(|task| task.name() == name).map(Box::as_ref)
    }

    /// Returns all names, in the order they were added.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|task| task.name()).collect()
    }
}

impl TaskSections for Registry {
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|task| task.name().to_owned()).collect()
    }

    fn resolve(&self, task: &str, sections: OwnedSections<'_>) -> ResolvedSections {
        self.get(task).map_or_else(|| (None, Vec::new()), |task| task.resolve(sections))
    }

    fn eval_metrics(&self, task: &str) -> Option<&'static [&'static str]> {
        self.get(task).map(AnyTask::eval_metrics)
    }

    fn quality_metrics(&self, task: &str) -> Option<&'static [&'static str]> {
        self.get(task).map(AnyTask::quality_metrics)
    }

    fn misfits(&self, task: &str, preset: &Preset) -> Vec<Problem> {
        self.get(task).map(|task| task.misfits(preset)).unwrap_or_default()
    }
}

fn unreadable_section(problem: Problem) -> DataError {
    DataError { file: problem.path, offset: None, message: problem.wrong }
}

/// Cached result of reading the data and building the model for its sizes, so that large data sets are not
/// read twice for the same answer.
struct CachedSizes {
    data: Section,
    model: Section,
    sizes: Sizes,
}

struct Erased<T> {
    cache: Mutex<Vec<CachedSizes>>,
    task: PhantomData<fn() -> T>,
}

impl<T: TrainAll> AnyTask for Erased<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn unit(&self) -> &'static str {
        T::UNIT
    }

    fn eval_metrics(&self) -> &'static [&'static str] {
        T::METRICS
    }

    fn misfits(&self, preset: &Preset) -> Vec<Problem> {
        let sections = parse_sections::<T>(preset).ok();
        sections.map(|(_, model)| T::check_training(&model, &preset.training)).unwrap_or_default()
    }

    fn resolve(&self, OwnedSections { data, model, base }: OwnedSections<'_>) -> ResolvedSections {
        let (data, mut problems) = read_section::<T::DataConfig>("data", data);
        let (model, wrong) = read_section::<T::ModelConfig>("model", model);
        problems.extend(wrong);
        let (Some(mut data), Some(mut model)) = (data, model) else { return (None, problems) };
        problems.extend(T::check(&data, &model));
        T::complete_config(&mut data, &mut model, &|path| base.join(path).display().to_string());
        match (write_section("data", &data), write_section("model", &model)) {
            (Ok(data), Ok(model)) => (Some((data, model)), problems),
            (data, model) => {
                problems.extend(data.err().into_iter().chain(model.err()));
                (None, problems)
            }
        }
    }

    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |known: &&CachedSizes| known.data == preset.data && known.model == preset.model;
        if let Some(known) = cache.iter().find(same) {
            return Ok(known.sizes.clone());
        }
        let (data, model) = parse_sections::<T>(preset).map_err(unreadable_section)?;
        let loaded = load_data::<T>(&data, &model, preset.training.seed)?;
        let built = <T as Train<Cpu>>::init(&model, &loaded, &FlexDevice);
        let sizes = Sizes {
            training: T::len(&loaded, Split::Training),
            validation: T::len(&loaded, Split::Validation),
            units: T::units(&model),
            parameters: params::parameter_count::<Cpu, _>(&built),
            shapes: params::declared_shapes::<Cpu, _>(&built),
            classes: T::classes(&loaded),
            notes: T::notes(&loaded),
        };
        cache.push(CachedSizes { data: preset.data.clone(), model: preset.model.clone(), sizes: sizes.clone() });
        Ok(sizes)
    }

    fn check_pretrained(&self, preset: &Preset) -> Result<(), DataError> {
        let (_, model) = parse_sections::<T>(preset).map_err(unreadable_section)?;
        T::check_pretrained(&model)
    }

    fn check_rules(&self, preset: &Preset, paths: &[String]) -> Result<(), RulesError> {
        ParamRules::new::<T>(preset, paths).map(drop)
    }

    fn evaluate_checkpoints(
        &self,
        preset: &Preset,
        checkpoints: &[PathBuf],
    ) -> Result<Vec<Result<Eval, EvalError>>, Failed> {
        checkpoint_eval::evaluate_checkpoints::<T>(preset, checkpoints)
    }

    fn quality_metrics(&self) -> &'static [&'static str] {
        T::QUALITY
    }

    fn measure_quality(&self, preset: &Preset, quality: &Quality, checkpoint: &Path) -> Result<Metrics, QualityError> {
        quality::measure_quality::<T>(preset, quality, checkpoint)
    }

    fn export(&self, preset: &Preset, weights: &[u8], format: Format) -> Result<Vec<NamedFile>, ExportError> {
        let (data, model) = parse_sections::<T>(preset).map_err(ExportError::Config)?;
        let file = SafeTensors::deserialize(weights)?;
        let values = file.iter().map(|(name, view)| (name.to_owned(), tensor_data(&view)));
        T::export(&data, &model, values.collect(), format)
    }

    fn estimate_memory(&self, presets: &[&Preset], site: Site) -> Vec<Result<MemoryEstimate, EstimateError>> {
        memory_estimate::estimate_memory::<T>(presets, site)
    }

    fn train(&self, job: TrainingJob) -> Result<DoneReason, Failed> {
        backends::train_on_backend::<T>(job)
    }
}
