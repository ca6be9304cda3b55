//! Tracebacks of rich: a box with a place and its code for each frame, and the exception below it.
//!
//! ```text
//! ╭───────────── Traceback (most recent call last) ─────────────╮
//! │ /home/me/train.py:33 in main                                │
//! │                                                             │
//! │   32 │   for name in names:                                 │
//! │ ❱ 33 │   │   x = table[name]                                │
//! ╰─────────────────────────────────────────────────────────────╯
//! KeyError: 'foo'
//! ```

use super::{OwnFrame, frame};

const SIDES: [char; 2] = ['│', '|'];
const BOTTOM: [char; 3] = ['╰', '└', '+'];

/// A line of such a traceback.
pub enum Line {
    /// The place of a frame.
    Frame(OwnFrame),
    /// The code of the newest frame.
    Code(String),
    /// Any other line of the box, or a blank one.
    Other,
    /// A line below the box.
    Outside,
}

/// Reads a line of a traceback, from its left side on.
pub fn read(line: &str) -> Line {
    let line = line.trim();
    let Some(inside) = line.strip_prefix(SIDES) else {
        return if line.is_empty() || line.starts_with(BOTTOM) { Line::Other } else { Line::Outside };
    };
    let inside = inside.strip_suffix(SIDES).unwrap_or(inside).trim();
    if let Some(marked) = inside.strip_prefix(['❱', '>']) {
        let code = marked.split_once(SIDES).map_or("", |(_, code)| code);
        return Line::Code(code.trim_start_matches(['│', '|', ' ']).to_owned());
    }
    parse_place(inside).map_or(Line::Other, Line::Frame)
}

/// Parses `/home/me/train.py:33 in main`.
fn parse_place(text: &str) -> Option<OwnFrame> {
    let (place, function) = text.rsplit_once(" in ")?;
    let (file, line) = place.rsplit_once(':')?;
    Some(frame(file, line.parse().ok()?, function)).filter(|_| file.contains(['/', '.', '<']))
}
