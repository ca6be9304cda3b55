//! Updates that a training left out because a loss or a gradient was not finite, or for lack of memory: sentences that say so of one update, and
//! metrics that count them.
//!
//! A sentence names a cause (`NaN`, `overflow`), what was done (`skipping`), and to what (`batch`, `step`). Prose that only
//! speaks of it, such as `skip_nan is enabled`, has another form.

use super::Reading;

/// Longest line that is read as a sentence, in bytes.
const LONGEST: usize = 1024;
/// Most words between what was done and what it was done to.
const BETWEEN: usize = 4;

const CAUSES: [&str; 9] = ["nan", "nans", "inf", "infs", "infinite", "infinity", "nonfinite", "overflow", "overflowed"];
const ACTIONS: [&str; 10] =
    ["skip", "skips", "skipping", "skipped", "drop", "dropping", "dropped", "discarding", "discarded", "ignoring"];
const OBJECTS: [&str; 20] = [
    "batch",
    "batches",
    "minibatch",
    "microbatch",
    "step",
    "steps",
    "update",
    "updates",
    "updating",
    "iteration",
    "iterations",
    "iter",
    "gradient",
    "gradients",
    "grad",
    "grads",
    "backward",
    "optimizer",
    "backprop",
    "backpropagation",
];
/// Words of sentences that speak of another time, or of a setting.
const OTHER: [&str; 14] = [
    "if", "will", "would", "when", "whether", "stop", "stopping", "abort", "aborting", "enabled", "disabled", "option",
    "check", "checks",
];
/// Words of a loss scaler, which lowers its scale then.
const OF_SCALER: [&str; 4] = ["overflow", "overflowed", "scaler", "scale"];
/// Words of a count.
const OF_TOTAL: [&str; 3] = ["total", "far", "number"];

/// Metrics that count such updates. A count of skipped batches may mean empty ones.
const METRICS: [(&str, Span); 7] = [
    // DeepSpeed prints `step=10, skipped=4, lr=[…]`.
    ("skipped", Span::Start),
    ("skipped_steps", Span::Start),
    ("skipped_updates", Span::Start),
    ("num_skipped_steps", Span::Start),
    // Megatron-LM counts anew after each line; iterations with a NaN loss are among those that it skips.
    ("number_of_skipped_iterations", Span::LastReport),
    ("number_of_nan_iterations", Span::LastReport),
    ("skipped_iterations", Span::LastReport),
];

/// The time that a count covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Since the start of the training.
    Start,
    /// Since the last time that the count was reported.
    LastReport,
}

/// An update that was left out, as a sentence says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// A loss scaler found an overflow, and lowers its scale.
    ByScaler,
    /// A loss or a gradient was not finite.
    NotFinite,
    /// The memory of the device did not suffice.
    OutOfMemory,
}

impl Skip {
    /// Reads a sentence.
    pub(super) fn read(text: &str) -> Option<Self> {
        let is_candidate = |word: &&str| ACTIONS.iter().any(|action| word.eq_ignore_ascii_case(action));
        if text.len() > LONGEST || !split(text).any(|word| is_candidate(&word)) {
            return None;
        }
        let words = words(text);
        let any = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
        let lacks_memory = any(&["oom"]) || words.windows(3).any(|three| three == ["out", "of", "memory"]);
        if (!any(&CAUSES) && !lacks_memory) || any(&OTHER) || any(&OF_TOTAL) || !names_update(&words) {
            return None;
        }
        if lacks_memory {
            return Some(Self::OutOfMemory);
        }
        Some(if any(&OF_SCALER) { Self::ByScaler } else { Self::NotFinite })
    }
}

/// Returns the counts among the values of a reading, each by its name.
pub fn skip_counts(reading: &Reading) -> impl Iterator<Item = (&'static str, Span, u64)> + '_ {
    METRICS.iter().filter_map(|(name, span)| {
        // Alone, the word may mean samples, files or lines; DeepSpeed prints the momentum beside it.
        if *name == "skipped" && reading.value("mom").is_none() {
            return None;
        }
        let value = reading.value(name).filter(|value| *value >= 0.0 && value.fract() == 0.0)?;
        Some((*name, *span, value as u64))
    })
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// Returns the words in lower case; `non-finite` and `not finite` are one.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in split(text) {
        let word = word.to_ascii_lowercase();
        match words.last_mut() {
            Some(last) if word == "finite" && ["non", "not"].contains(&last.as_str()) => "nonfinite".clone_into(last),
            _ => words.push(word),
        }
    }
    words
}

/// Reports whether something was done to an update: `skipping this batch`, `step 12 skipped`, `loss is NaN, skipping`.
fn names_update(words: &[String]) -> bool {
    let is_object = |word: &String| OBJECTS.contains(&word.as_str());
    let acts = words.iter().enumerate().filter(|(_, word)| ACTIONS.contains(&word.as_str()));
    acts.into_iter().any(|(at, _)| {
        let behind = &words[at + 1..];
        let before = &words[at.saturating_sub(2)..at];
        behind.is_empty() || behind.iter().take(BETWEEN).any(is_object) || before.iter().any(is_object)
    })
}

#[cfg(test)]
mod tests {
    use super::{Skip, Span, skip_counts};
    use crate::log_metrics::Reading;

    /// Made from the format strings of the public trainers that are named beside them.
    #[test]
    fn sentences_about_an_update_that_was_left_out() {
        for (text, wanted) in [
            // NVIDIA/apex, amp/handle.py
            ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", Skip::ByScaler),
            // deepspeedai/DeepSpeed, runtime/fp16/fused_optimizer.py and zero/stage3.py
            (
                "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
                Skip::ByScaler,
            ),
            (
                "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing \
                 hysteresis to 1",
                Skip::ByScaler,
            ),
            // facebookresearch/fairseq, fairseq/trainer.py
            ("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", Skip::ByScaler),
            // espnet/espnet, espnet2/train/trainer.py
            ("WARNING: The grad norm is nan. Skipping updating the model.", Skip::NotFinite),
            ("NaN loss, skipping batch", Skip::NotFinite),
            // ostris/ai-toolkit, jobs/process/BaseSDTrainProcess.py
            ("# OOM during training step, skipping batch 1/3 #", Skip::OutOfMemory),
            // facebookresearch/fairseq, fairseq/trainer.py
            ("| WARNING: ran out of memory, skipping batch", Skip::OutOfMemory),
            ("Loss is nan, skipping", Skip::NotFinite),
            ("warning: step 120: loss is not finite (nan), batch dropped", Skip::NotFinite),
            ("step 17: non-finite gradient norm inf, skipping update", Skip::NotFinite),
            ("[W] skipped step 12: loss=inf", Skip::NotFinite),
            ("Found NaN or Inf in gradients! Skipping this optimizer step", Skip::NotFinite),
        ] {
            assert_eq!(Skip::read(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn other_lines_leave_nothing_out() {
        for text in [
            "Skipping the first 100 batches",
            "skipping batch 7: no labels",
            "NaN or Inf found in input tensor.",
            "Loss is nan, stopping training",
            "skip_nan=True, clip=1.0",
            "If the loss is nan, the batch will be skipped",
            "skipping NaN checks",
            "step 10 loss nan",
            "Skipping download, file exists",
            "total batches skipped because of nan: 12",
            "info: dropped 3 columns with inf values",
            "overflow: 0, step 12",
            // NVIDIA/Megatron-LM, megatron/training/training.py
            "loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            "OOM during training step 3 times in a row, aborting training",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ] {
            assert_eq!(Skip::read(text), None, "{text}");
        }
    }

    #[test]
    fn metrics_that_count_them() {
        let values =
            vec![("mom".to_owned(), 0.9), ("skipped".to_owned(), 4.0), ("number_of_nan_iterations".to_owned(), 0.0)];
        let reading = Reading { values, ..Reading::default() };
        let counts: Vec<_> = skip_counts(&reading).collect();
        assert_eq!(counts, [("skipped", Span::Start, 4), ("number_of_nan_iterations", Span::LastReport, 0)]);
        let own = vec![("skipped".to_owned(), 4.0), ("loss".to_owned(), 0.5), ("lr".to_owned(), 0.1)];
        assert_eq!(skip_counts(&Reading { values: own, ..Reading::default() }).count(), 0, "samples, perhaps");
        let odd = vec![("mom".to_owned(), 0.9), ("skipped".to_owned(), f64::NAN), ("skipped_steps".to_owned(), -1.0)];
        assert_eq!(skip_counts(&Reading { values: odd, ..Reading::default() }).count(), 0);
    }
}
