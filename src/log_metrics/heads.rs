//! Beginnings of lines that say where the training is, although no word names their numbers. What follows decides whether
//! they do.
//!
//! ```text
//! [2,  2000] loss: 1.5                     epoch and step
//! [0/5][300/1583] Loss_D: 0.5              the same, with their totals
//! [3/40] 1 tree, train loss: 0.5           the step and its total
//! 938/938 - 3s - 3ms/step - loss: 0.3      the step of the epoch that a line above names
//! [10]  train-rmse:0.5  eval-rmse:0.6      the round of a boosted model
//! 10:   learn: 0.5  test: 0.6              the same
//! ```

use super::clock::Epoch;
use super::names;
use std::borrow::Cow;

/// The numbers at the beginning of a line, and the text behind them.
#[derive(Debug, PartialEq)]
pub struct Head<'a> {
    pub form: Form,
    pub epoch: Option<Epoch>,
    pub step: u64,
    pub out_of: Option<u64>,
    pub rest: Cow<'a, str>,
}

/// The form of a beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Numbers in brackets.
    Brackets,
    /// The count of an epoch, which ends with the line.
    OfEpoch,
    /// The round of a boosted model.
    Round,
}

type Parse = for<'a> fn(&'a str) -> Option<Head<'a>>;

/// The forms, the first that fits counts.
const FORMS: [Parse; 5] = [pair, fractions, of_epoch, bracketed_round, bare_round];

impl<'a> Head<'a> {
    /// Reads the beginning of a line.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_start();
        let begins = |byte: &u8| *byte == b'[' || byte.is_ascii_digit();
        text.as_bytes().first().filter(|byte| begins(byte))?;
        FORMS.iter().find_map(|form| form(text))
    }
}

fn pair(text: &str) -> Option<Head<'_>> {
    let (inside, rest) = brackets(text)?;
    let (epoch, step) = inside.split_once(',')?;
    let (epoch, step) = (whole(epoch)?, whole(step)?);
    let epoch = Epoch { value: epoch as f64, count: None, zero_based: false };
    Some(Head { form: Form::Brackets, epoch: Some(epoch), step, out_of: None, rest: Cow::Borrowed(rest) })
}

fn fractions(text: &str) -> Option<Head<'_>> {
    let (inside, rest) = brackets(text)?;
    let (first, total) = fraction(inside)?;
    let head = |epoch, step, out_of, rest| {
        Some(Head { form: Form::Brackets, epoch, step, out_of: Some(out_of), rest: Cow::Borrowed(rest) })
    };
    let Some(((step, out_of), rest)) = brackets(rest).and_then(|(inside, rest)| Some((fraction(inside)?, rest))) else {
        return head(None, first, total, rest);
    };
    head(Some(Epoch { value: first as f64, count: Some(total), zero_based: first == 0 }), step, out_of, rest)
}

fn of_epoch(text: &str) -> Option<Head<'_>> {
    let (counts, rest) = text.split_once(" - ")?;
    let (step, out_of) = fraction(counts)?;
    Some(Head { form: Form::OfEpoch, epoch: None, step, out_of: Some(out_of), rest: Cow::Borrowed(rest) })
}

/// `[10]  train-rmse:0.5` of XGBoost and `[10]  training's l2: 0.5` of LightGBM; a rank in brackets is followed by others.
fn bracketed_round(text: &str) -> Option<Head<'_>> {
    let (inside, rest) = brackets(text)?;
    let step = whole(inside)?;
    let (key, _) = rest.split_once(':')?;
    let joined = join_words(key.trim());
    let is_key = joined.contains('-') && !joined.contains(' ') && names::names_place(&names::sanitise(&joined));
    let rest = if key.contains('\'') { Cow::Owned(join_words(rest)) } else { Cow::Borrowed(rest) };
    is_key.then_some(Head { form: Form::Round, epoch: None, step, out_of: None, rest })
}

/// Joins `valid_0's l2` and, of a cross-validation, `cv_agg's valid l2` or `cv_agg's l2`.
fn join_words(text: &str) -> String {
    let text = text.replace("cv_agg's train ", "train-").replace("cv_agg's valid ", "valid-");
    text.replace("cv_agg's ", "valid-").replace("'s ", "-")
}

/// `10:  learn: 0.5  test: 0.6  best: 0.6 (10)  total: 12ms` of CatBoost.
fn bare_round(text: &str) -> Option<Head<'_>> {
    let (round, rest) = text.split_once(':')?;
    let (step, rest) = (whole(round)?, rest.trim_start());
    if !rest.starts_with("learn: ") && !rest.starts_with("test: ") {
        return None;
    }
    let rest = rest.replacen("learn: ", "train-loss: ", 1).replacen("test: ", "valid-loss: ", 1);
    Some(Head { form: Form::Round, epoch: None, step, out_of: None, rest: Cow::Owned(rest) })
}

fn brackets(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('[')?.split_once(']')
}

fn fraction(text: &str) -> Option<(u64, u64)> {
    let (count, out_of) = text.split_once('/')?;
    Some((whole(count)?, whole(out_of)?))
}

fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| names::parse_count(text)).flatten()
}

#[cfg(test)]
mod tests {
    use super::{Form, Head};

    /// The form, the epoch, the step and its total.
    fn read(text: &str) -> Option<(Form, Option<f64>, u64, Option<u64>)> {
        Head::read(text).map(|head| (head.form, head.epoch.map(|epoch| epoch.value), head.step, head.out_of))
    }

    #[test]
    fn each_form_is_read() {
        for (text, wanted) in [
            ("[2,  2000] loss: 1.5", (Form::Brackets, Some(2.0), 2000, None)),
            ("[0/5][300/1583] Loss_D: 0.5", (Form::Brackets, Some(0.0), 300, Some(1583))),
            ("[3/40] train loss: 0.5", (Form::Brackets, None, 3, Some(40))),
            ("938/938 - 3s - loss: 0.3", (Form::OfEpoch, None, 938, Some(938))),
            ("[10] train-rmse:0.5", (Form::Round, None, 10, None)),
            ("[10] validation_0-logloss:0.5", (Form::Round, None, 10, None)),
            ("[10] valid_0's binary_logloss: 0.5", (Form::Round, None, 10, None)),
            ("[10] cv_agg's valid l2: 2.5 + 0.1", (Form::Round, None, 10, None)),
            ("10: learn: 0.5 total: 12ms", (Form::Round, None, 10, None)),
            ("0: test: 0.5 best: 0.5 (0)", (Form::Round, None, 0, None)),
        ] {
            assert_eq!(read(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn other_beginnings_are_none() {
        for text in [
            "[0] loss: 0.5",
            "[rank0]: loss: 0.5",
            "[0]: NCCL INFO ring-order: 5",
            "[1] re-loading: 3",
            "[2026-11-22 10:00:00] step 3",
            "[32, 128, 7] shape",
            "12:30:45 train loss: 0.5",
            "3/4 shards loaded",
            "2026-11-22 - step 3",
            "1: local_rank: 0",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
