//! The output of a command in which no step was found.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Lines that name no step, and a pattern that reads the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadOutput {
    /// The number of lines.
    pub lines: u64,
    /// The newest line, as it was printed.
    pub newest: String,
    /// A regular expression that names its numbers; none if none of them can be a step.
    pub pattern: Option<String>,
}

impl fmt::Display for UnreadOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, newest, pattern } = self;
        write!(formatter, "no step was found in {lines} lines of output; the newest is `{newest}`. ")?;
        match pattern {
            Some(pattern) => {
                let quoted = pattern.replace('\'', "''");
                write!(formatter, "In a run file, this reads it: metrics: {{ patterns: ['{quoted}'] }}")
            }
            None => write!(formatter, "Print the step beside the loss, as in `step 10 loss 0.5`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::UnreadOutput;

    #[test]
    fn the_pattern_can_be_pasted() {
        let pattern = Some(r"it's=(?P<step>\d+) L=(?P<loss>\S+)".to_owned());
        let unread = UnreadOutput { lines: 20, newest: "it's=5 L=0.3".to_owned(), pattern };
        let text = unread.to_string();
        assert!(text.contains(r"metrics: { patterns: ['it''s=(?P<step>\d+) L=(?P<loss>\S+)'] }"), "{text}");
    }
}
