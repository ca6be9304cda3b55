//! ASCII fallback for terminals without braille and box drawing: after a frame is drawn, every symbol
//! is replaced by an ASCII one. Doing it here keeps the panels unaware of it.

use crate::untrusted::text::is_unsafe;
use ratatui::buffer::{Buffer, Cell, CellDiffOption};

/// Symbols the terminal can display.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Glyphs {
    /// Braille, box drawing, arrows.
    #[default]
    Unicode,
    /// ASCII only.
    Ascii,
}

impl Glyphs {
    /// Detects the glyphs from the environment, read through `variable`: ASCII if the locale is not UTF-8 or on
    /// a basic terminal such as the Linux console. `DOWNSHIFT_ASCII` overrides both: `0` means Unicode, any
    /// other value ASCII.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match set("DOWNSHIFT_ASCII").as_deref() {
            Some("0") => return Self::Unicode,
            Some(_) => return Self::Ascii,
            None => {}
        }
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        let utf8 = locale.contains("utf-8") || locale.contains("utf8");
        // Many containers have a bare `C` locale under a fully capable terminal.
        let plain = matches!(locale.as_str(), "" | "c" | "posix");
        let console = set("TERM").is_some_and(|term| matches!(term.as_str(), "linux" | "dumb" | "vt220" | "vt100"));
        if console || !(utf8 || plain) { Self::Ascii } else { Self::Unicode }
    }
}

/// Removes characters from a frame that control the terminal or reverse text direction. Ratatui drops
/// control characters and attaches zero-width characters to the preceding cell.
pub fn strip_unsafe(buffer: &mut Buffer) {
    for cell in text_cells(buffer) {
        if cell.symbol().contains(is_unsafe) {
            let kept: String = cell.symbol().chars().filter(|letter| !is_unsafe(*letter)).collect();
            cell.set_symbol(if kept.is_empty() { " " } else { &kept });
        }
    }
}

/// Returns the cells that hold text. The others hold parts of a picture: sequences for the terminal, from our encoder.
/// No text sets the option by which they are told apart.
fn text_cells(buffer: &mut Buffer) -> impl Iterator<Item = &mut Cell> {
    buffer.content.iter_mut().filter(|cell| cell.diff_option == CellDiffOption::None)
}

/// Replaces every symbol of a frame with ASCII.
pub fn replace_with_ascii(buffer: &mut Buffer) {
    replace_arrows(buffer);
    for cell in text_cells(buffer) {
        let symbol = cell.symbol();
        if !symbol.is_ascii() {
            let mut letters = symbol.chars();
            let sign = letters.next().map_or(' ', closest_ascii);
            cell.set_char(sign);
        }
    }
}

/// Renders `32 → 16` as `32-> 16`: a lone `>` would read as "greater than".
fn replace_arrows(buffer: &mut Buffer) {
    for place in 2..buffer.content.len().saturating_sub(2) {
        let symbol = |at: usize| buffer.content[at].symbol();
        let between = symbol(place) == "→" && symbol(place - 1) == " " && symbol(place + 1) == " ";
        if between && !matches!(symbol(place - 2), " " | "←") && symbol(place + 2) != " " {
            buffer.content[place - 1].set_char('-');
        }
    }
}

/// Returns the ASCII character closest to a symbol.
fn closest_ascii(letter: char) -> char {
    match letter {
        '\u{2800}'..='\u{28ff}' => braille_as_ascii(letter as u32 - 0x2800),
        '─' | '╾' | '–' => '-',
        '━' | '╸' => '=',
        '┈' | '╌' | '·' | '…' | '░' => '.',
        '│' | '┃' | '▏' => '|',
        '┊' => ':',
        '╭' | '╮' | '╰' | '╯' | '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┼' | '┬' | '▒' => '+',
        '▾' | '↓' => 'v',
        '█' | '▓' => '#',
        '✗' | '⚠' => '!',
        '▴' | '↑' | '┴' => '^',
        '▸' | '→' => '>',
        '←' => '<',
        '●' | '◆' | '•' => '*',
        '○' | '◇' | '◐' => 'o',
        '×' => 'x',
        '°' => ' ',
        _ => '?',
    }
}

/// Returns the ASCII character whose ink lies where the braille dots are.
fn braille_as_ascii(bits: u32) -> char {
    let row = |mask: u32| bits & mask != 0;
    match (row(0x09), row(0x12), row(0x24), row(0xc0)) {
        (false, false, false, false) => ' ',
        (true, false, false, false) => '\'',
        (false, false, false, true) => '_',
        (false, false, true, _) => '.',
        (false, true, _, false) | (true, true, false, false) => '-',
        _ => '|',
    }
}

#[cfg(test)]
mod tests {
    use super::{Glyphs, replace_with_ascii, strip_unsafe};
    use crate::untrusted::text::is_unsafe;
    use ratatui::{buffer::Buffer, style::Style, text::Line, widgets::Widget};

    #[test]
    fn nothing_that_a_terminal_obeys_stays_in_a_frame() {
        let mut buffer = Buffer::with_lines(["            "]);
        Line::from("no\u{202e}te\u{1b}[2J\u{9b}\u{2066}x").render(buffer.area, &mut buffer);
        let text = |buffer: &Buffer| buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        assert!(text(&buffer).contains('\u{202e}'), "ratatui filters this itself by now");
        strip_unsafe(&mut buffer);
        assert_eq!(text(&buffer).trim_end(), "note[2Jx");
        assert!(!text(&buffer).contains(is_unsafe));
    }

    #[test]
    fn every_sign_becomes_ascii_in_its_own_column() {
        let mut buffer = Buffer::with_lines(["╭─ loss ─╮ 71 °C", "│⣀⠤⠒⠉ ┊ ▾│ 3 × 2", "╰── 東京 ╯ ━━╸──"]);
        buffer.set_style(buffer.area, Style::new());
        replace_with_ascii(&mut buffer);
        let text: String = buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect();
        assert!(text.is_ascii(), "{text}");
        assert!(text.starts_with("+- loss -+ 71  C|_.-' : v| 3 x 2"), "{text}");
    }

    #[test]
    fn the_locale_decides() {
        let detect = |pairs: &'static [(&str, &str)]| {
            Glyphs::detect(move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(detect(&[("LANG", "en_GB.UTF-8"), ("TERM", "tmux-256color")]), Glyphs::Unicode);
        assert_eq!(detect(&[("LANG", "de_DE.ISO-8859-1")]), Glyphs::Ascii);
        assert_eq!(detect(&[("LANG", "en_GB.UTF-8"), ("TERM", "linux")]), Glyphs::Ascii);
        assert_eq!(detect(&[]), Glyphs::Unicode);
        assert_eq!(detect(&[("DOWNSHIFT_ASCII", "1"), ("LANG", "en_GB.UTF-8")]), Glyphs::Ascii);
    }
}
