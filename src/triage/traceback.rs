//! Python tracebacks in a log: the last frame of each in the user's own files, where a mistake is likely to be found.
//!
//! ```text
//! Traceback (most recent call last):
//!   File "/home/me/train.py", line 40, in <module>          own
//!   File "/home/me/model.py", line 12, in forward           own, and the last: this one is shown
//!   File "…/site-packages/torch/nn/functional.py", line 9   not own
//! torch.OutOfMemoryError: CUDA out of memory.
//! ```
//! Launchers put a prefix such as `[rank0]: ` before each line, so the tracebacks of several processes may alternate.

use super::scan::strip_colours;
use crate::untrusted::text::clip_line;
use serde::Serialize;
use std::fmt;

/// Maximum tracebacks that are read at the same time, one a process.
const OPEN: usize = 64;
/// Maximum tracebacks kept; later ones replace the last.
const KEPT: usize = 64;
/// Maximum bytes of a line that are read.
const LINE: usize = 2_000;
/// Maximum letters of an exception that are shown.
const SHOWN: usize = 200;
/// The first line of a traceback.
const HEAD: &str = "Traceback (most recent call last):";

/// A frame in one of the user's own files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnFrame {
    /// The file, as Python printed it.
    pub file: String,
    /// The line in it.
    pub line: u64,
    /// The function; empty for a syntax error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// The line's code, if Python printed it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The line of the log with the exception.
    pub exception_line: u64,
    /// The exception, as Python printed it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exception: String,
}

impl OwnFrame {
    /// Describes the frame and its exception, where no known cause has told that already.
    #[must_use]
    pub fn describe_with_exception(&self) -> String {
        if self.exception.is_empty() { self.to_string() } else { format!("{} at {self}", self.exception) }
    }
}

impl fmt::Display for OwnFrame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)?;
        if !self.function.is_empty() {
            write!(formatter, ", in {}", self.function)?;
        }
        if self.code.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.code) }
    }
}

/// Reads tracebacks line by line.
#[derive(Debug, Default)]
pub struct TracebackReader {
    open: Vec<Traceback>,
    frames: Vec<OwnFrame>,
}

/// A traceback that has not reached its exception yet.
#[derive(Debug)]
struct Traceback {
    /// The text before each of its lines.
    prefix: String,
    own: Option<OwnFrame>,
    /// Whether any frame was read.
    has_frames: bool,
    /// Whether the next line is the code of the frame in `own`.
    expects_code: bool,
}

impl TracebackReader {
    /// Reads a line and its number. Reports whether it is the exception that ends a traceback.
    pub fn push(&mut self, line: &[u8], number: u64) -> bool {
        let line = strip_colours(&line[..line.len().min(LINE)]);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Some(at) = text.find(HEAD) {
            let prefix = &text[..at];
            // A second one of the same process belongs to an exception raised while the first was handled.
            self.open.retain(|traceback| traceback.prefix != prefix);
            if self.open.len() < OPEN {
                self.open.push(Traceback {
                    prefix: prefix.to_owned(),
                    own: None,
                    has_frames: false,
                    expects_code: false,
                });
            }
            return false;
        }
        self.drop_text_before_head(text);
        let prefixed = |traceback: &&(usize, usize)| traceback.1 > 0;
        let matching = self.open.iter().enumerate().filter(|(_, traceback)| text.starts_with(&traceback.prefix));
        let matching: Vec<(usize, usize)> =
            matching.map(|(index, traceback)| (index, traceback.prefix.len())).collect();
        // A line with a known prefix belongs to that process alone.
        let Some((index, length)) = matching.iter().find(prefixed).or(matching.first()).copied() else { return false };
        let ends = self.open[index].read(&text[length..], number);
        if ends {
            let traceback = self.open.swap_remove(index);
            if let Some(frame) = traceback.own {
                self.frames.truncate(KEPT - 1);
                self.frames.push(frame);
            }
        }
        ends
    }

    /// Drops what stood before the head on its line, if its first frame does not have it: a progress bar has no line end.
    fn drop_text_before_head(&mut self, text: &str) {
        let newest = self.open.last_mut().filter(|traceback| !traceback.has_frames);
        if let Some(newest) = newest.filter(|newest| text.starts_with("  File \"") && !text.starts_with(&newest.prefix))
        {
            newest.prefix.clear();
        }
    }

    /// Returns the own frame of each traceback.
    #[must_use]
    pub fn finish(self) -> Vec<OwnFrame> {
        self.frames
    }
}

impl Traceback {
    /// Reads a line; returns true at the exception, which ends the traceback.
    fn read(&mut self, line: &str, number: u64) -> bool {
        if let Some(place) = line.trim_start().strip_prefix("File \"").filter(|_| line.starts_with(' ')) {
            self.has_frames = true;
            let frame = parse_frame(place).filter(|frame| is_own(&frame.file));
            self.expects_code = frame.is_some();
            self.own = frame.or_else(|| self.own.take());
            return false;
        }
        if line.starts_with(' ') {
            if let Some(own) = self.own.as_mut().filter(|_| self.expects_code) {
                line.trim().clone_into(&mut own.code);
            }
            self.expects_code = false;
            return false;
        }
        if let Some(own) = &mut self.own {
            own.exception_line = number;
            own.exception = clip_line(line.trim(), SHOWN);
        }
        true
    }
}

/// Parses `/home/me/train.py", line 40, in main`.
fn parse_frame(text: &str) -> Option<OwnFrame> {
    let (file, rest) = text.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    Some(OwnFrame {
        file: file.to_owned(),
        line: line.trim().parse().ok()?,
        function: function.to_owned(),
        code: String::new(),
        exception_line: 0,
        exception: String::new(),
    })
}

/// Where files that are not the user's own lie: installed packages, and downshift's companion.
const INSTALLED: [&str; 3] = ["/site-packages/", "/dist-packages/", "/downshift/companion-"];

/// Reports whether a file is the user's own: neither an installed package nor a part of Python.
pub(super) fn is_own(file: &str) -> bool {
    let installed = INSTALLED.iter().any(|part| file.contains(part));
    let library =
        file.split("/lib/python").nth(1).is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    !(file.starts_with('<') || installed || library)
}

/// Returns the frame of the traceback that ends in this line of the log, or near it; else that of the last one.
#[must_use]
pub fn frame_of(frames: &[OwnFrame], line: u64) -> Option<&OwnFrame> {
    frames.iter().find(|frame| frame.exception_line >= line).or(frames.last())
}

#[cfg(test)]
mod tests {
    use super::{OwnFrame, TracebackReader, frame_of};
    use proptest::prelude::*;
    use std::fmt::Write as _;

    fn frames(log: &str) -> Vec<OwnFrame> {
        let mut reader = TracebackReader::default();
        for (index, line) in log.lines().enumerate() {
            reader.push(line.as_bytes(), index as u64 + 1);
        }
        reader.finish()
    }

    const LOG: &str = "step 1\nTraceback (most recent call last):\n  File \"/home/me/train.py\", line 40, in <module>\n    \
        main()\n    ~~~~^^\n  File \"/home/me/model.py\", line 12, in forward\n    return self.fc(x)\n           ^^^^^^^^^^\n  \
        File \"/venv/lib/python3.12/site-packages/torch/nn/functional.py\", line 9, in linear\n    return linear(x)\n  \
        File \"/usr/lib/python3.12/runpy.py\", line 5, in run\n  File \"<frozen importlib._bootstrap>\", line 1, in f\n\
        torch.OutOfMemoryError: CUDA out of memory.\nafter\n";

    #[test]
    fn the_last_own_frame_is_found_behind_those_of_packages() {
        let found = frames(LOG);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "/home/me/model.py:12, in forward: return self.fc(x)");
        assert_eq!(found[0].exception_line, 13);
        assert_eq!(
            found[0].describe_with_exception(),
            "torch.OutOfMemoryError: CUDA out of memory. at /home/me/model.py:12, in forward: return self.fc(x)"
        );
    }

    #[test]
    fn ranks_that_print_at_the_same_time_are_told_apart() {
        let mut log = String::new();
        for (line, second) in LOG.lines().skip(1).zip(LOG.replace("model.py", "other.py").lines().skip(1)) {
            let _ = write!(log, "[rank0]: {line}\n[rank1]: {second}\nnoise\n");
        }
        let files: Vec<String> = frames(&log).into_iter().map(|frame| frame.file).collect();
        assert_eq!(files, ["/home/me/model.py", "/home/me/other.py"]);
    }

    #[test]
    fn the_traceback_of_the_cause_is_chosen_and_one_without_own_frames_is_none() {
        let second = "\nDuring handling of the above exception, another exception occurred:\n\n\
                      Traceback (most recent call last):\n  File \"/home/me/save.py\", line 3, in save\nOSError: no space\n";
        let found = frames(&format!("{LOG}{second}"));
        assert_eq!(frame_of(&found, 13).unwrap().file, "/home/me/model.py");
        assert_eq!(frame_of(&found, 20).unwrap().file, "/home/me/save.py");
        assert_eq!(frame_of(&found, 999).unwrap().file, "/home/me/save.py");
        let after_a_bar = frames(
            "\r  7%|#   | 99/1000 [00:04<00:40, 22it/s]Traceback (most recent call last):\n  File \"/home/me/a.py\", \
                                  line 9, in <module>\n    raise ValueError(\"x\")\nValueError: x\n\r  7%|#   | 99/1000\n",
        );
        assert_eq!((after_a_bar[0].line, after_a_bar[0].exception.as_str()), (9, "ValueError: x"));
        let alien = "Traceback (most recent call last):\n  File \"/x/site-packages/a.py\", line 1, in f\nValueError\n";
        assert_eq!(frames(alien), []);
        assert_eq!(frames(&alien.replace("/x/site-packages", "/c/downshift/companion-1a2b/downshift")), []);
        let syntax =
            "Traceback (most recent call last):\n  File \"t.py\", line 1\n    x = = 1\nSyntaxError: invalid syntax\n";
        assert_eq!(frames(syntax)[0].to_string(), "t.py:1: x = = 1");
    }

    proptest! {
        #[test]
        fn no_log_brings_it_down(parts in proptest::collection::vec(prop::sample::select(vec![
            "Traceback (most recent call last):", "\n", "  File \"", "a.py", "\", line ", "7", ", in f", "    code", "[rank0]: ", "é"
        ]), 0..60)) {
            frames(&parts.concat());
        }
    }
}
