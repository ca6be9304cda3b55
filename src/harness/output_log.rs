//! Decides which of the command's output goes to worker.log: every line, but not every redraw of a progress bar.

use std::time::{Duration, Instant};

/// Minimum interval between two redraws of the same line in the log.
const REDRAWN: Duration = Duration::from_secs(5);
/// An unfinished line is written after this time, so that a prompt becomes visible.
const UNFINISHED: Duration = Duration::from_secs(1);
/// A longer line is written in parts.
const LONGEST: usize = 1 << 16;

/// Sorts output into what is written now and what waits for the rest of its line.
#[derive(Debug, Default)]
pub struct OutputLog {
    /// The current line, from its last redraw on.
    line: Vec<u8>,
    since: Option<Instant>,
    /// A part of the current line is already in the log.
    begun: bool,
    /// The last byte was a carriage return.
    returned: bool,
    redrawn: Option<Instant>,
}

impl OutputLog {
    /// Takes new output and appends to `log` what is to be written.
    pub fn push(&mut self, bytes: &[u8], now: Instant, log: &mut Vec<u8>) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    self.line.push(b'\n');
                    log.append(&mut self.line);
                    *self = Self { redrawn: self.redrawn, ..Self::default() };
                }
                b'\r' => self.returned = true,
                byte => {
                    if std::mem::take(&mut self.returned) {
                        self.redraw(now, log);
                    }
                    self.since.get_or_insert(now);
                    self.line.push(*byte);
                    if self.line.len() >= LONGEST {
                        self.begun = true;
                        log.append(&mut self.line);
                    }
                }
            }
        }
    }

    /// Restarts the line after a carriage return.
    fn redraw(&mut self, now: Instant, log: &mut Vec<u8>) {
        let due = self.redrawn.is_none_or(|last| now.duration_since(last) >= REDRAWN);
        if due && !self.line.is_empty() || self.begun {
            self.redrawn = Some(now);
            log.append(&mut self.line);
            log.push(b'\n');
        }
        self.line.clear();
        (self.since, self.begun) = (None, false);
    }

    /// Writes an unfinished line that has waited long enough.
    pub fn tick(&mut self, now: Instant, log: &mut Vec<u8>) {
        let waited = self.since.is_some_and(|since| now.duration_since(since) >= UNFINISHED);
        // A progress bar is unfinished most of the time.
        let drawn = self.redrawn.is_some_and(|last| now.duration_since(last) < REDRAWN);
        if waited && !drawn && !self.line.is_empty() {
            self.begun = true;
            log.append(&mut self.line);
        }
    }

    /// Writes the rest at the end of the output.
    pub fn finish(&mut self, log: &mut Vec<u8>) {
        if !self.line.is_empty() || self.begun {
            log.append(&mut self.line);
            log.push(b'\n');
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{OutputLog, REDRAWN, UNFINISHED};
    use std::time::Instant;

    #[test]
    fn lines_are_kept_and_redraws_are_thinned() {
        let (mut output, mut log, mut now) = (OutputLog::default(), Vec::new(), Instant::now());
        output.push(b"one\r\ntwo\n", now, &mut log);
        assert_eq!(String::from_utf8_lossy(&log), "one\ntwo\n");
        log.clear();
        for percent in 0..100 {
            output.push(format!("\r{percent}%").as_bytes(), now, &mut log);
            now += REDRAWN / 50;
        }
        output.push(b"\r100%\n", now, &mut log);
        assert_eq!(String::from_utf8_lossy(&log), "0%\n50%\n100%\n");
    }

    #[test]
    fn a_question_without_an_end_shows_and_nothing_is_lost_at_the_end() {
        let (mut output, mut log, now) = (OutputLog::default(), Vec::new(), Instant::now());
        output.push(b"Overwrite? [y/n] ", now, &mut log);
        assert!(log.is_empty());
        output.tick(now + UNFINISHED, &mut log);
        assert_eq!(log, b"Overwrite? [y/n] ");
        output.push(b"y", now, &mut log);
        output.finish(&mut log);
        assert_eq!(log, b"Overwrite? [y/n] y\n");
        log.clear();
        output.push(&vec![b'x'; 200_000], now, &mut log);
        assert!(log.len() >= 190_000 && log.len() <= 200_000, "memory is bounded: {}", log.len());
        output.finish(&mut log);
        assert_eq!(log.len(), 200_001);
    }
}
