//! Decides how a terminal shows pictures, from its answers and those of tmux.

use super::{PictureKind, PictureSupport};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The terminal's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Its name and version, as `XTVERSION` reports it.
    pub version: Option<String>,
    /// Whether it draws sixels.
    pub sixel: bool,
    /// Width and height of a cell in pixels.
    pub cell: Option<(u16, u16)>,
    /// Whether the last answer arrived, after which there are no others.
    pub complete: bool,
}

/// The terminal around tmux.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TmuxClient {
    /// Whether tmux passes sequences on to it.
    pub passthrough: bool,
    /// Its name and version, or the name of its terminfo entry.
    pub terminal: String,
    /// Its features as tmux knows them: `256,RGB,sixel`.
    pub features: String,
}

impl TmuxClient {
    /// The format to ask tmux for. An old tmux leaves what it does not know empty.
    pub const FORMAT: &str = "#{allow-passthrough}\t#{client_termtype} #{client_termname}\t#{client_termfeatures}";

    /// Parses a line in that format.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let mut fields = line.trim_end_matches('\n').split('\t');
        let mut next = || fields.next().unwrap_or_default().trim().to_owned();
        let passthrough = matches!(next().as_str(), "1" | "on" | "all" | "2");
        Self { passthrough, terminal: next(), features: next() }
    }

    fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|known| known.eq_ignore_ascii_case(feature))
    }
}

/// Splits the terminal's bytes into its answers and the keys that the user typed meanwhile.
#[must_use]
pub fn parse_answers(bytes: &[u8]) -> (Answers, Vec<KeyEvent>) {
    let mut answers = Answers::default();
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (0x1b, [b'[', body @ ..]) => {
                let end = body.iter().position(|byte| (0x40..=0x7e).contains(byte)).unwrap_or(body.len());
                let (sequence, after) = body.split_at((end + 1).min(body.len()));
                if !read_answer(sequence, &mut answers) {
                    keys.extend(key_of_sequence(sequence));
                }
                after
            }
            (0x1b, [b'P', body @ ..]) => {
                let end = body.windows(2).position(|pair| pair == b"\x1b\\");
                let text = &body[..end.unwrap_or(body.len())];
                if let Some(version) = text.strip_prefix(b">|") {
                    answers.version = Some(String::from_utf8_lossy(version).into_owned());
                }
                &body[end.map_or(body.len(), |end| end + 2)..]
            }
            _ => {
                let length = utf8_length(*first).min(rest.len());
                let letter = str::from_utf8(&rest[..length]).ok().and_then(|text| text.chars().next());
                keys.extend(letter.and_then(key_of_letter));
                &rest[length..]
            }
        };
    }
    (answers, keys)
}

/// Reads a CSI sequence without its introducer; returns false if it is not an answer.
fn read_answer(sequence: &[u8], answers: &mut Answers) -> bool {
    let text = String::from_utf8_lossy(sequence);
    if let Some(attributes) = text.strip_prefix('?').and_then(|text| text.strip_suffix('c')) {
        answers.sixel = attributes.split(';').any(|attribute| attribute == "4");
        answers.complete = true;
        return true;
    }
    let Some(size) = text.strip_prefix("6;").and_then(|text| text.strip_suffix('t')) else { return false };
    let cell = size.split_once(';').and_then(|(height, width)| Some((width.parse().ok()?, height.parse().ok()?)));
    answers.cell = cell.filter(|(width, height)| is_cell(*width, *height));
    true
}

/// Reports whether a cell may have this size in pixels.
#[must_use]
pub fn is_cell(width: u16, height: u16) -> bool {
    (2..=200).contains(&width) && (2..=400).contains(&height)
}

fn utf8_length(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    }
}

fn key_of_sequence(sequence: &[u8]) -> Option<KeyEvent> {
    let code = match sequence {
        b"A" => KeyCode::Up,
        b"B" => KeyCode::Down,
        b"C" => KeyCode::Right,
        b"D" => KeyCode::Left,
        b"5~" => KeyCode::PageUp,
        b"6~" => KeyCode::PageDown,
        b"Z" => KeyCode::BackTab,
        _ => return None,
    };
    Some(KeyEvent::new(code, KeyModifiers::NONE))
}

fn key_of_letter(letter: char) -> Option<KeyEvent> {
    let plain = |code| Some(KeyEvent::new(code, KeyModifiers::NONE));
    match letter {
        '\r' => plain(KeyCode::Enter),
        '\t' => plain(KeyCode::Tab),
        '\u{1b}' => plain(KeyCode::Esc),
        '\u{7f}' => plain(KeyCode::Backspace),
        '\u{1}'..='\u{1a}' => {
            let letter = char::from(letter as u8 - 1 + b'a');
            Some(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL))
        }
        letter if letter.is_control() => None,
        letter => plain(KeyCode::Char(letter)),
    }
}

/// Decides how to show pictures. `cell` is the size of a cell as the kernel knows it. A terminal that does not report
/// the size gets half-blocks, since its pixels could not be placed.
#[must_use]
pub fn decide(answers: &Answers, tmux: Option<&TmuxClient>, cell: Option<(u16, u16)>) -> PictureSupport {
    let Some(cell) = answers.cell.or(cell) else { return PictureSupport::of_cells(PictureKind::HalfBlocks) };
    let version = answers.version.as_deref().unwrap_or_default();
    let (kind, through_tmux) = match tmux {
        Some(tmux) => {
            // A placeholder of kitty is a 24-bit colour, which tmux must not round.
            let named = kind_of_terminal(&tmux.terminal)
                .filter(|kind| tmux.passthrough && (*kind != PictureKind::Kitty || tmux.has("RGB")));
            let native = (answers.sixel && tmux.has("sixel")).then_some(PictureKind::Sixel);
            (native.or(named), native.is_none())
        }
        None => (kind_of_terminal(version).or(answers.sixel.then_some(PictureKind::Sixel)), false),
    };
    match kind {
        Some(kind) => PictureSupport { kind, cell, through_tmux },
        None => PictureSupport::of_cells(PictureKind::HalfBlocks),
    }
}

/// Returns the protocol of a terminal that has one beside sixel, by its name. Others that understand kitty's protocol
/// lack its placeholders, which scroll and clip like text.
fn kind_of_terminal(name: &str) -> Option<PictureKind> {
    let name = name.to_lowercase();
    let is_any =
        |known: &[&str]| known.iter().any(|known| name.starts_with(known) || name.contains(&format!(" {known}")));
    if is_any(&["kitty", "ghostty", "xterm-kitty", "xterm-ghostty"]) {
        Some(PictureKind::Kitty)
    } else if is_any(&["iterm2", "wezterm", "mintty", "konsole"]) {
        Some(PictureKind::ITerm2)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
