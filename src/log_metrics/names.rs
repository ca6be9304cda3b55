//! Names of metrics: the names that trainers use become the ones downshift knows.

mod objective;
mod scores;

pub use objective::add_objective;
pub use scores::{has_score, is_accuracy, is_in_percent, is_score};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Maximum length of a metric's name.
pub const MAX_NAME: usize = 64;
/// Maximum number of metrics that one source may name; later names are dropped.
pub const MAX_NAMES: usize = 64;

/// Largest count that is believed. A training that takes a step each microsecond needs 11 days for it; what is larger is
/// something else, and taken for a step it would end the curve.
pub const MAX_COUNT: u64 = 1_000_000_000_000;

/// Reads a count of steps.
pub fn parse_count(text: &str) -> Option<u64> {
    text.parse().ok().filter(|count| *count <= MAX_COUNT)
}

/// Names without the part that says where they were measured.
const KNOWN: [(&str, &[&str]); 6] = [
    (
        "loss",
        &[
            "loss",
            "lm_loss",
            "avr_loss",
            "avg_loss",
            "average_loss",
            "mean_loss",
            "loss_step",
            "step_loss",
            "lm_loss_value",
            "loss/current",
            "total_loss",
            "loss_total",
            "loss/total",
            "reduced_train_loss",
            "batch_loss",
        ],
    ),
    ("lr", &["lr", "learning_rate"]),
    ("grad_norm", &["grad_norm", "gradient_norm", "gnorm", "total_norm"]),
    ("accuracy", &["accuracy", "acc"]),
    ("perplexity", &["perplexity", "ppl", "lm_loss_ppl"]),
    (
        "reward",
        &[
            "reward",
            "mean_reward",
            "ep_rew_mean",
            "episodic_return",
            "episode_reward",
            "episode_return",
            "mean_total_reward",
        ],
    ),
];
/// Words before the loss of another evaluation than the newest.
const OF_OTHERS: [&str; 7] = ["best", "min", "max", "lowest", "last", "previous", "prev"];
const TRAINING: [&str; 6] = ["training", "train", "trainer", "tr", "rollout", "learn"];
const EVALUATION: [&str; 7] = ["evaluation", "validation", "eval", "valid", "val", "dev", "test"];
const STEPS: [&str; 15] = [
    "step",
    "steps",
    "iter",
    "iters",
    "iteration",
    "iterations",
    "global_step",
    "train_step",
    "training_step",
    "optimizer_step",
    "num_updates",
    "update",
    "current_steps",
    "current_step",
    // Stable-Baselines3 counts steps of the environment.
    "time/total_timesteps",
];
/// Counts of parts of a step, such as micro-batches: a step beside them says more.
const FINER: [&str; 4] = ["iter", "iters", "iteration", "iterations"];
/// Words for a step that are also names of settings: a count alone is none.
const BATCHES: [&str; 5] = ["batch", "batches", "minibatch", "mini-batch", "batch_idx"];
const TOTALS: [&str; 5] = ["total_steps", "max_steps", "total_optimization_steps", "total_iterations", "train_iters"];
const EPOCHS: [&str; 4] = ["epoch", "epochs", "train_epoch", "current_epoch"];
/// Counts that stand for epochs, unless an epoch is named beside them.
const ROUNDS: [&str; 4] = ["round", "rounds", "episode", "episodes"];

/// The role of a number, by the key before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The optimizer step.
    Step,
    /// The step at which the training ends.
    TotalSteps,
    /// The epoch.
    Epoch,
    /// A metric that downshift knows by this name.
    Known(String),
    /// Any other number.
    Own,
}

/// Returns the role of a number by its sanitised key.
pub fn role(key: &str) -> Role {
    let (place, rest) = place(key);
    match key {
        _ if is_step(key) || (place == Section::Training && is_step(rest)) => Role::Step,
        _ if TOTALS.contains(&key) => Role::TotalSteps,
        _ if is_epoch(rest) || is_round(rest) => Role::Epoch,
        _ => match known(rest) {
            Some(name) if place == Section::Evaluation || key.starts_with("lm_loss_") => {
                Role::Known(format!("eval_{name}"))
            }
            Some(name) => Role::Known(name.into_owned()),
            None => Role::Own,
        },
    }
}

/// Reports whether a word counts steps, as in `40/ 49 batches`.
pub fn is_unit(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    is_step(&word) || is_batch(&word)
}

/// Reports whether a key counts batches.
pub fn is_batch(key: &str) -> bool {
    key.contains("batch") && BATCHES.contains(&place(key).1)
}

/// Reports whether a key may count parts of a step.
pub fn is_finer(key: &str) -> bool {
    FINER.contains(&key)
}

/// Returns the word in a key that names the data of an evaluation: `val`, `test`.
pub fn evaluation_set(key: &str) -> Option<&str> {
    let (place, rest) = place(key);
    let word = key.strip_suffix(rest).filter(|word| !word.is_empty()).or_else(|| key.strip_prefix(rest))?;
    (place == Section::Evaluation).then(|| word.trim_matches(['_', '/', '.']))
}

/// Reports whether a word names the test set.
pub fn is_test_set(word: &str) -> bool {
    ["test", "testing"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Reports whether a word says that numbers were measured on data that is not trained on.
pub fn is_evaluation(word: &str) -> bool {
    EVALUATION
        .iter()
        .chain(&["validating", "evaluating", "sanity", "predicting", "testing"])
        .any(|known| word.eq_ignore_ascii_case(known))
}

/// Reports whether a key names where its number was measured: `train_loss`, `val/loss`.
pub fn names_place(key: &str) -> bool {
    place(key).0 != Section::Unnamed
}

/// Reports whether a key is a loss of some kind: `val_loss`, `loss_cls`.
pub fn is_loss(key: &str) -> bool {
    let mut parts = key.rsplit(['_', '/', '.', '-']).peekable();
    (parts.peek() != Some(&"scale") && parts.any(|part| part == "loss")) || objective::is_cross_entropy(place(key).1)
}

/// Reports whether a key says nothing but where a number was measured.
pub fn is_place(key: &str) -> bool {
    TRAINING.contains(&key) || EVALUATION.contains(&key)
}

/// Reports whether a word names the training.
pub fn is_training(word: &str) -> bool {
    TRAINING.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Reports whether a key names a step and its total: `global_step/max_steps`.
pub fn is_step_of_total(key: &str) -> bool {
    key.split_once('/').is_some_and(|(step, total)| is_step(step) && TOTALS.contains(&total))
}

fn is_step(key: &str) -> bool {
    STEPS.contains(&key)
}

/// Reports whether a key stands for an epoch, unless one is named.
pub fn is_round(key: &str) -> bool {
    ROUNDS.contains(&key)
}

fn is_epoch(key: &str) -> bool {
    EPOCHS.contains(&key)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Training,
    Evaluation,
    Unnamed,
}

/// Splits `train/loss`, `val_loss`, `valid_0-rmse`, `loss/val`, `loss_val` and `clip_val_loss` into the place and the rest.
fn place(key: &str) -> (Section, &str) {
    let of = |word: &str, rest| match word {
        word if TRAINING.contains(&word) => Some((Section::Training, rest)),
        word if EVALUATION.contains(&word) => Some((Section::Evaluation, rest)),
        _ => None,
    };
    let is_metric = |rest: &str| known(rest).is_some() || is_epoch(rest) || is_step(rest);
    let before = || {
        let (word, rest) = key.split_once(['_', '/', '.', '-'])?;
        // `test_set_loss`
        of(word, unnumbered(rest.strip_prefix("set_").unwrap_or(rest)))
    };
    let after = || {
        let (rest, word) = key.rsplit_once(['/', '_'])?;
        of(word, rest).filter(|_| key[rest.len()..].starts_with('/') || is_metric(rest))
    };
    let within = || {
        let at = key.as_bytes().windows(5).position(|bytes| bytes == b"_val_")?;
        let (first, rest) = (&key[..at], &key[at + 5..]);
        let is_other = first.split('_').any(|word| OF_OTHERS.contains(&word));
        (!is_other && is_metric(rest)).then_some((Section::Evaluation, rest))
    };
    before().or_else(after).or_else(within).unwrap_or((Section::Unnamed, key))
}

/// Returns the name behind the number of a data set: `rmse` of `0-rmse`.
fn unnumbered(rest: &str) -> &str {
    let after = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let begun = if after.len() < rest.len() { after.strip_prefix(['_', '-', '/']) } else { None };
    begun.unwrap_or(rest)
}

fn known(rest: &str) -> Option<Cow<'static, str>> {
    // Lightning and kohya name the rate of a group: `lr-AdamW`, `lr/unet`.
    if rest.starts_with("lr-") || rest.starts_with("lr/") {
        return Some(Cow::Borrowed("lr"));
    }
    if let Some((name, _)) = KNOWN.iter().find(|(_, names)| names.contains(&rest)) {
        return Some(Cow::Borrowed(name));
    }
    scores::accuracy_of_guesses(rest)
}

/// Returns a key in lower case, with at most [`MAX_NAME`] of the characters that names may have.
pub fn sanitise(key: &str) -> String {
    let letters = key.trim().chars().take(MAX_NAME).map(|letter| match letter {
        'a'..='z' | '0'..='9' | '_' | '.' | '/' | '-' | '@' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '_',
    });
    letters.collect()
}

/// Returns the name that all evaluations have in common: `val/f1` and `eval_f1` are `eval_f1`.
fn evaluation_name(key: &str) -> Option<String> {
    let (place, rest) = place(key);
    (place == Section::Evaluation && key != format!("eval_{rest}")).then(|| format!("eval_{rest}"))
}

/// Reports whether a metric is one of an evaluation.
pub fn is_of_evaluation(name: &str) -> bool {
    name.starts_with("eval_")
}

/// Counts a score that follows the loss of an evaluation as one of that evaluation: `val_loss 0.3 accuracy 0.9`.
pub fn take_for_evaluation(found: &mut [(String, f64)]) {
    let Some(loss) = found.iter().position(|(key, _)| role(key) == Role::Known("eval_loss".to_owned())) else { return };
    for (key, _) in &mut found[loss..] {
        match place(key).0 {
            Section::Training => return,
            Section::Evaluation => continue,
            Section::Unnamed => {}
        }
        if known(key).is_some_and(|name| name == "perplexity") || is_score(key) {
            *key = format!("eval_{key}");
        }
    }
}

/// Turns keys and numbers into metrics: a key keeps its own name where two of them mean the same metric.
pub fn canonical_values(found: Vec<(String, f64)>) -> Vec<(String, f64)> {
    // The summary at the end of a Hugging Face training averages over the run.
    let is_summary = found.iter().any(|(key, _)| key == "train_runtime");
    let mut taken: BTreeSet<String> = found.iter().map(|(key, _)| key.clone()).collect();
    let mut values: Vec<(String, f64)> = Vec::with_capacity(found.len());
    for (key, value) in found {
        let name = match role(&key) {
            Role::Known(name) if !is_summary && taken.insert(name.clone()) => name,
            _ => match evaluation_name(&key) {
                Some(name) if taken.insert(name.clone()) => name,
                // A second data set, such as that of the test.
                Some(_) => format!("eval_{key}"),
                None => key,
            },
        };
        if !name.is_empty() && !values.iter().any(|(known, _)| *known == name) {
            values.push((name, value));
        }
    }
    objective::name_cross_entropy(&mut values);
    values
}

/// The names that one source has used so far.
#[derive(Debug, Default)]
pub struct Names(BTreeSet<String>);

impl Names {
    /// Drops values whose name would exceed the limit.
    pub fn admit(&mut self, values: &mut Vec<(String, f64)>) {
        values.retain(|(name, _)| self.0.contains(name) || (self.0.len() < MAX_NAMES && self.0.insert(name.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_NAMES, Names, Role, canonical_values, role, sanitise};

    #[test]
    fn keys_of_trainers_become_known_names() {
        for (key, name) in [
            ("loss", "loss"),
            ("train/loss", "loss"),
            ("Training Loss", "loss"),
            ("avr_loss", "loss"),
            ("lm loss", "loss"),
            ("lm loss value", "eval_loss"),
            ("lm loss PPL", "eval_perplexity"),
            ("val_loss", "eval_loss"),
            ("validation/loss", "eval_loss"),
            ("Loss/val", "eval_loss"),
            ("Test set loss", "eval_loss"),
            ("eval_accuracy", "eval_accuracy"),
            ("learning_rate", "lr"),
            ("lr-AdamW/pg1", "lr"),
            ("train/grad_norm", "grad_norm"),
        ] {
            assert_eq!(role(&sanitise(&key.replace(' ', "_"))), Role::Known(name.to_owned()), "{key}");
        }
        for key in ["best_loss", "kl_loss", "eval_runtime", "train_samples", "throughput", "epochs_left", "eval_step"] {
            assert_eq!(role(key), Role::Own, "{key}");
        }
        for key in ["step", "global_step", "train/global_step", "trainer/global_step", "iteration"] {
            assert_eq!(role(key), Role::Step, "{key}");
        }
    }

    #[test]
    fn metrics_of_evaluations_have_one_name() {
        let found = ["val/f1", "eval/runtime", "eval_bleu"].map(|key| (key.to_owned(), 1.0)).to_vec();
        let names: Vec<String> = canonical_values(found).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["eval_f1", "eval_runtime", "eval_bleu"]);
    }

    #[test]
    fn two_keys_of_one_metric_stay_apart() {
        let found = vec![("avr_loss".to_owned(), 1.0), ("loss".to_owned(), 2.0), ("train_loss".to_owned(), 3.0)];
        assert_eq!(canonical_values(found.clone()), found);
        let found = vec![("train_loss".to_owned(), 1.0), ("train_runtime".to_owned(), 2.0)];
        assert_eq!(canonical_values(found.clone()), found);
    }

    #[test]
    fn names_are_short_plain_and_few() {
        assert_eq!(sanitise(" Größe\u{1b}[31m "), "gr__e__31m");
        assert_eq!(sanitise(&"x".repeat(100)).len(), 64);
        let mut names = Names::default();
        let mut values: Vec<_> = (0..100).map(|index| (format!("m{index}"), 1.0)).collect();
        names.admit(&mut values);
        assert_eq!(values.len(), MAX_NAMES);
        let mut again = vec![("m3".to_owned(), 2.0), ("m99".to_owned(), 2.0)];
        names.admit(&mut again);
        assert_eq!(again, [("m3".to_owned(), 2.0)]);
    }
}
