//! The lines that begin a traceback or say what it follows from.

use crate::log_metrics::prefix::LinePrefix;

/// The first line of a traceback.
const HEAD: &str = "Traceback (most recent call last)";
/// Begins the head of an exception group, which is indented like its members.
const GROUP: &str = "+ Exception Group ";
/// Begins the head of an exception of another process that is told once more.
const RETOLD: &str = "Original ";
/// Between the members of an exception group, around their number.
const RULE: &str = "+---------------- ";
/// Between two tracebacks of which the first explains the second, or brought it about.
const LINKS: [(&str, Heading); 3] = [
    ("During handling of the above exception, another exception occurred:", Heading::Chained),
    ("The above exception was the direct cause of the following exception:", Heading::Caused),
    ("terminated with the following error:", Heading::Chained),
];
/// Before the traceback of an exception that changes nothing.
const IGNORED: [&str; 5] = [
    "Exception ignored ",
    "--- Logging error ---",
    "Error in atexit._run_exitfuncs",
    "exception was never retrieved",
    "Exception in callback ",
];
/// Begin the name of a child process and that of a thread.
const PROCESS: &str = "Process ";
const THREAD: &str = "Exception in thread ";
/// Lines between a heading and its traceback, and headings that wait for one.
const NEAR: u64 = 8;
const WAITING: usize = 64;

/// The first line of a traceback, in parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The text before each line of the traceback.
    pub prefix: String,
    /// Whether it was printed before by another process.
    pub is_retold: bool,
    /// Whether it belongs to an exception group.
    pub is_member: bool,
    /// Whether it is drawn as a box.
    pub is_boxed: bool,
}

/// Returns the texts of which every head and heading holds one.
pub fn texts() -> impl Iterator<Item = &'static str> {
    [HEAD, RULE, PROCESS, THREAD].into_iter().chain(LINKS.iter().map(|(link, _)| *link)).chain(IGNORED)
}

/// Reads the first line of a traceback.
pub fn find_head(text: &str) -> Option<Head> {
    if let Some(at) = text.rfind(RULE).filter(|_| text.ends_with(" ----------------")) {
        let prefix = text[..at].replace(['+', '-'], " ") + "| ";
        return Some(Head { prefix, is_retold: false, is_member: true, is_boxed: false });
    }
    let at = text.find(HEAD)?;
    let (before, after) = (&text[..at], &text[at + HEAD.len()..]);
    if !after.starts_with(':') {
        // `╭─── Traceback (most recent call last) ───╮`
        let drawn = before.trim_end_matches([' ', '─', '-']).strip_suffix(['╭', '+', '┌'])?;
        return Some(Head { prefix: drawn.to_owned(), is_retold: false, is_member: false, is_boxed: true });
    }
    let (prefix, is_retold) = before.strip_suffix(RETOLD).map_or((before, false), |before| (before, true));
    let prefix = match prefix.strip_suffix(GROUP) {
        Some(before) => format!("{before}| "),
        None => prefix.to_owned(),
    };
    let is_member = prefix.ends_with("   | ");
    Some(Head { prefix, is_retold, is_member, is_boxed: false })
}

/// The role of a traceback, named by the line before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heading {
    /// An exception that was raised while the one before it was handled.
    Chained,
    /// An exception that the one before it brought about.
    Caused,
    /// An exception that Python ignored.
    Ignored,
    /// An exception of a child process.
    Process(String),
    /// An exception of a thread.
    Thread(String),
}

impl Heading {
    /// Reads a heading, and the prefix of its process.
    fn read(text: &str) -> Option<(&str, Self)> {
        if let Some((at, link)) = LINKS.iter().find_map(|(link, heading)| Some((text.find(link)?, heading))) {
            let before = &text[..at];
            // `-- Process 1 terminated with the following error:`
            return Some((before.find("-- Process ").map_or(before, |at| &before[..at]), link.clone()));
        }
        if let Some(at) = IGNORED.iter().find_map(|words| text.find(words)) {
            return Some((&text[..at], Self::Ignored));
        }
        let child = text.strip_suffix(':')?;
        let process = child.rfind(PROCESS).filter(|at| !child[at + PROCESS.len()..].contains(' '));
        if let Some(at) = process {
            return Some((&child[..at], Self::Process(child[at..].to_owned())));
        }
        let at = child.find(THREAD)?;
        Some((&child[..at], Self::Thread(child[at..].to_owned())))
    }
}

/// Headings whose traceback has not begun.
#[derive(Debug, Default)]
pub struct Headings(Vec<(LinePrefix, u64, Heading)>);

impl Headings {
    /// Reads a line; reports whether it is a heading.
    pub fn push(&mut self, text: &str, number: u64) -> bool {
        let Some((prefix, heading)) = Heading::read(text) else { return false };
        if self.0.len() == WAITING {
            self.0.remove(0);
        }
        self.0.push((LinePrefix::read(prefix), number, heading));
        true
    }

    /// Takes the heading of the traceback that begins in this line.
    pub fn take(&mut self, prefix: &LinePrefix, number: u64) -> Option<Heading> {
        let at = self.0.iter().rposition(|(before, _, _)| before == prefix)?;
        let (_, line, heading) = self.0.remove(at);
        (number - line <= NEAR).then_some(heading)
    }
}
