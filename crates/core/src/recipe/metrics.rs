//! Named metrics: any number that a task or a command reports under a name of its own.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Named metrics of one step or one evaluation; every value is finite.
pub type Metrics = BTreeMap<String, f64>;

/// Maximum number of names in a run.
pub const MAX_NAMES: usize = 64;
/// Maximum length of a name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// The mean loss, as a metric of an evaluation.
pub const LOSS: &str = "loss";
/// Share of correct answers, 0 to 1.
pub const ACCURACY: &str = "accuracy";
/// `exp(loss)`.
pub const PERPLEXITY: &str = "perplexity";
/// The beginning of the names of quality metrics, which are measured beside the training.
pub const QUALITY: &str = "quality.";

/// The beginning of the names of accuracies of one class, behind [`QUALITY`].
pub const CLASS_ACCURACY: &str = "accuracy.";

/// Reports whether a metric was measured beside the training, on a checkpoint.
#[must_use]
pub fn is_quality(name: &str) -> bool {
    name.starts_with(QUALITY)
}

/// Reports whether a name may be stored: 1 to 64 letters, digits and `_ . / -`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_allowed)
}

/// Reports whether a metric is the part of one class, of which there may be many.
#[must_use]
pub fn is_of_class(name: &str) -> bool {
    name.strip_prefix(QUALITY).is_some_and(|name| name.starts_with(CLASS_ACCURACY))
}

/// Turns any text into a name: replaces other characters by `_` and cuts the rest; `None` for an empty text.
#[must_use]
pub fn sanitize_name(text: &str) -> Option<String> {
    let name: String = text.trim().chars().map(|c| if is_allowed(c) { c } else { '_' }).take(MAX_NAME_BYTES).collect();
    (!name.is_empty()).then_some(name)
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-')
}

/// Reads metrics and leaves out those without a finite value: JSON writes NaN as null.
///
/// # Errors
/// Returns an error for anything but an object of numbers.
pub fn read_finite<'de, D: Deserializer<'de>>(from: D) -> Result<Metrics, D::Error> {
    let all = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| value.is_finite())?))).collect())
}

#[cfg(test)]
mod tests {
    use super::{MAX_NAME_BYTES, is_name, sanitize_name};
    use proptest::prelude::*;

    #[test]
    fn names_keep_what_charts_and_files_can_show() {
        assert_eq!(sanitize_name("val/top-5.acc_1").as_deref(), Some("val/top-5.acc_1"));
        assert_eq!(sanitize_name(" learning rate (µ) ").as_deref(), Some("learning_rate____"));
        assert_eq!(sanitize_name("\u{1b}[31mred").as_deref(), Some("__31mred"));
        assert_eq!(sanitize_name("  "), None);
        assert!(!is_name("") && !is_name("a b") && !is_name(&"x".repeat(MAX_NAME_BYTES + 1)));
    }

    proptest! {
        #[test]
        fn a_sanitized_text_is_a_name(text in any::<String>()) {
            prop_assert!(sanitize_name(&text).is_none_or(|name| is_name(&name)));
        }
    }
}
