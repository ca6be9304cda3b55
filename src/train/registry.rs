//! Tasks by name, their types erased: what configs, `check` and the worker see of them.

use super::backends::{self, TrainAll};
use super::task::{DataError, Split, Task};
use super::worker::Job;
use crate::config::{
    knobs::{Preset, Section},
    problem::Problem,
};
use crate::protocol::worker::{DoneReason, Failed};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::marker::PhantomData;

/// How much data there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Training samples.
    pub training: usize,
    /// Validation samples.
    pub validation: usize,
    /// Units a sample is worth on the clock.
    pub units: u64,
}

/// A [`Task`] without its types.
pub trait AnyTask: Send + Sync {
    /// The word after `task:` in a run file.
    fn name(&self) -> &'static str;

    /// What the run's clock counts.
    fn unit(&self) -> &'static str;

    /// What is wrong with the sections `data` and `model`, with paths from the root of the file.
    fn check(&self, preset: &Preset) -> Vec<Problem>;

    /// Writes every knob of `data` and `model` out, defaults too, and makes paths absolute.
    ///
    /// # Errors
    /// The problem, where a section cannot be read.
    fn resolve(&self, preset: &mut Preset, absolute: &dyn Fn(&str) -> String) -> Result<(), Problem>;

    /// Reads the data and counts.
    ///
    /// # Errors
    /// Names the file and the place in it; a section that cannot be read counts as a file.
    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError>;

    /// One life of training.
    ///
    /// # Errors
    /// Why the worker has to end.
    fn train(&self, job: Job) -> Result<DoneReason, Failed>;
}

/// The tasks this program can train.
#[derive(Default)]
pub struct Registry(Vec<Box<dyn AnyTask>>);

impl Registry {
    /// A registry without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task; one of the same name gives way.
    #[must_use]
    pub fn with<T: TrainAll>(mut self) -> Self {
        self.0.retain(|task| task.name() != T::NAME);
        self.0.push(Box::new(Erased::<T>(PhantomData)));
        self
    }

    /// The task of this name.
    pub fn get(&self, name: &str) -> Option<&dyn AnyTask> {
        self.0.iter().find(|task| task.name() == name).map(Box::as_ref)
    }

    /// All names, in the order they were added.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|task| task.name()).collect()
    }
}

struct Erased<T>(PhantomData<fn() -> T>);

impl<T: TrainAll> AnyTask for Erased<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn unit(&self) -> &'static str {
        T::UNIT
    }

    fn check(&self, preset: &Preset) -> Vec<Problem> {
        let data = read_section::<T::DataConfig>("data", &preset.data);
        let model = read_section::<T::ModelConfig>("model", &preset.model);
        match (data, model) {
            (Ok(data), Ok(model)) => T::check(&data, &model),
            (data, model) => data.err().into_iter().chain(model.err()).collect(),
        }
    }

    fn resolve(&self, preset: &mut Preset, absolute: &dyn Fn(&str) -> String) -> Result<(), Problem> {
        let (mut data, model) = sections::<T>(preset)?;
        T::resolve_paths(&mut data, absolute);
        preset.data = write_section("data", &data)?;
        preset.model = write_section("model", &model)?;
        Ok(())
    }

    fn sizes(&self, preset: &Preset) -> Result<Sizes, DataError> {
        let unreadable =
            |problem: Problem| DataError { file: problem.path.clone(), offset: None, message: problem.wrong };
        let (data, model) = sections::<T>(preset).map_err(unreadable)?;
        let loaded = T::load(&data, &model, preset.training.seed)?;
        Ok(Sizes {
            training: T::len(&loaded, Split::Training),
            validation: T::len(&loaded, Split::Validation),
            units: T::units(&model),
        })
    }

    fn train(&self, job: Job) -> Result<DoneReason, Failed> {
        backends::train::<T>(job)
    }
}

/// The sections `data` and `model` of a preset, as the task reads them.
///
/// # Errors
/// The problem with the first that cannot be read.
pub fn sections<T: Task>(preset: &Preset) -> Result<(T::DataConfig, T::ModelConfig), Problem> {
    Ok((read_section("data", &preset.data)?, read_section("model", &preset.model)?))
}

fn read_section<C: DeserializeOwned>(name: &str, section: &Section) -> Result<C, Problem> {
    serde_path_to_error::deserialize(Value::Object(section.clone())).map_err(|error| {
        let inner = error.path().to_string();
        let path = if inner == "." { name.to_owned() } else { format!("{name}.{inner}") };
        let message = error.into_inner().to_string();
        match message.split_once(", expected ") {
            Some((wrong, expected)) => Problem::at(path, wrong, format!("expected {expected}")),
            None => Problem::at(path, message, "see the comments in the shipped run files for what belongs here"),
        }
    })
}

fn write_section<C: Serialize>(name: &str, config: &C) -> Result<Section, Problem> {
    match serde_json::to_value(config) {
        Ok(Value::Object(section)) => Ok(section),
        Ok(Value::Null) => Ok(Section::new()),
        Ok(_) => Err(Problem::at(name, "the task's config is no section", "make its type a struct with fields")),
        Err(error) => Err(Problem::at(name, error.to_string(), "use values that JSON can hold")),
    }
}
