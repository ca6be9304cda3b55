//! The words, numbers and marks of a line. Only what is certainly a number is one: `12:30:45`, `5.00ms` and
//! `1,234` are not.

/// A part of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// A word, as keys are written: `lm`, `train/loss`, `lr-AdamW`.
    Word(&'a str),
    /// A number: the text of one.
    Number(&'a str),
    /// A number before a percent sign.
    Percent(&'a str),
    /// Two integers, as in `10/ 50`.
    Fraction(&'a str, &'a str),
    /// Something that begins like a number but is not one.
    Other,
    /// Any other character; `spaced` when white space precedes it.
    Mark(char, bool),
}

/// Splits a line; quotes are left out.
pub fn tokens(line: &str) -> Tokens<'_> {
    Tokens { rest: line, spaced: true }
}

/// The tokens of a line, from left to right.
pub struct Tokens<'a> {
    rest: &'a str,
    spaced: bool,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let trimmed = self.rest.trim_start();
            self.spaced |= trimmed.len() < self.rest.len();
            self.rest = trimmed;
            let first = trimmed.chars().next()?;
            if matches!(first, '\'' | '"' | '`') {
                self.rest = &trimmed[1..];
                continue;
            }
            let spaced = std::mem::take(&mut self.spaced);
            if let Some(token) = self.number() {
                return Some(token);
            }
            if first.is_ascii_alphabetic() || first == '_' {
                return Some(self.word());
            }
            self.rest = &trimmed[first.len_utf8()..];
            return Some(Token::Mark(first, spaced));
        }
    }
}

impl<'a> Tokens<'a> {
    fn word(&mut self) -> Token<'a> {
        let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./@-".contains(byte);
        let (word, rest) = self.rest.split_at(self.rest.bytes().take_while(inside).count());
        self.rest = rest;
        match word.trim_end_matches(['.', '-', '/']) {
            special if is_special(special) => Token::Number(special),
            word => Token::Word(word),
        }
    }

    fn number(&mut self) -> Option<Token<'a>> {
        let unsigned = self.rest.strip_prefix(['+', '-']).unwrap_or(self.rest);
        let sign = self.rest.len() - unsigned.len();
        let word = &unsigned[..count(unsigned, |byte| byte.is_ascii_alphanumeric() || byte == b'_')];
        if sign > 0 && is_special(word) {
            return Some(Token::Number(self.split(sign + word.len())));
        }
        let length = sign + decimal_length(unsigned)?;
        let after = &self.rest[length..];
        if let Some(end) = self.fraction(after) {
            return Some(end);
        }
        let mut next = after.bytes();
        let is_number = match next.next() {
            None | Some(b'|' | b';' | b')' | b']' | b'}' | b'\'' | b'"' | b'`' | b'<' | b'>' | b'%') => true,
            Some(b',' | b':') => !next.next().is_some_and(|byte| byte.is_ascii_digit()),
            Some(byte) => byte.is_ascii_whitespace(),
        };
        let number = self.split(length);
        // A mean and its deviation: `0.5+0.01`.
        if let Some(deviation) = self.rest.strip_prefix('+').and_then(decimal_length) {
            self.split(1 + deviation);
            return Some(Token::Number(number));
        }
        if is_number {
            // `81 %` at the end of a line; before a word it is an operator.
            let sign = self.rest.trim_start().strip_prefix('%');
            let sign = sign.filter(|rest| self.rest.starts_with('%') || rest.trim().is_empty());
            let Some(rest) = sign else { return Some(Token::Number(number)) };
            self.rest = rest;
            return Some(Token::Percent(number));
        }
        let skipped = self.rest.find(|letter: char| letter.is_whitespace() || matches!(letter, '|' | ']' | '}'));
        self.rest = &self.rest[skipped.unwrap_or(self.rest.len())..];
        Some(Token::Other)
    }

    /// Reads `10/50` or `10/    50`, given the text after the first number.
    fn fraction(&mut self, after: &'a str) -> Option<Token<'a>> {
        let first = &self.rest[..self.rest.len() - after.len()];
        let second = after.trim_start().strip_prefix('/')?.trim_start();
        let digits = count(second, |byte| byte.is_ascii_digit());
        let ends = second[digits..].chars().next().is_none_or(|next| !next.is_alphanumeric() && !"./_".contains(next));
        let first = first.strip_suffix(".0").unwrap_or(first);
        if digits == 0 || !ends || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.rest = &second[digits..];
        Some(Token::Fraction(first, &second[..digits]))
    }

    fn split(&mut self, at: usize) -> &'a str {
        let (part, rest) = self.rest.split_at(at);
        self.rest = rest;
        part
    }
}

fn count(text: &str, inside: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| inside(*byte)).count()
}

/// Returns the length of the decimal number that a text begins with.
fn decimal_length(text: &str) -> Option<usize> {
    let digits = |text: &str| count(text, |byte| byte.is_ascii_digit());
    let whole = digits(text);
    let mut length = whole;
    if let Some(rest) = text[whole..].strip_prefix('.') {
        let fraction = digits(rest);
        if whole + fraction == 0 {
            return None;
        }
        length += 1 + fraction;
    }
    if length == 0 {
        return None;
    }
    let exponent = text[length..].strip_prefix(['e', 'E']).map_or(0, |rest| {
        let sign = rest.len() - rest.strip_prefix(['+', '-']).unwrap_or(rest).len();
        let size = digits(&rest[sign..]);
        if size > 0 { 1 + sign + size } else { 0 }
    });
    Some(length + exponent)
}

fn is_special(word: &str) -> bool {
    ["nan", "inf", "infinity"].iter().any(|special| word.eq_ignore_ascii_case(special))
}

#[cfg(test)]
mod tests {
    use super::{Token, tokens};

    #[test]
    fn only_certain_numbers_are_numbers() {
        for text in ["1", "-1.5", "+2", ".5", "3.", "1e-5", "1E+05", "nan", "-inf", "NaN", "Infinity"] {
            assert_eq!(tokens(text).collect::<Vec<_>>(), [Token::Number(text)], "{text}");
            let quoted = format!("'{text}'");
            assert_eq!(tokens(&quoted).collect::<Vec<_>>(), [Token::Number(text)], "{text}");
        }
        for text in ["12:30:45", "5.00ms", "1,234", "2024-01-01", "1.2.3", "0x10", "1_000", "12345abc"] {
            assert_eq!(tokens(text).collect::<Vec<_>>(), [Token::Other], "{text}");
        }
    }

    #[test]
    fn fractions_may_be_padded() {
        for text in ["10/50", "10/      50", "10 / 50"] {
            assert_eq!(tokens(text).collect::<Vec<_>>(), [Token::Fraction("10", "50")], "{text}");
        }
        assert_eq!(tokens("10/50x").next(), Some(Token::Other));
    }

    #[test]
    fn a_line_is_words_numbers_and_marks() {
        let found: Vec<Token> = tokens("lm loss=2.5, lr-Adam: 91%|x").collect();
        let wanted = [
            Token::Word("lm"),
            Token::Word("loss"),
            Token::Mark('=', false),
            Token::Number("2.5"),
            Token::Mark(',', false),
            Token::Word("lr-Adam"),
            Token::Mark(':', false),
            Token::Percent("91"),
            Token::Mark('|', false),
            Token::Word("x"),
        ];
        assert_eq!(found, wanted);
    }
}
