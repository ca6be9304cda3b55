//! Makes untrusted text safe for a terminal, a notification or a picture. Names, notes and values may
//! contain escape sequences (OSC 52 writes the clipboard) and characters that reverse the text
//! direction; they are shown as code points instead of being interpreted.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Reports whether a terminal would interpret or hide this character rather than draw it: control
/// characters, direction marks, line separators, tags.
#[must_use]
pub fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text as one line: line ends are shown as `\n`. Tabs stay.
#[must_use]
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_unsafe(text, |letter| letter == '\t')
}

/// Returns a path as one line, for messages.
#[must_use]
pub fn path(path: &Path) -> String {
    escape_line(&path.to_string_lossy()).into_owned()
}

/// Returns the text with its line ends and tabs. JSON stays valid JSON: unsafe characters become its escapes.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_unsafe(text, |letter| matches!(letter, '\t' | '\n'))
}

/// Returns the text as one line of at most `most` characters, with `…` in place of the rest.
#[must_use]
pub fn clip_line(text: &str, most: usize) -> String {
    let mut letters = text.chars();
    let kept: String = letters.by_ref().take(most).collect();
    let mark = if letters.next().is_some() { "…" } else { "" };
    format!("{}{mark}", escape_line(&kept))
}

fn escape_unsafe(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let harmless = |letter: char| !is_unsafe(letter) || stays(letter);
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            letter if harmless(letter) => out.push(letter),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            letter => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::{clip_line, escape_line, escape_lines};
    use std::borrow::Cow;

    #[test]
    fn escapes_and_marks_of_direction_are_shown_not_obeyed() {
        for (text, wanted) in [
            ("\u{1b}[31mred", "\\u001b[31mred"),
            ("\u{1b}]52;c;aGk=\u{7}", "\\u001b]52;c;aGk=\\u0007"),
            ("\u{9b}2J", "\\u009b2J"),
            ("txt.\u{202e}exe\u{2066}", "txt.\\u202eexe\\u2066"),
            ("a\r\nb", "a\\r\\nb"),
            ("\u{e0041}", "\\udb40\\udc41"),
            ("x\u{200b}y\u{feff}", "x\\u200by\\ufeff"),
        ] {
            assert_eq!(escape_line(text), wanted);
        }
    }

    #[test]
    fn ordinary_text_of_any_language_stays_as_it_is() {
        for text in ["größe → 3 µs · ▸ ⣿", "日本語", "عربى", "👩‍🚀 a\tb", ""] {
            assert!(matches!(escape_line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn several_lines_stay_lines_and_json_stays_json() {
        assert_eq!(escape_lines("a\n\tb\r"), "a\n\tb\\r");
        let json = serde_json::to_string_pretty(&["\u{1b}[0m\u{9b}\u{202e}\u{e0041}"]).unwrap();
        let safe = escape_lines(&json).into_owned();
        assert!(safe.is_ascii());
        assert_eq!(serde_json::from_str::<Vec<String>>(&safe).unwrap(), ["\u{1b}[0m\u{9b}\u{202e}\u{e0041}"]);
    }

    #[test]
    fn long_text_is_clipped_by_letters() {
        assert_eq!(clip_line("größer", 4), "größ…");
        assert_eq!(clip_line("größ", 4), "größ");
    }
}
