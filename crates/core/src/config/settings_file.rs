//! Settings files of other programs: TOML, YAML and JSON, read with the place of each value, so that a value is replaced in
//! the text and everything else stays as it is: comments, order, quotes.
//!
//! ```text
//! text ─ toml, yaml, json ─▶ nodes with spans ─ value: same type? ─▶ text with other bytes at the span ─▶ read again
//! ```

mod json;
mod node;
mod toml;
mod value;
mod yaml;

pub use node::{Node, Scalar};
pub use value::is_same;

use crate::config::typed;
use crate::config::yaml::Place;
use crate::format::counted;
use crate::untrusted::file::{self, Limit, ReadError};
use crate::untrusted::text;
use serde_json::Value;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Maximum depth of nested sections.
const DEPTH: usize = 64;
/// Keys that a message lists.
const LISTED: usize = 400;

/// A file format, by the ending of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.toml`.
    Toml,
    /// `.yaml` and `.yml`.
    Yaml,
    /// `.json`.
    Json,
}

impl Format {
    /// Returns the format of a file of this name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Toml => "TOML",
            Self::Yaml => "YAML",
            Self::Json => "JSON",
        })
    }
}

/// Reason why a settings file cannot be read or changed. Its text names the file.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file does not exist.
    #[error("{} does not exist; correct `from:`, which is relative to the command's directory", text::path(.0))]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("{}: {source}", text::path(.path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The name tells no format.
    #[error("{}: a settings file is named .toml, .yaml, .yml or .json", text::path(.0))]
    Format(PathBuf),
    /// The text is not of its format.
    #[error("{}: {source}", place(.path, .source.place))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SyntaxError,
    },
    /// A value cannot be set.
    #[error("{}: {source}", .source.place().map_or_else(|| text::path(.path), |at| place(.path, at)))]
    Value {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PatchError,
    },
}

fn place(path: &Path, (line, column): Place) -> String {
    format!("{}:{line}:{column}", text::path(path))
}

/// A text that is not of its format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not {format}: {message}")]
pub struct SyntaxError {
    /// The format.
    pub format: Format,
    /// Where.
    pub place: Place,
    /// Why.
    pub message: String,
}

/// Reason why a value of a settings file cannot be set.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatchError {
    /// No value has this path.
    #[error("it has no key `{key}`; {fix}")]
    NoKey {
        /// The path.
        key: String,
        /// The nearest names.
        fix: String,
    },
    /// The value is of another type.
    #[error("`{key}` is {is}, and {new} is not; set a value of the same type")]
    Type {
        /// The path.
        key: String,
        /// The type in the file.
        is: &'static str,
        /// The value to set.
        new: String,
        /// Where the value stands.
        place: Place,
    },
    /// The value is of a kind that is not set.
    #[error("`{key}` is {what}, which cannot be set")]
    Fixed {
        /// The path.
        key: String,
        /// Its description.
        what: &'static str,
        /// Where it stands, if anywhere.
        place: Option<Place>,
    },
    /// The text with the new value means something else.
    #[error("`{key}` cannot be replaced where it stands; write it on one line, such as `{key}: {new}`")]
    Form {
        /// The path.
        key: String,
        /// The value to set.
        new: String,
        /// Where the value stands.
        place: Place,
    },
}

impl PatchError {
    fn place(&self) -> Option<Place> {
        match self {
            Self::NoKey { .. } => None,
            Self::Fixed { place, .. } => *place,
            Self::Type { place, .. } | Self::Form { place, .. } => Some(*place),
        }
    }
}

/// A value that a patch has replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct Replaced {
    /// The path of its key.
    pub key: String,
    /// Its value in the file.
    pub from: Value,
    /// Its new value.
    pub to: Value,
}

/// A settings file with other values.
#[derive(Debug, Clone, PartialEq)]
pub struct Patched {
    /// Its text.
    pub text: String,
    /// The values that differ from those of the file.
    pub replaced: Vec<Replaced>,
}

/// A settings file.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingsFile {
    /// Its text.
    pub text: String,
    format: Format,
    root: Node,
}

impl SettingsFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error that names the file.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let format = Format::of(path).ok_or_else(|| SettingsError::Format(path.to_owned()))?;
        let syntax = |source| SettingsError::Syntax { path: path.to_owned(), source };
        Self::parse(Self::read_text(path)?, format).map_err(syntax)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Returns an error that names the file.
    pub fn read_text(path: &Path) -> Result<String, SettingsError> {
        file::read_text(path, Limit::Handwritten).map_err(|source| {
            if source.is_missing() {
                SettingsError::Missing(path.to_owned())
            } else {
                SettingsError::Read { path: path.to_owned(), source }
            }
        })
    }

    /// Parses a text.
    ///
    /// # Errors
    /// Returns an error when the text is not of the format.
    pub fn parse(text: String, format: Format) -> Result<Self, SyntaxError> {
        let root = match format {
            Format::Toml => toml::parse(&text),
            Format::Yaml => yaml::parse(&text),
            Format::Json => json::parse(&text),
        }?;
        Ok(Self { text, format, root })
    }

    /// Returns the paths of all values with their values, in the order of the file.
    #[must_use]
    pub fn leaves(&self) -> Vec<(String, Value)> {
        self.root.leaves().into_iter().map(|(path, node)| (path, node.value())).collect()
    }

    /// Returns the value at a path.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<Value> {
        self.root.find(path).map(Node::value)
    }

    /// Returns a value with its text and its line.
    #[must_use]
    pub fn written(&self, path: &str) -> Option<(Value, &str, usize)> {
        let Node::Scalar(Scalar { span, value }) = self.root.find(path)? else { return None };
        Some((value.clone(), self.text.get(span.clone())?, place_at(&self.text, span.start).0))
    }

    /// Returns the text with other values. A value that is already the same keeps its bytes.
    ///
    /// # Errors
    /// Returns an error when a path does not exist, or a value is of another type.
    pub fn patch(&self, set: &[(String, Value)]) -> Result<Patched, PatchError> {
        let mut edits: Vec<(Range<usize>, String)> = Vec::new();
        let mut replaced = Vec::new();
        for (key, new) in set {
            let node = self.root.find(key).ok_or_else(|| self.no_key(key))?;
            let from = node.value();
            if let Some((span, text)) = self.edit(key, node, new)? {
                replaced.push(Replaced { key: key.clone(), from, to: new.clone() });
                edits.push((span, text));
            }
        }
        edits.sort_by_key(|(span, _)| span.start);
        let mut patched = String::with_capacity(self.text.len());
        let mut at = 0;
        for (span, new) in edits {
            patched.push_str(self.text.get(at..span.start).unwrap_or_default());
            patched.push_str(&new);
            at = span.end;
        }
        patched.push_str(self.text.get(at..).unwrap_or_default());
        self.verify(&patched, &replaced)?;
        Ok(Patched { text: patched, replaced })
    }

    /// Returns the bytes that a new value needs; none if the file has it.
    fn edit(&self, key: &str, node: &Node, new: &Value) -> Result<Option<(Range<usize>, String)>, PatchError> {
        let fixed = |what, span: &Range<usize>| PatchError::Fixed {
            key: key.to_owned(),
            what,
            place: Some(place_at(&self.text, span.start)),
        };
        let (span, old) = match node {
            Node::Map(_) => {
                return Err(PatchError::Fixed { key: key.to_owned(), what: "a section", place: None });
            }
            Node::Fixed(what, span) => return Err(fixed(what, span)),
            Node::List(_, None) => return Err(fixed("a list of sections", &(0..0))),
            Node::List(_, Some(span)) => (span.clone(), node.value()),
            Node::Scalar(Scalar { span, value }) => (span.clone(), value.clone()),
        };
        if is_same(&old, new) {
            return Ok(None);
        }
        let written = self.text.get(span.clone()).unwrap_or_default();
        let text = value::convert(&old, written, new, self.format).ok_or_else(|| PatchError::Type {
            key: key.to_owned(),
            is: value::name_type(&old),
            new: value::write(new, self.format),
            place: place_at(&self.text, span.start),
        })?;
        Ok(Some((span, text)))
    }

    /// Reads the text again: each replaced value has to be there, and no other may have changed.
    fn verify(&self, patched: &str, replaced: &[Replaced]) -> Result<(), PatchError> {
        let Some(first) = replaced.first() else { return Ok(()) };
        let wrong = |it: &Replaced| PatchError::Form {
            key: it.key.clone(),
            new: value::write(&it.to, self.format),
            place: self.root.find(&it.key).and_then(Node::start).map_or((1, 1), |at| place_at(&self.text, at)),
        };
        let read = Self::parse(patched.to_owned(), self.format).map_err(|_| wrong(first))?;
        for it in replaced {
            let now = read.value(&it.key).ok_or_else(|| wrong(it))?;
            if !is_same(&now, &it.to) {
                return Err(wrong(it));
            }
        }
        let is_set = |path: &str| replaced.iter().any(|it| typed_at_or_below(path, &it.key));
        let others = |file: &Self| -> Vec<(String, Value)> {
            let scalars = file.root.scalars().into_iter().filter(|(path, _)| !is_set(path));
            scalars.map(|(path, node)| (path, node.value())).collect()
        };
        if others(self) == others(&read) { Ok(()) } else { Err(wrong(first)) }
    }

    fn no_key(&self, key: &str) -> PatchError {
        let leaves = self.root.leaves();
        let names: Vec<&str> = leaves.iter().take(LISTED).map(|(path, _)| path.as_str()).collect();
        let last = key.rsplit('.').next().unwrap_or(key);
        // The same name in another section is nearer than a similar spelling.
        let same: Vec<&&str> = names.iter().filter(|name| name.rsplit('.').next() == Some(last)).take(3).collect();
        let fix = if same.is_empty() {
            match names.len() {
                0..=40 => typed::suggest(key, &names),
                many => {
                    let near = typed::suggest(key, &names);
                    let is_near = near.starts_with("did you mean");
                    if is_near { near } else { format!("none of its {} is similar", counted(many as u64, "key")) }
                }
            }
        } else {
            let same: Vec<String> = same.into_iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", same.join(" or "))
        };
        PatchError::NoKey { key: key.to_owned(), fix }
    }
}

fn typed_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns the line and column of a byte.
fn place_at(text: &str, byte: usize) -> Place {
    let before = text.get(..byte.min(text.len())).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

#[cfg(test)]
mod tests;
