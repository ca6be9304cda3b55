//! A command line split into words, as a shell does. Nothing is expanded.

/// A line in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The words, up to the end.
    pub words: Vec<String>,
    /// The place where they end.
    pub end: End,
}

/// The place where the words of a line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end of the line.
    Line,
    /// A letter that means something else than a part of a word.
    Letter(char),
    /// The end of the line, within a quotation.
    OpenQuote,
}

/// Where a letter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterPlace {
    /// At the first position of a word.
    Begin,
    /// Within a word, outside of quotation marks.
    Word,
    /// Within double quotation marks, where a shell expands some letters.
    Quoted,
}

/// Splits a line into words, up to a letter that `ends` them. Letters within single quotation marks and after a backslash
/// are taken as they are.
pub fn split_words(line: &str, ends: impl Fn(char, LetterPlace) -> bool) -> Split {
    let (mut words, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    let mut letters = line.chars();
    let mut end = None;
    while let Some(letter) = letters.next() {
        let place = match quote {
            Some(_) => LetterPlace::Quoted,
            None if word.is_none() => LetterPlace::Begin,
            None => LetterPlace::Word,
        };
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(letters.next()),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            (_, None | Some('"')) if ends(letter, place) => {
                end = Some(End::Letter(letter));
                break;
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Split { words, end: end.unwrap_or(if quote.is_some() { End::OpenQuote } else { End::Line }) }
}

#[cfg(test)]
mod tests {
    use super::{End, LetterPlace, Split, split_words};
    use crate::format::quoted;
    use proptest::prelude::*;

    #[test]
    fn words_end_where_the_caller_says() {
        let split = |line| split_words(line, |letter, place| letter == '#' && place == LetterPlace::Begin);
        let words = |words: &[&str], end| Split { words: words.iter().map(|word| (*word).to_owned()).collect(), end };
        assert_eq!(split(r#"a 'b #c' "d\"e" f\ g"#), words(&["a", "b #c", "d\"e", "f g"], End::Line));
        assert_eq!(split("a b# #c"), words(&["a", "b#"], End::Letter('#')));
        assert_eq!(split("a 'b"), words(&["a", "b"], End::OpenQuote));
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in proptest::collection::vec("\\PC{0,12}", 0..6)) {
            let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(split_words(&line, |letter, _| "|;&><$`".contains(letter)), Split { words, end: End::Line });
        }
    }
}
