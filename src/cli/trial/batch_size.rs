//! Checks that a command obeys its batch size: with half of it, its losses have to differ.

use super::checklist::{Check, item, unknown};
use super::compare::{Field, pairs};
use super::trace::Trace;
use super::verdict::ENOUGH;
use crate::cli::measure::{only_rung, with_knob};
use crate::config::command::launch::find_knob;
use crate::config::run::Run;

/// The knob.
pub const KNOB: &str = "training.micro_batch";
const WHAT: &str = "batch size obeyed";

/// Returns the run with half the batch size on one rung, and that size, if the run file has one that the command takes.
pub fn halved(run: &Run, rung: usize) -> Option<(Run, u64)> {
    let run = only_rung(run, rung);
    let size = find_knob(&run.preset_tree(0), KNOB)?.as_u64().filter(|size| *size >= 2)?;
    if !run.unreached_knobs(std::iter::once(KNOB)).is_empty() {
        return None;
    }
    Some((with_knob(&run, KNOB, &(size / 2).to_string()).ok()?, size / 2))
}

/// Judges a training with another batch size.
pub fn judge(straight: &Trace, other: &Trace, size: u64) -> Check {
    let both = pairs(straight, other, |_| true);
    let (losses, ids) = (Field::Loss.compare(&both, 0.0), Field::Ids.compare(&both, 0.0));
    let mut values = both.iter().filter_map(|pair| pair.straight.loss);
    let is_flat = values.next().is_none_or(|first| values.all(|loss| loss.to_bits() == first.to_bits()));
    if losses.is_broken() || ids.is_broken() {
        return item(WHAT, true, format!("{KNOB} = {size} changes the losses"));
    }
    if losses.compared < ENOUGH || is_flat {
        return unknown(WHAT, format!("the losses do not show whether {KNOB} = {size} changes anything"));
    }
    let steps = losses.compared;
    item(WHAT, false, format!("the script ignores {KNOB}: with {size}, {steps} steps have exactly the same losses"))
}

/// Reports that the check was not made.
pub fn skipped(why: &str) -> Check {
    unknown(WHAT, why)
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::cli::trial::trace::Trace;

    #[test]
    fn equal_losses_of_another_batch_size_show_that_it_is_ignored() {
        let trace = |losses: &[f64]| {
            let mut trace = Trace::default();
            for (loss, step) in losses.iter().zip(1..) {
                trace.at(step).loss = Some(*loss);
            }
            trace
        };
        let straight = trace(&[2.5, 2.0, 1.5, 1.25]);
        assert_eq!(judge(&straight, &trace(&[2.5, 2.0, 1.5]), 4).holds, Some(false));
        assert_eq!(judge(&straight, &trace(&[2.5, 2.25]), 4).holds, Some(true));
        assert_eq!(judge(&straight, &trace(&[2.5, 2.0]), 4).holds, None, "too few");
        assert_eq!(judge(&trace(&[1.0; 5]), &trace(&[1.0; 5]), 4).holds, None, "nothing changes at all");
    }
}
