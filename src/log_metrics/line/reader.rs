//! Reads the keys and numbers of a line, token by token.

mod finish;
mod key;
mod sentence;

use super::{Line, LineForm};
use crate::log_metrics::clock::Epoch;
use crate::log_metrics::names::{self, Role};
use crate::log_metrics::token::{Token, tokens};
use key::is_label;

/// Maximum number of words in a key; more is prose.
const MAX_WORDS: usize = 6;
/// Keys read of one line.
const MAX_KEYS: usize = 2 * names::MAX_NAMES;
/// A line says within its first words whether it reports an evaluation.
const FIRST_WORDS: usize = 3;
/// Wrappers around a printed number.
const WRAPPERS: [&str; 7] = ["tensor", "array", "float", "np.float64", "np.float32", "numpy.float64", "item"];
/// Words in place of a number.
const UNKNOWN: [&str; 4] = ["n/a", "na", "none", "null"];
/// Words of a loss before its step.
const LOSSES: [&str; 2] = ["loss", "cost"];
/// Words before the step of an evaluation: `validation loss at iteration 100`, `eval metrics after step: 100`.
const BEFORE_STEP: [&str; 2] = ["at", "after"];

/// A sign behind words, which makes a key of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Separator {
    #[default]
    Nothing,
    Sign,
    /// A colon, also before a bracket.
    Colon,
}

/// A count that the next number may be the total of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counted {
    Epoch,
    Step,
}

/// The number before a bracket that may hold the step: `Epoch: [0][3/8]`, `Train: 0 [ 50/1251 (4%)]`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before<'a> {
    /// That of an epoch; whether a colon stands before its bracket, as in scripts that count from 0.
    Epoch(bool),
    Training(&'a str),
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Reader<'a> {
    line: Line,
    found: Vec<(String, f64)>,
    /// Means in parentheses behind values: their places in `found`.
    means: Vec<(usize, f64)>,
    words: Vec<&'a str>,
    /// The sign between the words and their number.
    separator: Separator,
    seen_words: usize,
    previous: Option<Token<'a>>,
    before: Option<Before<'a>>,
    counted: Option<Counted>,
    /// A fraction that waits for its unit: `40/ 49 batches`.
    unitless: Option<(&'a str, &'a str)>,
    /// A step and its total that no key names.
    position: Option<(u64, Option<u64>)>,
    /// The number that it stands behind.
    behind: Option<Before<'a>>,
    /// A batch without a total, which may be a setting.
    batch: Option<u64>,
    /// The score that a sentence speaks of, and whether it is that of more than a class.
    subject: Option<(&'a str, bool)>,
    names_step: bool,
    /// A loss was named before its step: `Cost after iteration 100: 0.6`.
    names_loss: bool,
    epoch_is_round: bool,
    /// A word in brackets says that what follows was measured in an evaluation.
    is_of_evaluation: bool,
    /// The line says first that its numbers are those of the training.
    is_of_training: bool,
    /// A bar shows the line beside its count.
    is_beside_bar: bool,
}

impl<'a> Reader<'a> {
    /// Creates the reader of what a bar shows.
    pub fn beside_bar() -> Self {
        Self { is_beside_bar: true, ..Self::default() }
    }

    pub fn read(mut self, text: &'a str) -> Line {
        for token in tokens(text) {
            self.take(token);
            self.previous = Some(token);
        }
        self.finish()
    }

    fn take(&mut self, token: Token<'a>) {
        if self.subject.is_some() {
            return self.take_of_sentence(token);
        }
        let is_mark = matches!(token, Token::Mark(..));
        let unitless = if is_mark { None } else { self.unitless.take() };
        let before = if is_mark { None } else { self.before.take() };
        match token {
            Token::Word(word) => self.take_word(word, unitless),
            // `number of nan iterations: 0`, unlike `loss nan`.
            Token::Number(word) if self.is_within_key(word) => self.take_word(word, None),
            Token::Number(text) => self.take_plain_number(text),
            Token::Percent(text) => {
                let known = self.found.len();
                self.take_number(text, None);
                for (key, _) in &mut self.found[known..] {
                    if let Some(place) = key.strip_suffix("_score").filter(|place| names::is_place(place)) {
                        *key = format!("{place}_accuracy");
                    }
                }
                if let Some((key, value)) = self.found[known..].iter_mut().find(|(key, _)| names::is_accuracy(key)) {
                    *value /= if names::is_in_percent(key) { 1.0 } else { 100.0 };
                    self.line.has_percent = true;
                }
                // `Train Epoch: 1 [640/60000 (1%)]` counts samples, as PyTorch's examples and OpenCLIP do.
                if matches!(self.previous, Some(Token::Mark('(', _))) && matches!(self.behind, Some(Before::Epoch(_))) {
                    self.line.form = LineForm::OfSamples;
                }
                self.end_key();
            }
            Token::Fraction(count, out_of) => {
                self.take_fraction(count, out_of, before);
                self.end_key();
            }
            // `loss=2.3`: only the word at the sign is the key. `lm loss: 2.3`: all of them.
            Token::Mark('=', false) if !self.words.is_empty() => {
                let last = self.words.pop();
                self.drop_words();
                self.words.extend(last);
                self.separator = Separator::Sign;
            }
            // `Step [10/50]`, `elapsed time (ms): 5`
            Token::Mark(mark @ (':' | '=' | '['), _) if !self.words.is_empty() => {
                let is_colon = mark == ':' || (mark == '[' && self.separator == Separator::Colon);
                self.separator = if is_colon { Separator::Colon } else { Separator::Sign };
            }
            Token::Mark('(' | ')', _) => {}
            Token::Other | Token::Mark(..) => {
                if token == Token::Mark(']', false) {
                    self.begin_section();
                }
                if matches!(token, Token::Mark('-' | '|' | ']', _)) && self.has_nothing() {
                    // The words so far are the time, the logger and the level.
                    self.seen_words = 0;
                }
                self.drop_words();
            }
        }
        if !is_mark && !matches!(token, Token::Number(_) | Token::Word("of")) {
            self.counted = None;
        }
    }

    fn is_separated(&self) -> bool {
        self.separator != Separator::Nothing
    }

    /// Reports whether the line began with a loss of training, and names no place.
    fn measures_training(&self) -> bool {
        let is_loss = |(key, _): &(String, f64)| names::is_loss(key) && !names::names_place(key);
        let names_place = self.line.step.is_some() || self.line.epoch.is_some() || self.position.is_some();
        self.found.first().is_some_and(is_loss) && !names_place && !self.line.is_evaluation && !self.is_beside_bar
    }

    fn has_nothing(&self) -> bool {
        self.found.is_empty() && self.line.step.is_none() && self.line.epoch.is_none() && self.position.is_none()
    }

    fn is_within_key(&self, word: &str) -> bool {
        word.starts_with(|letter: char| letter.is_ascii_alphabetic()) && !self.is_separated() && self.key().is_none()
    }

    fn take_word(&mut self, word: &'a str, unitless: Option<(&'a str, &'a str)>) {
        if let Some((count, out_of)) = unitless.filter(|_| names::is_unit(word)) {
            self.set_position(count, out_of);
            return;
        }
        self.seen_words += 1;
        let is_early = self.seen_words <= FIRST_WORDS;
        // `Epoch(val) [1][10/10]`
        let is_in_parentheses = self.previous == Some(Token::Mark('(', false)) && self.words.len() == 1;
        if self.found.is_empty() && (is_early || is_in_parentheses) && names::is_evaluation(word) {
            self.line.is_evaluation = true;
            self.line.is_test = names::is_test_set(word);
            self.line.is_final = self.words.iter().any(|word| word.eq_ignore_ascii_case("final"));
        }
        let says_place = self.is_separated() && self.words.len() == 1 && names::is_training(self.words[0]);
        self.is_of_training |= self.found.is_empty() && says_place;
        if self.is_separated() && WRAPPERS.contains(&word) {
            return;
        }
        if self.is_separated() && UNKNOWN.iter().any(|unknown| word.eq_ignore_ascii_case(unknown)) {
            return self.drop_words();
        }
        let is_before_total = word == "of" && self.counted.is_some();
        if is_before_total || self.begins_sentence(word) {
            return;
        }
        // `validation loss at iteration 100`: the step is the key, the rest is prose.
        let is_at = BEFORE_STEP.iter().any(|known| word.eq_ignore_ascii_case(known));
        if is_at && self.line.step.is_none() {
            self.names_loss = self.words.iter().any(|word| LOSSES.iter().any(|loss| word.eq_ignore_ascii_case(loss)));
        }
        if self.is_separated() || is_at {
            self.drop_words();
        }
        if !is_at {
            self.words.push(word);
        }
    }

    fn take_plain_number(&mut self, text: &'a str) {
        let is_total = self.previous == Some(Token::Word("of"));
        match self.counted.take() {
            Some(Counted::Epoch) if is_total => {
                if let Some(epoch) = &mut self.line.epoch {
                    epoch.count = epoch.count.or(names::parse_count(text));
                }
            }
            Some(Counted::Step) if is_total => self.line.out_of = self.line.out_of.or(names::parse_count(text)),
            // `Loss 1.77e+01 (1.95e+01)`
            _ if matches!(self.previous, Some(Token::Mark('(', _))) && self.words.is_empty() => {
                let mean = text.parse::<f64>().ok();
                self.means.extend(self.found.len().checked_sub(1).zip(mean));
            }
            _ if self.words.is_empty() && self.names_loss && self.line.names_step && self.found.is_empty() => {
                let is_behind_step = matches!(self.previous, Some(Token::Mark(':' | '=', _)));
                self.found.extend(text.parse().ok().filter(|_| is_behind_step).map(|loss| ("loss".to_owned(), loss)));
            }
            _ => self.take_number(text, None),
        }
        self.end_key();
    }

    /// Takes `10/50`.
    fn take_fraction(&mut self, count: &'a str, out_of: &'a str, before: Option<Before<'a>>) {
        if !self.words.is_empty() {
            return self.take_number(count, Some(out_of));
        }
        self.note_progress(count);
        match before.filter(|_| matches!(self.previous, Some(Token::Mark('[', _)))) {
            Some(before) => {
                if let Before::Training(epoch) = before {
                    self.line.epoch = Epoch::read(epoch, None);
                }
                self.behind = Some(before);
                self.set_position(count, out_of);
            }
            // `loss: 2.303494  [ 6464/60000]`
            None if matches!(self.previous, Some(Token::Mark('[', _))) && self.measures_training() => {
                self.line.form = LineForm::OfSamples;
                self.set_position(count, out_of);
            }
            None => self.unitless = Some((count, out_of)),
        }
    }

    fn note_progress(&mut self, count: &str) {
        self.line.progress = self.line.progress.or(names::parse_count(count));
    }

    fn set_position(&mut self, count: &str, out_of: &str) {
        let count = names::parse_count(count).map(|count| (count, names::parse_count(out_of)));
        self.position = self.position.or(count);
    }

    fn take_number(&mut self, text: &'a str, out_of: Option<&'a str>) {
        let Some((key, role)) = self.key() else { return };
        let is_fraction = out_of.is_some();
        // `'global_step/max_steps': '5/100'`
        let role = if is_fraction && names::is_step_of_total(&key) { Role::Step } else { role };
        if is_fraction && role != Role::Epoch && !names::is_accuracy(&key) {
            self.note_progress(text);
        }
        match role {
            Role::Step => self.take_step(&key, text, out_of),
            Role::TotalSteps if !is_fraction => self.line.total_steps = names::parse_count(text),
            Role::Epoch if self.line.epoch.is_none() || self.epoch_is_round => {
                self.line.epoch = Epoch::read(text, out_of);
                self.epoch_is_round = names::is_round(&key);
                let has_colon =
                    self.separator == Separator::Colon && matches!(self.previous, Some(Token::Mark('[', _)));
                (self.counted, self.before) = (Some(Counted::Epoch), Some(Before::Epoch(has_colon)));
            }
            Role::Own if names::is_batch(&key) => match out_of {
                Some(out_of) => self.set_position(text, out_of),
                None => self.batch = self.batch.or(names::parse_count(text)),
            },
            Role::Own if names::is_place(&key) => self.take_at_place(&key, text),
            Role::Known(_) | Role::Own if self.found.len() < MAX_KEYS && !is_label(&key) => {
                self.take_value(key, text, out_of);
            }
            _ => {}
        }
        self.words.clear();
    }

    /// Takes a step. That of the optimizer counts where a line also names parts of one: `iter 10 step 5`.
    fn take_step(&mut self, key: &str, text: &str, out_of: Option<&str>) {
        let is_finer = names::is_finer(key);
        if self.line.step.is_some() && (is_finer || self.names_step) {
            self.line.form = if is_finer { LineForm::OfParts } else { self.line.form };
            return;
        }
        if self.line.step.is_some() {
            self.line.form = LineForm::OfParts;
        }
        self.names_step = !is_finer;
        (self.line.names_step, self.line.is_finer) = (true, is_finer);
        self.line.step = names::parse_count(text);
        self.line.out_of = out_of.and_then(names::parse_count);
        self.counted = Some(Counted::Step);
    }

    /// Takes the number of a place: `loss train: 2.1, val: 2.3` measures the same there, `Loss: 2.1, Val: 0.5` a score; the 0 of
    /// `Train: 0 [50/1251]` is an epoch.
    fn take_at_place(&mut self, place: &str, text: &'a str) {
        let measured = self.found.iter().rev().find(|(key, _)| names::is_loss(key) && names::names_place(key));
        if measured.is_some() {
            self.found.extend(text.parse().ok().map(|value| (format!("{place}_loss"), value)));
        } else if text.contains('.')
            && self.line.epoch.is_some()
            && self.found.iter().any(|(key, _)| names::is_loss(key))
        {
            self.found.extend(text.parse().ok().map(|value| (format!("{place}_score"), value)));
        } else if names::is_training(place) {
            self.before = Some(Before::Training(text));
        }
    }

    fn take_value(&mut self, key: String, text: &str, out_of: Option<&str>) {
        let value: Option<f64> = text.parse().ok();
        let value = match out_of.map(|out_of| out_of.parse::<f64>().unwrap_or(0.0)) {
            None if names::is_in_percent(&key) => {
                self.line.has_percent = true;
                value.map(|value| value / 100.0)
            }
            None => value,
            // `Accuracy: 9812/10000 (98%)`
            Some(out_of) if names::is_accuracy(&key) && out_of > 0.0 => {
                self.line.has_percent = true;
                value.map(|value| value / out_of)
            }
            Some(_) => None,
        };
        let key = if self.is_of_evaluation && !names::names_place(&key) { format!("val_{key}") } else { key };
        self.found.extend(value.map(|value| (key, value)));
    }

    /// Takes a word in brackets between values: `[train] loss=0.5, [valid] loss=0.6`.
    fn begin_section(&mut self) {
        if let (&[word], Some(Token::Word(_)), false) = (self.words.as_slice(), self.previous, self.found.is_empty()) {
            self.is_of_evaluation = names::is_evaluation(word);
        }
    }

    fn end_key(&mut self) {
        self.drop_words();
    }

    fn drop_words(&mut self) {
        for word in self.words.drain(..) {
            if self.line.other_words.len() < MAX_WORDS {
                self.line.other_words.push(word.to_ascii_lowercase());
            }
        }
        self.separator = Separator::Nothing;
    }
}
