//! Patterns of a run file: regular expressions whose named groups are metrics.

use super::clock::Epoch;
use super::line::Line;
use super::names::{self, Role};
use regex::{Regex, RegexBuilder};

/// Memory that a compiled pattern may take.
const MAX_COMPILED: usize = 1 << 20;

/// A regular expression with named groups: `step`, `total_steps` and `epoch`; any other group is a metric by its name.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    /// The named groups and their roles.
    groups: Vec<(String, Role)>,
}

/// Reason why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// Not a regular expression, or one that takes too much memory.
    #[error("not a regular expression: {0}")]
    Regex(Box<regex::Error>),
    /// No group has a name.
    #[error("no group has a name; name the numbers, as in `(?P<step>\\d+)` or `(?P<loss>\\S+)`")]
    NoNamedGroup,
    /// More groups than metrics a run may have.
    #[error("{count} named groups; at most {} are read", names::MAX_NAMES)]
    TooManyGroups {
        /// The number of named groups.
        count: usize,
    },
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Returns an error when the text is not a regular expression or names no group.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let regex = RegexBuilder::new(text).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
        let regex = regex.map_err(|error| PatternError::Regex(Box::new(error)))?;
        let role = |name: &str| match names::role(&names::sanitise(name)) {
            Role::Known(_) => Role::Own,
            role => role,
        };
        let groups: Vec<_> = regex.capture_names().flatten().map(|name| (name.to_owned(), role(name))).collect();
        match groups.len() {
            0 => Err(PatternError::NoNamedGroup),
            count if count > names::MAX_NAMES => Err(PatternError::TooManyGroups { count }),
            _ => Ok(Self { regex, groups }),
        }
    }

    /// Reports whether the pattern names the step.
    pub(super) fn names_step(&self) -> bool {
        self.groups.iter().any(|(_, role)| *role == Role::Step)
    }

    /// Reads a text; none if it does not match.
    pub(super) fn read(&self, text: &str) -> Option<Line> {
        let found = self.regex.captures(text)?;
        let mut line = Line::default();
        for (name, role) in &self.groups {
            let Some(text) = found.name(name).map(|group| group.as_str().trim()) else { continue };
            match role {
                Role::Step => line.step = names::parse_count(text),
                Role::TotalSteps => line.total_steps = names::parse_count(text),
                Role::Epoch => line.epoch = Epoch::read(text, None),
                Role::Known(_) | Role::Own => {
                    let number = text.trim_end_matches('%').trim_end();
                    let is_percentage = names::is_accuracy(name) && number != text;
                    line.has_percent |= is_percentage;
                    let value = number.parse().ok().map(|value: f64| if is_percentage { value / 100.0 } else { value });
                    line.values.extend(value.map(|value| (names::sanitise(name), value)));
                }
            }
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::{Pattern, PatternError};

    #[test]
    fn named_groups_are_read() {
        let pattern = Pattern::new(r"it (?P<step>\d+) of (?P<total_steps>\d+): L=(?P<loss>\S+) (?P<Dice>\S+)").unwrap();
        let line = pattern.read("it 7 of 90: L=nan 91%").unwrap();
        assert_eq!((line.step, line.total_steps), (Some(7), Some(90)));
        assert!(line.values[0].0 == "loss" && line.values[0].1.is_nan());
        assert_eq!(line.values[1], ("dice".to_owned(), 91.0));
        assert_eq!(pattern.read("it x"), None);
    }

    #[test]
    fn patterns_that_read_nothing_are_refused() {
        assert_eq!(Pattern::new(r"\d+").unwrap_err(), PatternError::NoNamedGroup);
        assert!(matches!(Pattern::new("(").unwrap_err(), PatternError::Regex(_)));
        assert!(matches!(Pattern::new(r"(?P<a>(\w{1000}){1000})").unwrap_err(), PatternError::Regex(_)));
    }
}
