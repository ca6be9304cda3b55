//! The stack that `faulthandler` writes when a process crashes in native code.
//!
//! ```text
//! Fatal Python error: Segmentation fault
//!
//! Current thread 0x00007f6e3edd1b80 (most recent call first):
//!   File "/home/me/ops.py", line 12 in fwd
//! ```

use super::{Exception, Link, OwnFrame, SHOWN, frame, is_own};
use crate::log_metrics::prefix::LinePrefix;
use crate::triage::python_stack::{is_thread, parse_frame};
use crate::untrusted::text::clip_line;

/// Begin the stack on Unix and on Windows.
pub const HEADS: [&str; 2] = ["Fatal Python error: ", "Windows fatal exception: "];
const CURRENT: &str = "Current thread ";

/// Reads the newest crash of a log.
#[derive(Debug, Default)]
pub struct FatalReader(Option<Fatal>);

#[derive(Debug)]
struct Fatal {
    /// The text before each of its lines.
    prefix: LinePrefix,
    text: String,
    line: u64,
    own: Option<OwnFrame>,
    /// Whether the frames of this thread count: the current one, or the first until that comes.
    counts: bool,
    threads: usize,
}

impl FatalReader {
    /// Reports whether lines of a stack may follow.
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Reads a line; reports whether it belongs to the stack.
    pub fn push(&mut self, text: &str, line: u64) -> bool {
        if let Some(at) = HEADS.iter().find_map(|head| text.find(head)) {
            let (prefix, text) = (LinePrefix::read(&text[..at]), clip_line(&text[at..], SHOWN));
            self.0 = Some(Fatal { prefix, text, line, own: None, counts: false, threads: 0 });
            // The line names the failure by itself.
            return false;
        }
        let Some(fatal) = &mut self.0 else { return false };
        let Some(text) = fatal.prefix.strip(text) else { return false };
        if is_thread(text) {
            fatal.threads += 1;
            fatal.counts = text.starts_with(CURRENT) || fatal.threads == 1;
            fatal.own = fatal.own.take().filter(|_| !text.starts_with(CURRENT));
            return true;
        }
        let Some(found) = parse_frame(text) else { return false };
        // The innermost comes first.
        if fatal.counts && fatal.own.is_none() && is_own(&found.file) {
            fatal.own = Some(frame(&found.file, found.line, &found.function));
        }
        true
    }

    /// Returns the crash with the innermost frame in the user's own files.
    pub fn finish(self) -> Option<Exception> {
        let Fatal { prefix, text, line, own, .. } = self.0?;
        let source = prefix.name();
        let own = own.map(|own| OwnFrame { exception_line: line, exception: text.clone(), ..own });
        Some(Exception { line, text, source, link: Link::None, is_of_thread: false, own, is_group: false })
    }
}
