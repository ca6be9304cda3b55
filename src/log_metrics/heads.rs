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
//! 3/40, train_loss: 0.5                    the step and its total
//! 2epoch:train:51-100batch: loss=0.5       epoch and step
//! Ep. 2 : Up. 100 : Sen. 7,112 : Cost 0.5  the same
//! 100: 0.6, 0.5 avg loss, 0.001 rate       the step
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
    /// A step of a form of its own, of the training or an evaluation.
    Step,
}

/// Begins the lines of Marian.
const UPDATES: &str = "Ep. ";

type Parse = for<'a> fn(&'a str) -> Option<Head<'a>>;

/// The forms, the first that fits counts.
const FORMS: [Parse; 10] = [
    pair,
    fractions,
    of_epoch,
    bracketed_round,
    bare_round,
    fraction_and_list,
    batch_range,
    epoch_results,
    updates,
    average_loss,
];

impl<'a> Head<'a> {
    /// Reads the beginning of a line.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_start();
        let begins = |byte: &u8| *byte == b'[' || byte.is_ascii_digit();
        text.as_bytes().first().filter(|byte| begins(byte) || text.starts_with(UPDATES))?;
        FORMS.iter().find_map(|form| form(text))
    }
}

fn pair(text: &str) -> Option<Head<'_>> {
    let (inside, rest) = brackets(text)?;
    let (epoch, step) = inside.split_once(',')?;
    Some(in_epoch(whole(epoch)?, whole(step)?, Cow::Borrowed(rest)))
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

/// `3/40, train_loss: 0.5` of MONAI.
fn fraction_and_list(text: &str) -> Option<Head<'_>> {
    let (counts, rest) = text.split_once(',')?;
    let (step, out_of) = fraction(counts)?;
    Some(Head { form: Form::Brackets, epoch: None, step, out_of: Some(out_of), rest: Cow::Borrowed(rest) })
}

/// `2epoch:train:51-100batch: loss=0.5` of ESPnet.
fn batch_range(text: &str) -> Option<Head<'_>> {
    let (epoch, rest) = text.split_once("epoch:train:")?;
    let (range, rest) = rest.split_once("batch:")?;
    let (_, last) = range.split_once('-')?;
    Some(in_epoch(whole(epoch)?, whole(last)?, Cow::Borrowed(rest)))
}

/// `2epoch results: [train] loss=0.5, total_count=200, [valid] loss=0.6, total_count=20` of ESPnet: its last batch was the hundredth.
fn epoch_results(text: &str) -> Option<Head<'_>> {
    let (epoch, rest) = text.split_once("epoch results:")?;
    let (epoch, (_, count)) = (whole(epoch)?, rest.split_once(" total_count=")?);
    let steps = whole(&count[..count.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(count.len())])?;
    let step = steps.checked_div(epoch).filter(|step| step * epoch == steps)?;
    Some(Head { form: Form::Step, out_of: Some(step), ..in_epoch(epoch, step, Cow::Borrowed(rest)) })
}

/// `Ep. 2 : Up. 100 : Sen. 7,112 : Cost 0.5 * 81,000 : Time 12.3s : L.r. 3.0e-05` of Marian, and
/// `[valid] Ep. 2 : Up. 100 : cross-entropy : 80.1 : new best`.
fn updates(text: &str) -> Option<Head<'_>> {
    let (place, text) = brackets(text).unwrap_or(("", text));
    let (epoch, rest) = text.trim_start().strip_prefix(UPDATES)?.split_once(" : Up. ")?;
    let (step, rest) = rest.split_once(" : ")?;
    let epoch = Epoch::read(epoch, None)?;
    let rest = format!("{place} {}", rest.replace(" : Cost ", " : loss ").replace("L.r. ", "lr "));
    Some(Head { form: Form::Step, epoch: Some(epoch), step: whole(step)?, out_of: None, rest: Cow::Owned(rest) })
}

/// `100: 0.6, 0.5 avg loss, 0.001 rate, 3.2 seconds, 6400 images` of Darknet.
fn average_loss(text: &str) -> Option<Head<'_>> {
    let (step, rest) = text.split_once(':')?;
    let mut parts = rest.split(',').skip(1);
    let (loss, rate) = (parts.next()?.trim().strip_suffix(" avg loss")?, parts.next()?.trim().strip_suffix(" rate")?);
    let rest = Cow::Owned(format!("loss: {loss}, lr: {rate}"));
    Some(Head { form: Form::Step, epoch: None, step: whole(step)?, out_of: None, rest })
}

fn in_epoch(epoch: u64, step: u64, rest: Cow<'_, str>) -> Head<'_> {
    let epoch = Epoch { value: epoch as f64, count: None, zero_based: false };
    Head { form: Form::Brackets, epoch: Some(epoch), step, out_of: None, rest }
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
            ("3/40, train_loss: 0.5", (Form::Brackets, None, 3, Some(40))),
            ("2epoch:train:51-100batch: loss=0.5", (Form::Brackets, Some(2.0), 100, None)),
            ("2epoch results: [train] loss=0.5, total_count=200, [valid] x=1", (Form::Step, Some(2.0), 100, Some(100))),
            ("Ep. 2 : Up. 100 : Sen. 7,112 : Cost 0.5 * 81,000", (Form::Step, Some(2.0), 100, None)),
            ("[valid] Ep. 2 : Up. 100 : bleu : 0.5 : new best", (Form::Step, Some(2.0), 100, None)),
            ("100: 0.6, 0.5 avg loss, 0.001 rate, 3.2 seconds", (Form::Step, None, 100, None)),
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
            "1: 2, 3 avg, 4 rate",
            "2epoch:valid:51-100batch: loss=0.5",
            "Ep. 2 : Sen. 100 : Up. 3",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
