//! Tasks by name, type-erased, for configs, `check` and the worker.

use super::backends::{self, Cpu, TrainAll};
use super::compare;
use super::foresee;
use super::groups::{self, Plan};
use super::params;
use super::task::{DataError, Format, NamedFile, Split, Task, Train, load};
use super::tasks::{lm::LanguageModel, vision::Vision};
use super::worker::Job;
use crate::config::{
    knobs::{Preset, Section},
    problem::Problem,
    run::TaskSections,
    typed,
};
use crate::protocol::plan::Site;
use crate::protocol::worker::{DoneReason, Eval, Failed};
use burn::backend::flex::FlexDevice;
use safetensors::SafeTensors;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Sizes of the data and the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Training samples.
    pub training: usize,
    /// Validation samples.
    pub validation: usize,
    /// Units per sample on the clock.
    pub units: u64,
    /// Parameters, including frozen ones.
    pub parameters: u64,
    /// Paths of the parameters.
    pub paths: Vec<String>,
}

/// A [`Task`] with its types erased.
pub trait AnyTask: Send + Sync {
    /// Returns the name after `task:` in a run file.
    fn name(&self) -> &'static str;

    /// Returns the unit of the run's clock.
    fn unit(&self) -> &'static str;

    /// Returns the sections `data` and `model` with every knob explicit and paths made absolute from `base`,
    /// as far as they can be read, and all problems with them, by path from the root of the file.
    fn resolve(&self, data: &Section, model: &Section, base: &Path) -> (Option<(Section, Section)>, Vec<Problem>);

    /// Reads the data and returns the sizes.
    ///
    /// # Errors
    /// Returns an error that names the file and the place in it; an unreadable section counts as a file.
    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError>;

    /// Checks that the weights a fresh run starts from exist and fit.
    ///
    /// # Errors
    /// Returns an error that names the file and the mismatch.
    fn examine(&self, preset: &Preset) -> Result<(), DataError>;

    /// Checks that `training.trained` and `optimizer.groups` apply to a model with parameters at `paths`.
    ///
    /// # Errors
    /// Returns the message of [`Plan::new`].
    fn check_groups(&self, preset: &Preset, paths: &[String]) -> Result<(), String>;

    /// Measures the weights of checkpoints on the validation set, on the CPU, one after another.
    ///
    /// # Errors
    /// Returns an error when the data cannot be read. A problem with one checkpoint is reported in its own result.
    fn measure(&self, preset: &Preset, checkpoints: &[PathBuf]) -> Result<Vec<Result<Eval, String>>, Failed>;

    /// Converts a checkpoint's weights to the files of another program.
    ///
    /// # Errors
    /// Returns a message.
    fn export(&self, preset: &Preset, weights: &[u8], format: Format) -> Result<Vec<NamedFile>, String>;

    /// Estimates the memory of each of these rungs.
    fn foresee(&self, presets: &[&Preset], site: Site) -> Vec<foresee::Outcome>;

    /// Runs one life of training.
    ///
    /// # Errors
    /// Returns the reason when the worker has to end.
    fn train(&self, job: Job) -> Result<DoneReason, Failed>;
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
        Self::new().with::<Vision>().with::<LanguageModel>()
    }

    /// Adds a task, replacing one of the same name.
    #[must_use]
    pub fn with<T: TrainAll>(mut self) -> Self {
        self.0.retain(|task| task.name() != T::NAME);
        self.0.push(Box::new(Erased::<T> { seen: Mutex::default(), task: PhantomData }));
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

    fn resolve(
        &self,
        task: &str,
        data: &Section,
        model: &Section,
        base: &Path,
    ) -> (Option<(Section, Section)>, Vec<Problem>) {
        self.get(task).map_or_else(|| (None, Vec::new()), |task| task.resolve(data, model, base))
    }
}

fn unreadable(problem: Problem) -> DataError {
    DataError { file: problem.path, offset: None, message: problem.wrong }
}

/// Cached result of reading the data and building the model for its sizes, so that large data sets are not
/// read twice for the same answer.
struct Look {
    data: Section,
    model: Section,
    sizes: Sizes,
}

struct Erased<T> {
    seen: Mutex<Vec<Look>>,
    task: PhantomData<fn() -> T>,
}

impl<T: TrainAll> AnyTask for Erased<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn unit(&self) -> &'static str {
        T::UNIT
    }

    fn resolve(&self, data: &Section, model: &Section, base: &Path) -> (Option<(Section, Section)>, Vec<Problem>) {
        let (data, mut problems) = read_section::<T::DataConfig>("data", data);
        let (model, wrong) = read_section::<T::ModelConfig>("model", model);
        problems.extend(wrong);
        let (Some(mut data), Some(mut model)) = (data, model) else { return (None, problems) };
        problems.extend(T::check(&data, &model));
        T::complete(&mut data, &mut model, &|path| base.join(path).display().to_string());
        match (write_section("data", &data), write_section("model", &model)) {
            (Ok(data), Ok(model)) => (Some((data, model)), problems),
            (data, model) => {
                problems.extend(data.err().into_iter().chain(model.err()));
                (None, problems)
            }
        }
    }

    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |look: &&Look| look.data == preset.data && look.model == preset.model;
        if let Some(look) = seen.iter().find(same) {
            return Ok(look.sizes.clone());
        }
        let (data, model) = sections::<T>(preset).map_err(unreadable)?;
        let loaded = load::<T>(&data, &model, preset.training.seed)?;
        let built = <T as Train<Cpu>>::init(&model, &loaded, &FlexDevice);
        let sizes = Sizes {
            training: T::len(&loaded, Split::Training),
            validation: T::len(&loaded, Split::Validation),
            units: T::units(&model),
            parameters: params::count::<Cpu, _>(&built),
            paths: groups::paths::<Cpu, _>(&built),
        };
        seen.push(Look { data: preset.data.clone(), model: preset.model.clone(), sizes: sizes.clone() });
        Ok(sizes)
    }

    fn examine(&self, preset: &Preset) -> Result<(), DataError> {
        let (_, model) = sections::<T>(preset).map_err(unreadable)?;
        T::examine(&model)
    }

    fn check_groups(&self, preset: &Preset, paths: &[String]) -> Result<(), String> {
        Plan::new::<T>(preset, paths).map(drop)
    }

    fn measure(&self, preset: &Preset, checkpoints: &[PathBuf]) -> Result<Vec<Result<Eval, String>>, Failed> {
        compare::measure::<T>(preset, checkpoints)
    }

    fn export(&self, preset: &Preset, weights: &[u8], format: Format) -> Result<Vec<NamedFile>, String> {
        let (_, model) = sections::<T>(preset).map_err(|problem| problem.to_string())?;
        let file = SafeTensors::deserialize(weights).map_err(|error| format!("the weights cannot be read: {error}"))?;
        let values = file.iter().map(|(name, view)| (name.to_owned(), params::from_safetensors(&view)));
        T::export(&model, values.collect(), format)
    }

    fn foresee(&self, presets: &[&Preset], site: Site) -> Vec<foresee::Outcome> {
        foresee::foresee::<T>(presets, site)
    }

    fn train(&self, job: Job) -> Result<DoneReason, Failed> {
        backends::train::<T>(job)
    }
}

/// Parses the sections `data` and `model` of a preset into the task's types.
///
/// # Errors
/// Returns the first problem with them.
pub fn sections<T: Task>(preset: &Preset) -> Result<(T::DataConfig, T::ModelConfig), Problem> {
    let (data, wrong) = read_section("data", &preset.data);
    let (model, more) = read_section("model", &preset.model);
    let unreadable = || Problem::at("model", "the task cannot read its sections", "see the shipped run files");
    data.zip(model).ok_or_else(|| wrong.into_iter().chain(more).next().unwrap_or_else(unreadable))
}

fn read_section<C: DeserializeOwned>(name: &str, section: &Section) -> (Option<C>, Vec<Problem>) {
    let (config, problems) = typed::read_tree(&Value::Object(section.clone()));
    (config, problems.into_iter().map(|problem| problem.under(name)).collect())
}

fn write_section<C: Serialize>(name: &str, config: &C) -> Result<Section, Problem> {
    match serde_json::to_value(config) {
        Ok(Value::Object(section)) => Ok(section),
        Ok(Value::Null) => Ok(Section::new()),
        Ok(_) => Err(Problem::at(name, "the task's config is no section", "make its type a struct with fields")),
        Err(error) => Err(Problem::at(name, error.to_string(), "use values that JSON can hold")),
    }
}
