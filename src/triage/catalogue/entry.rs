//! An entry of the catalogue, and the mistakes that a user can make in one.

use crate::config::problem::Problem;
use crate::faults;
use crate::faults::response::Response;
use crate::protocol::cause::Damage;
use crate::protocol::class::FailureClass;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

/// One cause and the messages that identify it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueEntry {
    /// The entry's name.
    pub name: String,
    /// The class of failure that it identifies.
    pub class: FailureClass,
    /// Patterns; a line that matches any of them belongs to the entry.
    pub patterns: Vec<String>,
    /// Patterns that exclude a line that matches.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Whether the message is only a symptom of another failure.
    #[serde(default)]
    pub symptom: bool,
    /// Whether the first occurrence may be transient, although the class ends a run.
    #[serde(default)]
    pub transient: bool,
    /// The lines of one process that match in a row, with no two steps between them, before they are a cause.
    #[serde(default)]
    pub in_a_row: Option<u64>,
    /// The originator of the end.
    #[serde(default)]
    pub ended_by: EndedBy,
    /// The meaning, in a sentence.
    pub meaning: String,
    /// Advice for the user, in a sentence.
    pub advice: String,
    /// Damage that no restart repairs: the keeper stops.
    #[serde(default)]
    pub damage: Option<Damage>,
    /// The keeper's response; defaults to that of the class.
    #[serde(default)]
    pub keeper: Option<String>,
}

/// The originator of the end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// A failure, or nobody knows.
    #[default]
    Failure,
    /// The user, at its terminal.
    User,
    /// A scheduler, a closed terminal or a signal, which announces the end: a few steps may still follow.
    Outside,
}

impl CatalogueEntry {
    /// Returns the keeper's response.
    #[must_use]
    pub fn response(&self) -> Response {
        faults::response(self.class, None, self.damage)
    }

    /// Returns all that the keeper does, in the user's words if the entry has some.
    #[must_use]
    pub fn describe_response(&self) -> String {
        match &self.keeper {
            Some(words) => words.clone(),
            None if self.damage.is_some() => self.response().to_string(),
            None if self.transient => faults::ONCE.to_owned(),
            None => faults::of_class(self.class).describe(),
        }
    }
}

pub fn compile_pattern(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).unicode(false).build()
}

/// Returns the mistakes in entries of the user.
pub fn check_entries(entries: &[CatalogueEntry]) -> Vec<Problem> {
    let mut wrong = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.patterns.is_empty() {
            wrong.push(Problem::at(format!("causes[{index}].patterns"), "no pattern", "add one"));
        }
        for (key, patterns) in [("patterns", &entry.patterns), ("unless", &entry.unless)] {
            for (at, pattern) in patterns.iter().enumerate() {
                let path = format!("causes[{index}].{key}[{at}]");
                match compile_pattern(pattern) {
                    Err(error) => {
                        let message = error.to_string();
                        let last = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                        wrong.push(Problem::at(
                            path,
                            format!("invalid regular expression: {last}"),
                            "escape special characters with \\",
                        ));
                    }
                    Ok(regex) if regex.is_match(b"") => {
                        wrong.push(Problem::at(path, "matches every line", "write part of the message"));
                    }
                    Ok(_) => {}
                }
            }
        }
    }
    wrong
}
