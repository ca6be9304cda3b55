//! Lines of a log: read in bounded memory, without colours and without the time that a container runtime writes before each.

use regex::bytes::Regex;
use std::borrow::Cow;
use std::io::{self, BufRead};
use std::sync::LazyLock;

/// Maximum bytes examined per line.
const MAX_LINE: usize = 64 << 10;
/// Maximum characters of an excerpt.
const SHOWN: usize = 400;
/// The time, stream and tag of `docker logs --timestamps`, `kubectl logs --timestamps` and the files of containerd.
const STAMP: &str = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d) ((stdout|stderr) [FP] )?";

// None only if the pattern is broken, which a test would catch.
static STAMPED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(STAMP).ok());

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

/// Returns a line as the program printed it: without colours and the runtime's stamp.
pub(super) fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = !line.iter().any(|byte| matches!(byte, 0 | 0x1b)) && line.last() != Some(&b'\r');
    let mut line = if is_plain { Cow::Borrowed(line) } else { Cow::Owned(strip_colours(line)) };
    let stamp = STAMPED.as_ref().filter(|_| line.first().is_some_and(u8::is_ascii_digit));
    if let Some(stamp) = stamp.and_then(|stamp| stamp.find(&line)).map(|stamp| stamp.end()) {
        line = match line {
            Cow::Borrowed(line) => Cow::Borrowed(&line[stamp..]),
            Cow::Owned(mut line) => Cow::Owned(line.split_off(stamp)),
        };
    }
    line
}

/// Strips terminal colour sequences from a line.
pub(super) fn strip_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (0x1b, Some(b'[')) => {
                bytes.next();
                while bytes.next().is_some_and(|byte| !(0x40..=0x7e).contains(&byte)) {}
            }
            (0, _) => {}
            _ => plain.push(byte),
        }
    }
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

/// Returns the rank that the prefix of a launcher names: `[rank1]: `, `[default1]:`.
pub(super) fn rank_of(text: &str) -> Option<u32> {
    let inside = text.trim_start().strip_prefix('[')?.split_once(']')?.0;
    let number = ["rank", "Rank ", "default"].iter().find_map(|word| inside.strip_prefix(word))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{plain, rank_of};

    #[test]
    fn the_stamp_of_a_container_runtime_is_not_part_of_the_line() {
        for (line, wanted) in [
            ("2026-11-20T10:11:12.123456789Z   File \"a.py\"", "  File \"a.py\""),
            ("2026-11-20T10:11:12.123456789Z stderr F Killed\r", "Killed"),
            ("2026-11-20T10:11:12+01:00 stdout P \x1b[31mx\x1b[0m", "x"),
            ("2026-11-20 10:11:12 INFO x", "2026-11-20 10:11:12 INFO x"),
            ("2026-11-20T10:11:12", "2026-11-20T10:11:12"),
        ] {
            assert_eq!(plain(line.as_bytes()), wanted.as_bytes(), "{line}");
        }
    }

    #[test]
    fn a_rank_is_known_by_its_prefix() {
        for (text, rank) in
            [("[rank1]: x", Some(1)), ("[default12]:x", Some(12)), ("[rank0]:[E1127 x]", Some(0)), ("[1/2] x", None)]
        {
            assert_eq!(rank_of(text), rank, "{text}");
        }
    }
}
