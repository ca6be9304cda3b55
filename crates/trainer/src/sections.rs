//! The sections `data:` and `model:` of a run file, in the types of a task.

use super::task::Task;
use downshift_core::config::{
    knobs::{Preset, Section},
    problem::Problem,
    typed,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Parses the sections `data` and `model` of a preset into the task's types.
///
/// # Errors
/// Returns the first problem with them.
pub fn parse_sections<T: Task>(preset: &Preset) -> Result<(T::DataConfig, T::ModelConfig), Problem> {
    let (data, wrong) = read_section("data", &preset.data);
    let (model, more) = read_section("model", &preset.model);
    let unreadable = || Problem::at("model", "the task cannot read its sections", "compare with the shipped run files");
    data.zip(model).ok_or_else(|| wrong.into_iter().chain(more).next().unwrap_or_else(unreadable))
}

/// Parses one section into the type of a task, with all problems by path from the root of the file.
pub fn read_section<C: DeserializeOwned>(name: &str, section: &Section) -> (Option<C>, Vec<Problem>) {
    let (config, problems) = typed::read_tree(&Value::Object(section.clone()));
    (config, problems.into_iter().map(|problem| problem.under(name)).collect())
}

/// Serializes a config as the section of this name.
///
/// # Errors
/// Returns the problem if it does not serialize to a section.
pub fn write_section<C: Serialize>(name: &str, config: &C) -> Result<Section, Problem> {
    match serde_json::to_value(config) {
        Ok(Value::Object(section)) => Ok(section),
        Ok(Value::Null) => Ok(Section::new()),
        Ok(_) => {
            Err(Problem::at(name, "the task's config is not a section", "make its type a struct with named fields"))
        }
        Err(error) => Err(Problem::at(name, error.to_string(), "use values that JSON can represent")),
    }
}
