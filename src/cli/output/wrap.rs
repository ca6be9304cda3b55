//! Breaks lines between words where a terminal would break them inside. A command in backticks stays whole, so that it can be copied.

use unicode_width::UnicodeWidthStr;

/// The first letters of lines that are data, and stay as they are.
const DATA: [char; 5] = ['{', '}', '[', ']', '"'];

/// Breaks each line of a text that is wider than `columns`.
pub fn wrap_lines(text: &str, columns: usize) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| wrap_line(line, columns)).collect();
    lines.join("\n")
}

fn wrap_line(line: &str, columns: usize) -> String {
    if line.width() <= columns || line.trim_start().starts_with(DATA) {
        return line.to_owned();
    }
    let words = split_words(line);
    let indent = hanging_indent(&words, columns);
    let (mut wrapped, mut at) = (String::new(), 0);
    for (gap, word) in words {
        if at > 0 && at + gap + word.width() > columns {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            at = indent;
        } else {
            wrapped.push_str(&" ".repeat(gap));
            at += gap;
        }
        wrapped.push_str(word);
        at += word.width();
    }
    wrapped
}

/// Returns where the further rows of a line begin: below its last column that begins in the left half, or a little to the right.
fn hanging_indent(words: &[(usize, &str)], columns: usize) -> usize {
    let lead = words.first().map_or(0, |(gap, _)| *gap);
    let (mut indent, mut at) = (lead + 2, 0);
    for (index, (gap, word)) in words.iter().enumerate() {
        at += gap;
        if index > 0 && *gap > 1 && at <= columns / 2 {
            indent = at;
        }
        at += word.width();
    }
    indent.min(columns / 2)
}

/// Splits a line into words with the spaces before each. Words between two backticks are one.
fn split_words(line: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut rest = line.trim_end();
    while !rest.is_empty() {
        let word = rest.trim_start_matches(' ');
        let gap = rest.len() - word.len();
        let is_quoted = |end: usize| word[..end].matches('`').count() % 2 == 1 && word[end..].contains('`');
        let end = word.match_indices(' ').map(|(end, _)| end).find(|end| !is_quoted(*end)).unwrap_or(word.len());
        words.push((gap, &word[..end]));
        rest = &word[end..];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::wrap_lines;

    #[test]
    fn lines_break_between_words_and_below_their_column() {
        let wrapped = |text: &str| wrap_lines(text, 30);
        assert_eq!(wrapped("short\nand short"), "short\nand short");
        assert_eq!(wrapped("note: the script saves its weights alone"), "note: the script saves its\n  weights alone");
        assert_eq!(
            wrapped("type `downshift run my.yaml --trust` now"),
            "type\n  `downshift run my.yaml --trust`\n  now"
        );
        assert_eq!(
            wrapped("  command    python train.py --lr 1e-3"),
            "  command    python train.py\n             --lr 1e-3",
        );
        let data = "    \"why\": \"no step since 9 minutes, and more\"";
        assert_eq!(wrapped(data), data);
        let long = "x".repeat(40);
        assert_eq!(wrapped(&long), long, "one word is left to the terminal");
        assert_eq!(wrapped("it's a ` that nothing closes, here"), "it's a ` that nothing closes,\n  here");
    }
}
