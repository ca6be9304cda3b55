//! How the environment of a later start compares with the one that the run began in.

use serde::{Deserialize, Serialize};

/// Most variables of one kind that are reported.
const MOST: usize = 100;

/// The comparison of two environments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentNews {
    /// Variables that have their value of the start again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<String>,
    /// Variables that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<Difference>,
    /// Secrets that were set at the start and are not set now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_secrets: Vec<String>,
    /// Why the environment of the start is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Unusable>,
}

/// A variable that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The variable.
    pub name: String,
    /// Its value at the start.
    pub was: Value,
    /// Its value now.
    pub is: Value,
}

/// The value of a variable, as far as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// The variable is not set.
    Unset,
    /// A value that is known to be harmless, and short.
    Shown(String),
    /// Any other value.
    Hidden,
}

/// Why the environment of the start is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unusable {
    /// An earlier version began the run, or the file was deleted.
    #[error("none was kept")]
    Missing,
    /// Another user owns the file.
    #[error("environment.json belongs to user {0}")]
    Foreign(u32),
    /// Others can read or write the file.
    #[error("environment.json is open to other users (mode {0:o})")]
    Open(u32),
    /// This user's programs did not write the content.
    #[error("environment.json was not written by you on this machine")]
    Unsealed,
    /// The content makes no sense.
    #[error("environment.json is damaged")]
    Damaged,
    /// The file cannot be read.
    #[error("environment.json cannot be read: {0}")]
    Unreadable(String),
}

impl EnvironmentNews {
    /// Returns the news with lists that fit on a command line.
    #[must_use]
    pub fn within_bounds(mut self) -> Self {
        self.restored.truncate(MOST);
        self.differing.truncate(MOST);
        self.missing_secrets.truncate(MOST);
        self
    }
}
