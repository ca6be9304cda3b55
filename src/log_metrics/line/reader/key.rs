//! The key that the words before a number make.

use super::{MAX_WORDS, Reader};
use crate::log_metrics::names::{self, Role};

/// Words before a key that do not change its meaning.
const FILLERS: [&str; 14] = [
    "info",
    "debug",
    "warning",
    "root",
    "the",
    "with",
    "and",
    "current",
    "now",
    "main",
    "train",
    "training",
    "learning",
    "completed",
];
/// Words before the key of an evaluation that do not change its meaning; an `epoch loss` is not that of a step.
const BEFORE_EVALUATION: [&str; 2] = ["epoch", "final"];
/// Words before a metric that do not change its meaning.
const MEANS: [&str; 4] = ["overall", "average", "avg", "mean"];
/// Numbers that name a run, or its future, not a measurement.
const LABELS: [&str; 10] = [
    "v_num",
    "pid",
    "rank",
    "eta",
    "remaining",
    "remaining_time",
    "time_left",
    "epoch_loaded",
    "batchsize",
    "batch_size",
];

impl Reader<'_> {
    /// Returns the key that the words make, and the role of its number; none when they are prose.
    pub(super) fn key(&self) -> Option<(String, Role)> {
        if self.words.is_empty() || self.words.len() > MAX_WORDS {
            return None;
        }
        let whole = names::sanitise(&self.words.join("_"));
        let mut fillers = self.words.iter();
        let (mut is_summary, mut is_mean) = (false, false);
        while !fillers.as_slice().is_empty() {
            let key = names::sanitise(&fillers.as_slice().join("_"));
            let role = names::role(&key);
            let of_evaluation = matches!(&role, Role::Known(name) if names::is_of_evaluation(name));
            let is_meant = !is_mean || matches!(role, Role::Known(_));
            if (role != Role::Own && is_meant && (of_evaluation || !is_summary)) || names::is_batch(&key) {
                return Some((key, role));
            }
            let is_one_of = |word: &&str, list: &[&str]| list.iter().any(|filler| word.eq_ignore_ascii_case(filler));
            let Some(word) = fillers.next() else { break };
            let is_before_evaluation = is_one_of(word, &BEFORE_EVALUATION);
            is_summary |= is_before_evaluation;
            is_mean |= is_one_of(word, &MEANS);
            if !is_before_evaluation && !is_one_of(word, &MEANS) && !is_one_of(word, &FILLERS) {
                break;
            }
        }
        self.is_separated().then_some((whole, Role::Own))
    }
}

/// Reports whether this key names a label or the line of a source file, so that its number measures nothing.
pub(super) fn is_label(key: &str) -> bool {
    LABELS.contains(&key) || key.rsplit_once('.').is_some_and(|(_, ending)| ending == "py")
}
