//! Names of scores, among them accuracies.

use std::borrow::Cow;

/// Scores that are measured on whole data sets: a line of them alone is an evaluation.
const SCORES: [&str; 18] = [
    "miou",
    "mean_iou",
    "map",
    "map50",
    "map50-95",
    "wer",
    "cer",
    "bleu",
    "rouge",
    "fid",
    "f1",
    "mrr",
    "ndcg",
    "psnr",
    "ssim",
    "auc",
    "dice",
    "mean_dice",
];
/// Names of an accuracy among the first k guesses, without the number.
const TOP: [&str; 10] =
    ["acc@", "prec@", "top", "top_", "top-", "acc", "acc/top", "accuracy/top", "accuracy_top", "accuracy_top-"];

/// Reports whether a metric is an accuracy, wherever it was measured.
pub fn is_accuracy(name: &str) -> bool {
    super::known(super::place(name).1).is_some_and(|name| name.starts_with("accuracy"))
}

/// Reports whether a key is an accuracy that scripts print in percent, however small: `Acc@1 0.39`.
pub fn is_in_percent(key: &str) -> bool {
    if !key.contains('@') && !key.ends_with(|letter: char| letter.is_ascii_digit()) {
        return false;
    }
    let rest = super::place(key).1;
    ["acc@", "prec@"].iter().any(|begun| rest.starts_with(begun)) || ["acc1", "acc5"].contains(&rest)
}

/// Reports whether a key is a score of a whole data set.
pub fn is_score(key: &str) -> bool {
    let rest = super::place(key).1;
    SCORES.contains(&rest) || is_accuracy(rest) || at(rest, &["r@", "recall@"]).is_some()
}

/// Reports whether a part of a key is a score: `bbox_map_50`, `image_to_text_r@1`.
pub fn has_score(key: &str) -> bool {
    key.split(['_', '/']).any(is_score)
}

/// Returns the name of an accuracy among the first guesses: that of the first is plain.
pub(super) fn accuracy_of_guesses(rest: &str) -> Option<Cow<'static, str>> {
    let guesses = rest.strip_suffix("_accuracy").or(rest.strip_suffix("_acc")).unwrap_or(rest);
    match at(guesses, &TOP)? {
        1 => Some(Cow::Borrowed("accuracy")),
        count => Some(Cow::Owned(format!("accuracy_top{count}"))),
    }
}

/// Returns the number of guesses at the end of a name: 5 of `acc@5`.
fn at(name: &str, names: &[&str]) -> Option<u8> {
    name.as_bytes().last().filter(|byte| byte.is_ascii_digit())?;
    let digits = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    names.contains(&digits).then(|| name[digits.len()..].parse().ok()).flatten()
}
