//! The section `files` of a command: texts that are written for each start, and copies of the user's own settings files with
//! some of their values replaced.
//!
//! ```text
//! files: { config.toml: { from: my.toml, set: { train.batch_size: "{training.micro_batch}" } } }
//!                          │ read at each start          └─ rung ─▶ 2
//!                          └─▶ settings_file: the same text with another value ─▶ {attempt_dir}/config.toml
//! ```

use super::launch::{AttemptContext, find_knob};
use super::template::{Placeholder, Template};
use crate::config::run::Run;
use crate::config::settings_file::{Patched, Replaced, SettingsError, SettingsFile};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::path::{Path, PathBuf};

/// How the names of files begin that downshift itself writes among those of a command.
pub const OWN_PREFIX: &str = ".downshift-";

/// A file that is written for each start.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FileSpec {
    /// A text with placeholders.
    Text(String),
    /// A copy of a settings file.
    Copy(SettingsCopy),
}

/// A copy of a settings file with other values.
#[derive(Debug, Clone, PartialEq, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsCopy {
    /// The file, relative to the command's directory, with placeholders.
    pub from: String,
    /// The values to set: dotted path of a key → value, or a text with placeholders. A placeholder alone has the type of its knob.
    #[serde(default)]
    pub set: Map<String, Value>,
    /// Write the copy into the folder of the file instead of the attempt's: for settings that name files relative to themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

impl<'de> Deserialize<'de> for FileSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = FileSpec;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FileSpec, E> {
                Ok(FileSpec::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FileSpec, A::Error> {
                SettingsCopy::deserialize(MapAccessDeserializer::new(map)).map(FileSpec::Copy)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl FileSpec {
    /// Returns every text that may hold placeholders, with the path of its key below the file's.
    pub fn texts(&self) -> Vec<(String, &String)> {
        match self {
            Self::Text(text) => vec![(String::new(), text)],
            Self::Copy(copy) => {
                let mut texts = vec![(".from".to_owned(), &copy.from)];
                for (key, value) in &copy.set {
                    collect_texts(format!(".set.{key}"), value, &mut texts);
                }
                texts
            }
        }
    }

    /// Returns the path of the file for a start; `name` is that in the run file.
    pub(super) fn path(&self, name: &str, attempt: &AttemptContext, from: &Path) -> PathBuf {
        match self {
            Self::Copy(SettingsCopy { beside: true, .. }) => {
                let run = attempt.run_dir.file_name().unwrap_or_default().to_string_lossy();
                let file = from.file_name().unwrap_or_default().to_string_lossy();
                from.with_file_name(format!("{OWN_PREFIX}{run}-{file}"))
            }
            _ => attempt.attempt_dir.join(name),
        }
    }
}

impl fmt::Display for FileSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Copy(SettingsCopy { from, set, beside }) => {
                let place = if *beside { ", beside it" } else { "" };
                write!(formatter, "a copy of {from}{place}")?;
                let mut joint = " with ";
                for (key, value) in set {
                    write!(
                        formatter,
                        "{joint}{key}: {}",
                        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                    )?;
                    joint = ", ";
                }
                Ok(())
            }
        }
    }
}

fn collect_texts<'a>(path: String, value: &'a Value, texts: &mut Vec<(String, &'a String)>) {
    match value {
        Value::String(text) => texts.push((path, text)),
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(index, item)| collect_texts(format!("{path}[{index}]"), item, texts));
        }
        _ => {}
    }
}

/// A file to write before a start.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchFile {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub content: FileContent,
}

/// The content of a file to write before a start.
#[derive(Debug, Clone, PartialEq)]
pub enum FileContent {
    /// This text.
    Text(String),
    /// That of a settings file with other values.
    Copy {
        /// The settings file.
        from: PathBuf,
        /// The values to set.
        set: Vec<(String, Value)>,
        /// Whether the copy lies beside the file, and not in a folder of the run.
        beside: bool,
    },
}

/// The settings file that a copy was made of, and the copy.
pub struct Original {
    /// The text of the file.
    pub text: String,
    /// The copy.
    pub patched: Patched,
}

impl FileContent {
    /// Reads the settings file of a copy; none for a text.
    ///
    /// # Errors
    /// Returns an error that names the settings file.
    pub fn read(&self) -> Result<Option<Original>, SettingsError> {
        let Self::Copy { from, set, .. } = self else { return Ok(None) };
        let file = SettingsFile::read(from)?;
        let wrong = |source| SettingsError::Value { path: from.clone(), source };
        let patched = file.patch(set).map_err(wrong)?;
        Ok(Some(Original { text: file.text, patched }))
    }
}

/// Fills in a value to set: a placeholder alone has the type of its knob, and null leaves the file's own value.
pub(super) fn fill_value(value: &Value, knobs: &Value, fill: &dyn Fn(&String) -> String) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) => match Template::parse(text).ok().as_ref().and_then(Template::lone) {
            Some(Placeholder::Knob(path)) => find_knob(knobs, path).filter(|knob| !knob.is_null()).cloned(),
            _ => Some(fill(text).into()),
        },
        Value::Array(items) => Some(items.iter().filter_map(|item| fill_value(item, knobs, fill)).collect()),
        other => Some(other.clone()),
    }
}

/// A copy that cannot be made on a rung.
pub struct CopyProblem {
    /// The name of the rung.
    pub rung: String,
    /// The key in the run file.
    pub key: String,
    /// Why.
    pub error: SettingsError,
}

impl fmt::Display for CopyProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (`{}` on rung `{}`)", self.error, self.key, self.rung)
    }
}

/// Returns the copies that cannot be made, each once, for the first rung that meets it.
#[must_use]
pub fn check_copies(run: &Run) -> Vec<CopyProblem> {
    let mut problems: Vec<CopyProblem> = Vec::new();
    for (rung, key, content) in copies(run) {
        if let Err(error) = content.read()
            && !problems.iter().any(|known| known.error.to_string() == error.to_string())
        {
            problems.push(CopyProblem { rung, key, error });
        }
    }
    problems
}

/// Returns the values that rung `full` sets to something else than their file says: its file name with each.
#[must_use]
pub fn changed_on_full(run: &Run) -> Vec<(PathBuf, Replaced)> {
    let full = copies(run).into_iter().take_while(|(rung, ..)| Some(rung) == run.rungs.first().map(|rung| &rung.name));
    let changed = full.filter_map(|(_, _, content)| {
        let original = content.read().ok()??;
        let FileContent::Copy { from, .. } = content else { return None };
        Some(original.patched.replaced.into_iter().map(move |it| (from.clone(), it)).collect::<Vec<_>>())
    });
    changed.flatten().collect()
}

/// Returns the copies of each rung with the name of the rung and the key of the file, before the run has a directory.
fn copies(run: &Run) -> Vec<(String, String, FileContent)> {
    let names: Vec<&String> = run.command.iter().flat_map(|command| command.files.keys()).collect();
    let mut found = Vec::new();
    for (index, rung) in run.rungs.iter().enumerate() {
        let Some(launch) = super::first_launch(run, index, 1) else { continue };
        for (name, file) in names.iter().zip(launch.files) {
            if matches!(file.content, FileContent::Copy { .. }) {
                found.push((rung.name.clone(), format!("files.{name}"), file.content));
            }
        }
    }
    found
}
