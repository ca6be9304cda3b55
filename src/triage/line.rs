//! Lines of a log: read in bounded memory, without colours.

use crate::untrusted::escapes;
use std::borrow::Cow;
use std::io::{self, BufRead};

/// Maximum bytes examined per line.
const MAX_LINE: usize = 64 << 10;
/// Maximum characters of an excerpt.
const SHOWN: usize = 400;

/// Reads the next line without its end; returns false at the end of the log. Bytes beyond the limit are
/// read and discarded.
pub(super) fn next_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let available = match log.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE.saturating_sub(line.len()))]);
        let used = part.len() + usize::from(end.is_some());
        log.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Returns a line without what was meant for a terminal.
pub(super) fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = !line.iter().any(|byte| matches!(byte, 0 | 0x1b)) && line.last() != Some(&b'\r');
    if is_plain { Cow::Borrowed(line) } else { Cow::Owned(strip_terminal(line)) }
}

/// Strips escape sequences, zero bytes and the carriage returns at the end.
pub(super) fn strip_terminal(line: &[u8]) -> Vec<u8> {
    let mut plain = escapes::strip(line).into_owned();
    plain.retain(|byte| *byte != 0);
    while plain.last() == Some(&b'\r') {
        plain.pop();
    }
    plain
}

/// Returns the part of a line around byte `at` that fits on a screen.
pub(super) fn excerpt(line: &[u8], at: usize) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if text.chars().count() <= SHOWN {
        return text.trim_start().to_owned();
    }
    let before = String::from_utf8_lossy(&line[..at]).chars().count();
    let from = before.saturating_sub(SHOWN / 4);
    let part: String = text.chars().skip(from).take(SHOWN).collect();
    let dots = |is: bool| if is { "…" } else { "" };
    format!("{}{}{}", dots(from > 0), part.trim(), dots(text.chars().count() > from + SHOWN))
}
