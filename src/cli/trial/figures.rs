//! Checks that rest on the figures of a training; none where too few were seen. Pure.

use super::checklist::{Check, item};
use crate::format::{bytes, count};
use crate::protocol::metrics;
use crate::protocol::worker::Eval;

/// Maximum ratio of memory in the second half to the first.
const STEADY: f64 = 1.05;
/// Losses that show whether they fall.
pub const LOSSES: usize = 10;

/// Compares the memory of the second half with that of the first.
pub fn is_steady(what: &'static str, used: &[u64]) -> Option<Check> {
    let (early, late) = used.split_at(used.len() / 2);
    let (first, then) = (*early.iter().max()?, *late.iter().max()?);
    let seen = format!("{} at most, then {}", bytes(first), bytes(then));
    Some(item(what, then as f64 <= first as f64 * STEADY, seen))
}

/// Compares the last fifth of the losses with the first.
pub fn loss_falls(losses: &[(u64, f64)]) -> Option<Check> {
    const WHAT: &str = "loss falls";
    if let Some((step, loss)) = losses.iter().find(|(_, loss)| !loss.is_finite()) {
        return Some(item(WHAT, false, format!("{loss} at step {}", count(*step))));
    }
    let part = losses.len() / 5;
    if losses.len() < LOSSES {
        return None;
    }
    let mean = |part: &[(u64, f64)]| part.iter().map(|(_, loss)| loss).sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..part]), mean(&losses[losses.len() - part..]));
    Some(item(WHAT, last < first, format!("{first:.4} → {last:.4}")))
}

/// Compares the last evaluation with the first.
pub fn evaluation_improves(what: &'static str, evals: &[Eval]) -> Option<Check> {
    let [first, .., last] = evals else { return None };
    if let (Some(before), Some(after)) = (first.value(metrics::ACCURACY), last.value(metrics::ACCURACY)) {
        let full = after >= 1.0;
        let seen = format!("{:.1} % → {:.1} % right", before * 100.0, after * 100.0);
        return Some(item(what, after > before || full, seen));
    }
    let (before, after) = first.loss.zip(last.loss)?;
    Some(item(what, after < before, format!("loss {before:.4} → {after:.4}")))
}

#[cfg(test)]
mod tests {
    use super::{LOSSES, evaluation_improves, is_steady, loss_falls};
    use crate::protocol::metrics;
    use crate::protocol::worker::Eval;

    #[test]
    fn two_evaluations_are_needed_to_tell() {
        let eval = |loss: f64, accuracy: Option<f64>| {
            let metrics = accuracy.map(|share| (metrics::ACCURACY.to_owned(), share)).into_iter().collect();
            Eval { step: 1, samples: 1, loss: Some(loss), metrics, ..Eval::default() }
        };
        let holds = |evals: &[Eval]| evaluation_improves("evaluation", evals).and_then(|check| check.holds);
        assert_eq!(holds(&[eval(1.0, None)]), None);
        assert_eq!(holds(&[Eval::default(), Eval::default()]), None, "they report no loss");
        assert_eq!(holds(&[eval(1.0, None), eval(2.0, None), eval(0.5, None)]), Some(true));
        assert_eq!(holds(&[eval(1.0, Some(0.5)), eval(0.5, Some(0.5))]), Some(false));
        assert_eq!(holds(&[eval(1.0, Some(0.5)), eval(1.0, Some(0.6))]), Some(true));
    }

    #[test]
    fn a_loss_and_memory_are_judged_once_enough_is_known() {
        let losses = |of: fn(u64) -> f64| (1..=LOSSES as u64).map(|step| (step, of(step))).collect::<Vec<_>>();
        let holds = |losses: &[(u64, f64)]| loss_falls(losses).and_then(|check| check.holds);
        assert_eq!(holds(&losses(|step| 1.0 / step as f64)), Some(true));
        assert_eq!(holds(&losses(|step| step as f64)), Some(false));
        assert_eq!(holds(&losses(|step| 1.0 / step as f64)[1..]), None);
        assert_eq!(holds(&[(3, f64::NAN)]), Some(false));
        let steady = |used: &[u64]| is_steady("memory", used).and_then(|check| check.holds);
        assert_eq!(
            (steady(&[]), steady(&[5]), steady(&[100, 104]), steady(&[100, 110])),
            (None, None, Some(true), Some(false))
        );
    }
}
