//! Text that fits: wrapped, cut or padded to a number of columns.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Wraps a text to lines of at most `width` columns, between words if possible. Never breaks at a space
/// within a number or between a number and its unit. A character that is wider than a line becomes `…`.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut rows = Vec::new();
    let mut row = String::new();
    for word in unbreakable_words(text) {
        if !row.is_empty() && row.width() + 1 + word.width() > width {
            rows.push(std::mem::take(&mut row));
        }
        if !row.is_empty() {
            row.push(' ');
        }
        for character in word.graphemes(true) {
            let character = if character.width() > width { "…" } else { character };
            if !row.is_empty() && row.width() + character.width() > width {
                rows.push(std::mem::take(&mut row));
            }
            row.push_str(character);
        }
    }
    if !row.is_empty() {
        rows.push(row);
    }
    rows
}

const UNITS: [&str; 13] = ["s", "ms", "min", "h", "d", "%", "B", "KiB", "MiB", "GiB", "TiB", "°C", "W"];

fn unbreakable_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let digits = word.len() >= 3 && word.bytes().take(3).all(|byte| byte.is_ascii_digit());
        let unit = UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')']));
        match words.last_mut() {
            Some(last) if (digits || unit) && last.len() <= 11 && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Truncates a text to `width` columns, with `…` for the missing part.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.graphemes(true) {
        if kept.width() + character.width() + 1 > width {
            break;
        }
        kept.push_str(character);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Truncates a sentence to `width` columns, behind its last whole clause if that keeps half of them. A clause does not end
/// within parentheses.
#[must_use]
pub fn cut_clause(sentence: &str, width: usize) -> String {
    let kept = cut(sentence, width);
    let is_outside = |at: usize| kept[..at].matches('(').count() == kept[..at].matches(')').count();
    match kept.rmatch_indices([',', ';']).map(|(at, _)| at).find(|at| is_outside(*at)) {
        Some(end) if kept != sentence && kept[..end].width() * 2 >= width => format!("{}…", &kept[..end]),
        _ => kept,
    }
}

/// Truncates a text to `width` columns from its start, with `…` for the missing part: the end stays.
#[must_use]
pub fn cut_start(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.graphemes(true).rev() {
        if kept.width() + character.width() + 1 > width {
            break;
        }
        kept.insert_str(0, character);
    }
    if width > 0 { format!("…{kept}") } else { String::new() }
}

/// Pads or truncates a text to exactly `width` columns, left-aligned.
#[must_use]
pub fn pad(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let missing = width - text.width().min(width);
    text + &" ".repeat(missing)
}

/// Pads or truncates a text to exactly `width` columns, right-aligned.
#[must_use]
pub fn pad_left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    " ".repeat(width - text.width().min(width)) + &text
}
