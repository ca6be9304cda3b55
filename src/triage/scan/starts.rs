//! Another start of a program in one log, which prints again what the first one began with. So a start is known that ends before
//! its first step.
//!
//! ```text
//! Namespace(batch=64)              the first lines of the log
//! reading 4711 files
//! step 1 loss 2.5                  the training has begun, so every process has printed them
//! OutOfMemoryError: …              an end
//! Namespace(batch=32)              they come again: another start
//! reading 4711 files
//! Killed
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};

/// First lines of a log that are known again.
const FIRST: usize = 3;
/// Fewest of them, and fewest letters of one.
const ENOUGH: usize = 2;
const LETTERS: usize = 6;

/// Reads the starts of a log line by line.
#[derive(Debug, Default)]
pub struct StartReader {
    /// The first lines of the log, without their numbers.
    first: Vec<u64>,
    /// How many of them were read again, and the line of the first one.
    again: usize,
    since: u64,
    /// A process of a training that had begun may have ended.
    has_ended: bool,
    has_begun: bool,
    /// The line of the newest start.
    newest: u64,
}

impl StartReader {
    /// Reads a line and its number; `has_begun`: the log has shown a step.
    pub fn push(&mut self, line: &[u8], number: u64, has_begun: bool) {
        self.has_begun = has_begun;
        if !has_begun && self.first.len() < FIRST {
            self.first.extend(hash_words(line));
        }
        if !has_begun || !self.has_ended || self.first.len() < ENOUGH {
            return;
        }
        let Some(words) = hash_words(line) else { return };
        if self.first[self.again] != words {
            self.again = 0;
        }
        if self.first[self.again] == words {
            if self.again == 0 {
                self.since = number;
            }
            self.again += 1;
        }
        if self.again == self.first.len() {
            (self.newest, self.again, self.has_ended) = (self.since, 0, false);
        }
    }

    /// Notes that the newest line may have ended a process.
    pub fn note_end(&mut self) {
        self.has_ended |= self.has_begun;
        self.again = 0;
    }

    /// Reports whether another start began after a line.
    pub fn began_after(&self, line: u64) -> bool {
        self.newest > line
    }
}

/// Returns the words of a line, none if it has few.
fn hash_words(line: &[u8]) -> Option<u64> {
    let letters = || line.iter().filter(|byte| byte.is_ascii_alphabetic());
    letters().nth(LETTERS - 1)?;
    let mut hasher = DefaultHasher::new();
    letters().for_each(|letter| letter.hash(&mut hasher));
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::StartReader;

    /// Reads a log whose steps begin with `step` and whose ends are `end`; returns the line of the newest start.
    fn newest_start(log: &[&str]) -> u64 {
        let mut starts = StartReader::default();
        let mut has_begun = false;
        for (line, number) in log.iter().zip(1..) {
            has_begun |= line.starts_with("step");
            starts.push(line.as_bytes(), number, has_begun);
            if *line == "end" {
                starts.note_end();
            }
        }
        starts.newest
    }

    #[test]
    fn the_first_lines_of_a_log_begin_another_start() {
        let banner = ["Namespace(batch=64)", "reading 4711 files"];
        let again = ["Namespace(batch=32)", "reading 4712 files"];
        assert_eq!(newest_start(&[&banner[..], &["step 1", "end"], &again].concat()), 5);
        assert_eq!(newest_start(&[&banner[..], &["step 1", "end", "resuming"], &again, &["end"]].concat()), 6);
        assert_eq!(newest_start(&[&banner[..], &["end"], &again].concat()), 0, "ranks, before a step");
        assert_eq!(newest_start(&[&banner[..], &["step 1"], &again].concat()), 0, "nothing has ended");
        assert_eq!(newest_start(&[&banner[..], &["step 1", "end"], &again[..1], &["reading on"]].concat()), 0);
        assert_eq!(newest_start(&["Namespace(batch=64)", "step 1", "end", "Namespace(batch=64)"]), 0, "one line");
    }
}
