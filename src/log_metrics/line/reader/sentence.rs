//! Scores in a sentence: `Accuracy of the network on the 10000 test images: 81 %`.

use super::{Reader, Separator};
use crate::log_metrics::names;
use crate::log_metrics::token::Token;

/// Words between a score and the data that it was measured on: `Accuracy of the network on the 10000 test images: 81 %`.
const PREPOSITIONS: [&str; 4] = ["of", "on", "for", "over"];
/// Words of data that is more than one class of it.
const WHOLES: [&str; 12] = [
    "network",
    "net",
    "model",
    "set",
    "dataset",
    "images",
    "samples",
    "examples",
    "data",
    "all",
    "overall",
    "sentences",
];

impl<'a> Reader<'a> {
    /// Takes a word that may begin a sentence about the score before it.
    pub(super) fn begins_sentence(&mut self, word: &str) -> bool {
        if self.is_separated() || !PREPOSITIONS.contains(&word) {
            return false;
        }
        let score = self.words.last().filter(|word| names::is_score(&names::sanitise(word)));
        self.subject = score.map(|score| (*score, false));
        self.subject.is_some()
    }

    /// Takes a token between a score and its number.
    pub(super) fn take_of_sentence(&mut self, token: Token<'a>) {
        let Some((subject, is_whole)) = self.subject else { return };
        match token {
            Token::Word("is" | "was") | Token::Mark(':' | '=', _) => {
                if is_whole {
                    (self.words, self.separator) = (vec![subject], Separator::Sign);
                    self.line.is_evaluation = true;
                }
                self.subject = None;
            }
            // The data that is trained on.
            Token::Word(word) if names::is_training(word) => self.subject = None,
            Token::Word(word) => {
                self.subject = Some((subject, is_whole || WHOLES.contains(&word) || names::is_evaluation(word)));
                self.line.is_test |= names::is_test_set(word);
            }
            // `an accuracy of 0.95`
            Token::Number(_) | Token::Percent(_) if matches!(self.previous, Some(Token::Word(word)) if PREPOSITIONS.contains(&word)) =>
            {
                (self.words, self.subject) = (vec![subject], None);
                self.take(token);
            }
            _ => {}
        }
    }
}
