//! What is wrong with a run file, in a form that names the thing, the place and the way out.

use crate::untrusted::text::clipped;
use std::fmt;

/// The most mistakes that are listed, and the bytes that are read again to find their lines.
const MOST_TOLD: (usize, usize) = (50, 8 << 20);

/// How many mistakes of a text are listed: for the line of each the text is read again.
#[must_use]
pub fn most_told(text: &str) -> usize {
    (MOST_TOLD.1 / text.len().max(1)).clamp(5, MOST_TOLD.0)
}

/// One thing wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Dotted path of the key: `training.micro_batch`, `ladder[1].set.training.epochs`.
    pub path: String,
    /// What is wrong.
    pub wrong: String,
    /// What would work.
    pub fix: String,
    /// Which of several keys of this name is meant, counted from 0; not 0 only for duplicates.
    pub occurrence: usize,
}

impl Problem {
    /// A problem at `path`.
    pub fn at(path: impl Into<String>, wrong: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { path: path.into(), wrong: wrong.into(), fix: fix.into(), occurrence: 0 }
    }

    /// The same problem, seen from `prefix` above.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.path = if self.path.is_empty() { prefix.to_owned() } else { format!("{prefix}.{}", self.path) };
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [path, wrong, fix] =
            [(&self.path, 200), (&self.wrong, 600), (&self.fix, 1500)].map(|(text, most)| clipped(text, most));
        write!(formatter, "{path}: {wrong}; {fix}")
    }
}
