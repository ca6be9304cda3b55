//! Python tracebacks in a log: the exception that ended each, and the last frame in the user's own files, where a mistake
//! is likely to be found.
//!
//! ```text
//! Traceback (most recent call last):
//!   File "/home/me/train.py", line 40, in <module>          own
//!   File "/home/me/model.py", line 12, in forward           own, and the last: this one is shown
//!   File "…/site-packages/torch/nn/functional.py", line 9   not own
//! torch.OutOfMemoryError: CUDA out of memory.
//! ```
//! Launchers put a prefix such as `[rank0]: ` before each line, so the tracebacks of several processes may alternate.
//! Those of exception groups are indented, and rich draws its own in a box (`traceback/boxed.rs`). A process that
//! crashes in native code leaves a stack instead (`traceback/fatal.rs`).

mod boxed;
mod fatal;
mod heading;
mod own;

use crate::log_metrics::prefix::{LinePrefix, rank_of};
use crate::untrusted::text::clip_line;
use aho_corasick::AhoCorasick;
use fatal::FatalReader;
use heading::{Heading, Headings};
pub use own::frame_of;
pub(super) use own::is_own;
use serde::Serialize;
use std::fmt;
use std::sync::LazyLock;

/// Text in the lines that begin a traceback or announce one. Nearly every line has none.
static MARKS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::new(heading::texts().chain(fatal::HEADS)).ok());

/// Maximum tracebacks that are read at the same time, one a process.
const OPEN: usize = 64;
/// Maximum exceptions kept; later ones replace the last.
const KEPT: usize = 64;
/// Maximum bytes of a line that are read.
const LINE: usize = 2_000;
/// Maximum letters of an exception that are shown.
const SHOWN: usize = 200;
/// A process of Python that cleans up after the program.
const HELPER: &str = "multiprocessing/resource_tracker.py";

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

/// How an exception follows from the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It does not.
    None,
    /// It was raised while that one was handled.
    Handled,
    /// That one brought it about.
    Caused,
}

/// An exception that ended a traceback, or a fatal error with the stack of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Its line in the log.
    pub line: u64,
    /// Its text, as Python printed it.
    pub text: String,
    /// The prefix of the process that raised it, and the name of a child process or thread.
    pub source: String,
    /// How it follows from the one before it from the same source.
    pub link: Link,
    /// Whether it ended a thread, which the process survives.
    pub is_of_thread: bool,
    /// The last frame in the user's own files.
    pub own: Option<OwnFrame>,
    /// Whether it holds the exceptions that follow it.
    is_group: bool,
}

impl Exception {
    /// Reads the last line of a log whose traceback was lost: `torch.cuda.DeferredCudaCallError: …`.
    #[must_use]
    pub fn of_last_line(text: &str, line: u64) -> Option<Self> {
        let (name, _) = text.split_once(": ")?;
        let is_class = (name.ends_with("Error") || name.ends_with("Exception"))
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._".contains(letter));
        is_class.then(|| Self {
            line,
            text: clip_line(text, SHOWN),
            source: String::new(),
            link: Link::None,
            is_of_thread: false,
            own: None,
            is_group: false,
        })
    }

    /// Reports whether it follows from the one before it.
    #[must_use]
    pub fn is_chained(&self) -> bool {
        self.link != Link::None
    }

    /// Returns the name of its class, without the module.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.text.split(':').next().unwrap_or_default();
        name.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the rank that raised it, where a launcher names it.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        rank_of(&self.source)
    }
}

/// How a line relates to a traceback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It is outside of any.
    Outside,
    /// It belongs to one, or announces it.
    Inside,
    /// It is the exception that ends one.
    Exception,
    /// It is one that changes nothing.
    Ignored,
}

/// Reads tracebacks line by line.
#[derive(Debug, Default)]
pub struct TracebackReader {
    open: Vec<Traceback>,
    headings: Headings,
    fatal: FatalReader,
    exceptions: Vec<Exception>,
    /// The traceback that ended last.
    ended: Option<Ended>,
}

/// A traceback that has ended.
#[derive(Debug)]
struct Ended {
    prefix: LinePrefix,
    heading: Option<Heading>,
    line: u64,
}

/// The way a traceback is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By Python.
    Plain,
    /// By rich, in a box.
    Boxed,
}

/// A traceback that has not reached its exception yet.
#[derive(Debug)]
struct Traceback {
    /// The text before each of its lines.
    prefix: LinePrefix,
    form: Form,
    heading: Option<Heading>,
    own: Option<OwnFrame>,
    /// Whether any frame was read.
    has_frames: bool,
    /// Whether the next line is the code of the frame in `own`.
    expects_code: bool,
    /// Whether it is part of an exception group.
    is_member: bool,
}

impl TracebackReader {
    /// Reads a line and its number.
    pub fn push(&mut self, line: &[u8], number: u64) -> Part {
        let is_marked = MARKS.as_ref().is_none_or(|marks| marks.is_match(line));
        let follows_end = self.ended.as_ref().is_some_and(|ended| ended.line + 1 == number);
        if !is_marked && self.open.is_empty() && !follows_end && !self.fatal.is_open() {
            return Part::Outside;
        }
        let text = String::from_utf8_lossy(&line[..line.len().min(LINE)]);
        let text = text.trim_end();
        if let Some(opened) = self.begin(text, number) {
            // A second one of the same process belongs to an exception raised while the first was handled.
            self.open.retain(|traceback| traceback.prefix != opened.prefix);
            if self.open.len() < OPEN {
                self.open.push(opened);
            }
            return Part::Inside;
        }
        if self.headings.push(text, number) || self.fatal.push(text, number) {
            return Part::Inside;
        }
        self.reopen(text, number);
        self.drop_text_before_head(text);
        let prefixed = |traceback: &&(usize, usize)| traceback.1 > 0;
        let behind = |traceback: &Traceback| Some(text.len() - traceback.prefix.strip(text)?.len());
        let matching = self.open.iter().enumerate();
        let matching: Vec<(usize, usize)> =
            matching.filter_map(|(index, traceback)| Some((index, behind(traceback)?))).collect();
        // A line with a known prefix belongs to that process alone.
        let Some((index, length)) = matching.iter().find(prefixed).or(matching.first()).copied() else {
            return Part::Outside;
        };
        if !self.open[index].read(&text[length..]) {
            return Part::Inside;
        }
        let traceback = self.open.swap_remove(index);
        self.end(traceback, clip_line(text[length..].trim(), SHOWN), number)
    }

    /// Returns the traceback that a line begins.
    fn begin(&mut self, text: &str, number: u64) -> Option<Traceback> {
        let head = heading::find_head(text)?;
        let prefix = LinePrefix::read(&head.prefix);
        let heading = if head.is_retold { Some(Heading::Chained) } else { self.headings.take(&prefix, number) };
        Some(Traceback {
            prefix,
            form: if head.is_boxed { Form::Boxed } else { Form::Plain },
            heading,
            own: None,
            has_frames: false,
            expects_code: false,
            is_member: head.is_member,
        })
    }

    /// Goes on with a traceback behind whose exception stand the frames of another process, as those of Ray do:
    /// `RayTaskError(ValueError): ray::train() (pid=77)`.
    fn reopen(&mut self, text: &str, number: u64) {
        let follows = |ended: &Ended| {
            ended.line + 1 == number && ended.prefix.strip(text).is_some_and(|text| text.starts_with("  File \""))
        };
        let Some(ended) = self.ended.take_if(|ended| follows(ended)) else { return };
        let Some(known) = self.exceptions.pop_if(|last| last.line == ended.line) else { return };
        self.open.push(Traceback {
            prefix: ended.prefix,
            form: Form::Plain,
            heading: ended.heading,
            own: known.own,
            has_frames: true,
            expects_code: false,
            is_member: false,
        });
    }

    /// Takes the exception of a traceback that has ended.
    fn end(&mut self, traceback: Traceback, text: String, line: u64) -> Part {
        self.ended = Some(Ended { prefix: traceback.prefix.clone(), heading: traceback.heading.clone(), line });
        if traceback.heading == Some(Heading::Ignored) {
            return Part::Ignored;
        }
        // The first member of a group stands for it; the others follow.
        let group = self.exceptions.pop_if(|last| traceback.is_member && last.is_group);
        let (group_own, follows) =
            group.map_or((None, traceback.is_member), |group| (group.own, group.link != Link::None));
        let own = traceback.own.or(group_own);
        let own = own.map(|own| OwnFrame { exception_line: line, exception: text.clone(), ..own });
        let mut source = traceback.prefix.name().trim_end_matches([' ', '|']).to_owned();
        let relation = match traceback.heading {
            Some(Heading::Caused) => Link::Caused,
            Some(Heading::Chained) => Link::Handled,
            _ if follows => Link::Handled,
            _ => Link::None,
        };
        let is_of_thread = matches!(traceback.heading, Some(Heading::Thread(_)));
        if let Some(Heading::Process(name) | Heading::Thread(name)) = traceback.heading {
            source.push_str(&name);
        }
        let is_group = text.split(':').next().is_some_and(|name| name.ends_with("ExceptionGroup"));
        self.keep(Exception { line, text, source, link: relation, is_of_thread, own, is_group });
        Part::Exception
    }

    fn keep(&mut self, exception: Exception) {
        self.exceptions.truncate(KEPT - 1);
        self.exceptions.push(exception);
    }

    /// Drops what stood before the head on its line, if its first frame does not have it: a progress bar has no line end.
    fn drop_text_before_head(&mut self, text: &str) {
        let newest = self.open.last_mut().filter(|traceback| !traceback.has_frames);
        let is_other = |newest: &&mut Traceback| newest.prefix.strip(text).is_none();
        if let Some(newest) = newest.filter(|newest| text.starts_with("  File \"") && is_other(newest)) {
            newest.prefix = LinePrefix::read("");
        }
    }

    /// Returns the exceptions in log order.
    #[must_use]
    pub fn finish(mut self) -> Vec<Exception> {
        if let Some(fatal) = std::mem::take(&mut self.fatal).finish() {
            self.keep(fatal);
        }
        self.exceptions.sort_by_key(|exception| exception.line);
        self.exceptions
    }
}

impl Traceback {
    /// Reads a line; returns true at the exception, which ends the traceback.
    fn read(&mut self, line: &str) -> bool {
        match self.form {
            Form::Boxed => match boxed::read(line) {
                boxed::Line::Frame(frame) => {
                    self.own = Some(frame).filter(|frame| is_own(&frame.file)).or_else(|| self.own.take());
                    false
                }
                boxed::Line::Code(code) => {
                    if let Some(own) = &mut self.own {
                        own.code = code;
                    }
                    false
                }
                boxed::Line::Other => false,
                boxed::Line::Outside => true,
            },
            Form::Plain => self.read_plain(line),
        }
    }

    fn read_plain(&mut self, line: &str) -> bool {
        if let Some(place) = line.trim_start().strip_prefix("File \"").filter(|_| line.starts_with(' ')) {
            self.has_frames = true;
            if place.contains(HELPER) {
                self.heading = Some(Heading::Ignored);
            }
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
        true
    }
}

/// Parses `/home/me/train.py", line 40, in main`.
fn parse_frame(text: &str) -> Option<OwnFrame> {
    let (file, rest) = text.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    Some(frame(file, line.trim().parse().ok()?, function))
}

fn frame(file: &str, line: u64, function: &str) -> OwnFrame {
    OwnFrame {
        file: file.to_owned(),
        line,
        function: function.to_owned(),
        code: String::new(),
        exception_line: 0,
        exception: String::new(),
    }
}

#[cfg(test)]
mod tests;
