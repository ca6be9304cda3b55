//! The rung that a shift or a resume asks for.

use serde::{Deserialize, Serialize};

/// A target rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One rung safer.
    Down,
    /// One rung faster.
    Up,
    /// The rung with this name or number.
    Rung(String),
}

impl Target {
    /// Reads a target as it is written in a command.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "down" => Self::Down,
            "up" => Self::Up,
            name => Self::Rung(name.to_owned()),
        }
    }
}
