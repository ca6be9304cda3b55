//! Errors in a run file, each with the key, the position and the fix.

use crate::untrusted::text::clip_line;
use std::fmt;

/// Limits: the number of errors listed, and the bytes re-read to find their lines.
const LISTED: (usize, usize) = (50, 8 << 20);

/// Returns the number of errors to list for a text, which is re-read to find the line of each.
#[must_use]
pub fn max_listed(text: &str) -> usize {
    (LISTED.1 / text.len().max(1)).clamp(5, LISTED.0)
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Dotted path of the key: `training.micro_batch`, `ladder[1].set.training.epochs`.
    pub path: String,
    /// The mistake.
    pub wrong: String,
    /// The fix.
    pub fix: String,
    /// The part of the text that is wrong.
    pub part: Part,
}

/// A part of a line `key: value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The value.
    Value,
    /// The n-th key of this name, counted from 0.
    Key(usize),
}

impl Problem {
    /// Creates a problem at `path`.
    pub fn at(path: impl Into<String>, wrong: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { path: path.into(), wrong: wrong.into(), fix: fix.into(), part: Part::Value }
    }

    /// Creates a problem of the key at `path`.
    pub fn of_key(path: impl Into<String>, wrong: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { part: Part::Key(0), ..Self::at(path, wrong, fix) }
    }

    /// Prepends `prefix` to the path.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.path = if self.path.is_empty() { prefix.to_owned() } else { format!("{prefix}.{}", self.path) };
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [path, wrong, fix] =
            [(&self.path, 200), (&self.wrong, 600), (&self.fix, 1500)].map(|(text, most)| clip_line(text, most));
        write!(formatter, "{path}: {wrong}; {fix}")
    }
}

/// Collects the problems of one section.
#[derive(Debug, Default)]
pub struct Findings {
    prefix: &'static str,
    problems: Vec<Problem>,
}

impl Findings {
    /// Starts a collection whose paths lie below `section`.
    #[must_use]
    pub fn below(section: &'static str) -> Self {
        Self { prefix: section, problems: Vec::new() }
    }

    /// Adds a problem.
    pub fn push(&mut self, path: &str, wrong: &str, fix: &str) {
        let problem = Problem::at(path, wrong, fix);
        self.problems.push(if self.prefix.is_empty() { problem } else { problem.under(self.prefix) });
    }

    /// Adds a problem unless the value is fine.
    pub fn unless(&mut self, fine: bool, path: &str, wrong: &str, fix: &str) {
        if !fine {
            self.push(path, wrong, fix);
        }
    }

    /// Returns the problems in the order found.
    #[must_use]
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}
