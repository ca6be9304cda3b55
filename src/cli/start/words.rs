//! Splits a typed line into words. Letters that only a shell understands are a mistake, because the command gets its words
//! as they are.

use crate::cockpit::start::Mistake;
use crate::untrusted::words::{self, End, LetterPlace, Split};

/// Splits a line.
pub fn split_words(line: &str) -> Result<Vec<String>, Mistake> {
    let needs_shell = |letter, place| {
        let everywhere = matches!(letter, '$' | '`');
        everywhere || (place != LetterPlace::Quoted && matches!(letter, '|' | ';' | '&' | '>' | '<'))
    };
    let Split { words, end } = words::split_words(line, needs_shell);
    match end {
        End::Line => Ok(words),
        End::Letter(letter) => Err(Mistake::Shell(letter)),
        End::OpenQuote => Err(Mistake::OpenQuote),
    }
}

#[cfg(test)]
mod tests {
    use super::split_words;
    use crate::cockpit::start::Mistake;

    #[test]
    fn letters_of_a_shell_are_refused_outside_of_single_quotation_marks() {
        assert_eq!(split_words("a '$b' \"c|d\""), Ok(["a", "$b", "c|d"].map(str::to_owned).to_vec()));
        for (line, letter) in [("a | b", '|'), ("a \"$b\"", '$'), ("a `b`", '`'), ("a > b", '>')] {
            assert_eq!(split_words(line), Err(Mistake::Shell(letter)), "{line}");
        }
        assert_eq!(split_words("a 'b"), Err(Mistake::OpenQuote));
    }
}
