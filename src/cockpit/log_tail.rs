//! Tail of the worker's log: whole lines added since the last read, with cursor movement and colour
//! codes stripped.

use crate::store::worker_log::LogFiles;
use crate::untrusted::escapes;
use std::io::{self, Read};
use std::path::PathBuf;

const FIRST: u64 = 256 * 1024;
const ONCE: u64 = 1024 * 1024;
const LINE: usize = 2_000;

/// A growing file, read from near its end.
#[derive(Debug)]
pub struct LogTail {
    path: PathBuf,
    offset: Option<u64>,
    rest: Vec<u8>,
}

impl LogTail {
    /// Creates a tail of a file that may not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: None, rest: Vec::new() }
    }

    /// Returns the lines since the last call; the first call returns those in the last 256 KiB. A file
    /// that cannot be read yields no lines and is retried on the next call.
    pub fn read_new_lines(&mut self) -> Vec<String> {
        self.try_read().unwrap_or_default()
    }

    fn try_read(&mut self) -> io::Result<Vec<String>> {
        let files = LogFiles::open(&self.path)?;
        let mut from = self.offset.unwrap_or_else(|| files.end().saturating_sub(FIRST)).max(files.start());
        if from > files.end() {
            // Somebody truncated the file.
            from = files.begin_of_newer();
            self.rest.clear();
        }
        let within_a_line = self.offset.is_none() && from > 0;
        let mut bytes = Vec::new();
        let read = files.read(from, from.saturating_add(ONCE))?.read_to_end(&mut bytes)?;
        self.offset = Some(from + read as u64);
        self.rest.extend(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            self.rest.truncate(LINE);
            return Ok(Vec::new());
        };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        let text = String::from_utf8_lossy(&whole);
        Ok(text.lines().skip(usize::from(within_a_line)).map(strip_escapes).collect())
    }
}

/// Strips a line to its visible text: removes escape sequences and keeps only the last state of a progress bar.
#[must_use]
pub fn strip_escapes(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let last = line.rsplit('\r').next().unwrap_or(line);
    let mut text = String::new();
    for letter in String::from_utf8_lossy(&escapes::strip(last.as_bytes())).chars() {
        match letter {
            '\t' => text.push_str("    "),
            letter if letter.is_control() => {}
            letter => text.push(letter),
        }
        if text.len() >= LINE {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{LogTail, strip_escapes};
    use crate::store::worker_log::BoundedLog;
    use std::fs::OpenOptions;
    use std::io::Write;

    #[test]
    fn lines_come_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.log");
        let mut tail = LogTail::new(path.clone());
        assert!(tail.read_new_lines().is_empty());
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        write!(file, "one\ntwo\nthr").unwrap();
        assert_eq!(tail.read_new_lines(), ["one", "two"]);
        writeln!(file, "ee").unwrap();
        assert_eq!(tail.read_new_lines(), ["three"]);
        assert!(tail.read_new_lines().is_empty());
        std::fs::write(&path, "anew\n").unwrap();
        assert_eq!(tail.read_new_lines(), ["anew"]);
    }

    #[test]
    fn lines_of_a_log_that_begins_anew_come_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.log");
        let file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let (mut log, mut tail) = (BoundedLog::with_limit(file, 200), LogTail::new(path.clone()));
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for line in 0..500 {
            log.write(format!("line {line}\n").as_bytes());
            written.push(format!("line {line}"));
            if line % 13 == 0 {
                read.extend(tail.read_new_lines());
            }
        }
        read.extend(tail.read_new_lines());
        assert_eq!(read, written);
        assert!(LogTail::new(path).read_new_lines().len() > 20, "the last lines, also of the file before");
    }

    #[test]
    fn a_long_file_is_read_from_near_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.log");
        let lines: Vec<_> = (0..100_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, lines.concat()).unwrap();
        let read = LogTail::new(path).read_new_lines();
        assert_eq!(read.last().map(String::as_str), Some("line 99999"));
        assert!(read.len() < 30_000 && read.iter().all(|line| line.starts_with("line ")));
    }

    #[test]
    fn escapes_and_progress_bars_are_plain_text() {
        assert_eq!(strip_escapes("\u{1b}[1;31mred\u{1b}[0m and \u{1b}]0;title\u{7}more"), "red and more");
        assert_eq!(strip_escapes("10 %\r20 %\r30 %\r"), "30 %");
        assert_eq!(strip_escapes("a\tb\u{8}"), "a    b");
    }
}
