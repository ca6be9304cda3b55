//! Splits the bytes that a program writes to a terminal into segments of plain text: a progress bar redraws its line
//! after a carriage return, and colours and cursor moves are not text.

/// Maximum length of a segment in bytes; a longer one is dropped.
const MAX_SEGMENT: usize = 16 << 10;

/// The movement that ended a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A line feed.
    Line,
    /// A carriage return, or a cursor move within the screen.
    Return,
    /// A cursor move up: the segment was drawn below another one.
    Up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// A control sequence (`ESC [`).
    Control,
    /// A string for the terminal (`ESC ]`, `ESC P`, …), up to BEL or `ESC \`.
    String,
    /// `ESC` within such a string.
    StringEscape,
}

/// The unfinished segment of one stream.
#[derive(Debug)]
pub struct Screen {
    text: Vec<u8>,
    overlong: bool,
    state: State,
}

impl Screen {
    pub fn new() -> Self {
        Self { text: Vec::new(), overlong: false, state: State::Text }
    }

    /// Calls `each` with every segment that these bytes complete; empty segments are left out.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str, End)) {
        for byte in bytes {
            if let Some(end) = self.take(*byte) {
                if !self.overlong && !self.text.is_empty() {
                    each(&String::from_utf8_lossy(&self.text), end);
                }
                self.text.clear();
                self.overlong = false;
            }
        }
    }

    /// Returns the text after the last end.
    pub fn unfinished(&self) -> String {
        String::from_utf8_lossy(if self.overlong { &[] } else { &self.text }).into_owned()
    }

    fn take(&mut self, byte: u8) -> Option<End> {
        match self.state {
            State::Text => return self.take_text(byte),
            State::Escape => {
                self.state = match byte {
                    b'[' => State::Control,
                    b']' | b'P' | b'X' | b'^' | b'_' => State::String,
                    // Two-byte sequences with an intermediate byte, such as the choice of a character set.
                    b' '..=b'/' | 0x1b => State::Escape,
                    _ => State::Text,
                };
            }
            State::Control if (0x40..=0x7e).contains(&byte) => {
                self.state = State::Text;
                return match byte {
                    b'A' | b'F' => Some(End::Up),
                    b'B' | b'E' => Some(End::Line),
                    b'G' | b'H' | b'f' | b'd' => Some(End::Return),
                    _ => None,
                };
            }
            // A control character ends a sequence that is not one.
            State::Control if byte < 0x20 => {
                self.state = State::Text;
                return self.take_text(byte);
            }
            State::String if byte == 0x07 || byte == b'\n' => self.state = State::Text,
            State::String if byte == 0x1b => self.state = State::StringEscape,
            State::Control | State::String => {}
            State::StringEscape => self.state = if byte == b'\\' { State::Text } else { State::String },
        }
        None
    }

    fn take_text(&mut self, byte: u8) -> Option<End> {
        match byte {
            b'\n' => return Some(End::Line),
            b'\r' => return Some(End::Return),
            0x1b => self.state = State::Escape,
            // Wide, as between the columns of a table.
            b'\t' => [b' ', b' '].into_iter().for_each(|space| self.keep(space)),
            // Backspaces only precede a redraw, which a carriage return announces too.
            0..0x20 | 0x7f => {}
            _ => self.keep(byte),
        }
        None
    }

    fn keep(&mut self, byte: u8) {
        if self.text.len() < MAX_SEGMENT {
            self.text.push(byte);
        } else {
            self.overlong = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, MAX_SEGMENT, Screen};

    fn segments(bytes: &[u8]) -> Vec<(String, End)> {
        let mut found = Vec::new();
        Screen::new().push(bytes, |text, end| found.push((text.to_owned(), end)));
        found
    }

    #[test]
    fn redraws_and_lines_are_segments_without_escapes() {
        let bytes =
            b"\r  5%|\r 10%|\x1b[A\n\x1b[1mbold\x1b[0m\r\n\x1b]0;title\x07a\tb\x08\x1b(B\n\x1b]8;;x\x1b\\link\nopen";
        let wanted = [
            ("  5%|", End::Return),
            (" 10%|", End::Up),
            ("bold", End::Return),
            ("a  b", End::Line),
            ("link", End::Line),
        ];
        assert_eq!(segments(bytes), wanted.map(|(text, end)| (text.to_owned(), end)));
    }

    #[test]
    fn a_segment_beyond_the_limit_is_dropped_and_the_next_is_read() {
        let mut bytes = vec![b'x'; MAX_SEGMENT + 1];
        bytes.extend(b"\nnext\n");
        assert_eq!(segments(&bytes), [("next".to_owned(), End::Line)]);
    }

    #[test]
    fn a_string_for_the_terminal_that_never_ends_hides_one_line_only() {
        assert_eq!(segments(b"\x1b]52;c;x\nnext\n"), [("next".to_owned(), End::Line)]);
    }
}
