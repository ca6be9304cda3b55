//! Joins what is said about one step: a step is passed on when the next one begins, and the evaluation at that step
//! after it.

use super::Reading;
use super::names::{self, Names};

/// The step that is still being reported.
#[derive(Debug, Default)]
pub struct Joiner {
    open: Option<Reading>,
    /// The step last passed on.
    last: Option<Reading>,
    names: Names,
}

impl Joiner {
    /// Takes a reading; passes on the step before, or the reading itself if it names no step.
    pub fn push(&mut self, mut reading: Reading, readings: &mut Vec<Reading>) {
        self.names.admit(&mut reading.values);
        if reading.is_empty() {
            return;
        }
        if reading.step.is_none() {
            if reading.count_started_over.is_some() {
                self.flush(readings);
            }
            // The step before it may still be open, such as the last one of a bar.
            pass_on(reading, self.step(), readings);
            return;
        }
        match &mut self.open {
            Some(open) if open.step == reading.step => open.merge(reading),
            _ => {
                self.flush(readings);
                self.open = Some(reading);
            }
        }
    }

    /// Returns the step that is being reported.
    pub fn step(&self) -> Option<u64> {
        self.open.as_ref().or(self.last.as_ref()).and_then(|reading| reading.step)
    }

    /// Reports whether the step that is being reported has this value.
    pub fn knows(&self, name: &str) -> bool {
        self.open.as_ref().or(self.last.as_ref()).is_some_and(|reading| reading.value(name).is_some())
    }

    /// Forgets the open step.
    pub fn discard(&mut self) {
        self.open = None;
    }

    /// Passes on the open step, unless it says nothing new about the step passed on last.
    pub fn flush(&mut self, readings: &mut Vec<Reading>) {
        let Some(open) = self.open.take() else { return };
        if self.last.as_ref().is_some_and(|last| adds_nothing(&open, last)) {
            return;
        }
        pass_on(open.clone(), open.step, readings);
        match &mut self.last {
            Some(last) if last.step == open.step => last.merge(open),
            last => *last = Some(open),
        }
    }
}

/// Adds a reading; values of an evaluation follow in a reading of their own, at the step that was evaluated.
fn pass_on(reading: Reading, evaluated: Option<u64>, readings: &mut Vec<Reading>) {
    let Reading { values, .. } = reading;
    let of_evaluation = |(name, _): &(String, f64)| names::is_of_evaluation(name);
    let (evaluation, training): (Vec<_>, Vec<_>) = values.into_iter().partition(of_evaluation);
    let part = |step, values| Reading { step, values, ..reading };
    if !training.is_empty() || evaluation.is_empty() {
        readings.push(part(reading.step, training));
    }
    if !evaluation.is_empty() {
        readings.push(part(evaluated, evaluation));
    }
}

fn adds_nothing(open: &Reading, last: &Reading) -> bool {
    let known = |(name, value): &(String, f64)| last.value(name).is_some_and(|seen| seen.to_bits() == value.to_bits());
    open.step == last.step
        && open.total_steps.is_none_or(|total| last.total_steps == Some(total))
        && open.values.iter().all(known)
}

#[cfg(test)]
mod tests {
    use super::{Joiner, Reading};

    fn reading(step: Option<u64>, values: &[(&str, f64)]) -> Reading {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Reading { step, values, ..Reading::default() }
    }

    #[test]
    fn one_step_is_one_reading() {
        let (mut joiner, mut out) = (Joiner::default(), Vec::new());
        for part in [
            reading(Some(1), &[]),
            reading(Some(1), &[("loss", 2.0)]),
            reading(None, &[("eval_loss", 1.0)]),
            reading(Some(1), &[("loss", 3.0), ("eval_f1", 0.5), ("lr", 0.1)]),
            reading(Some(2), &[]),
        ] {
            joiner.push(part, &mut out);
        }
        let first = reading(Some(1), &[("loss", 3.0), ("lr", 0.1)]);
        let evaluation = reading(Some(1), &[("eval_f1", 0.5)]);
        assert_eq!(out, [reading(Some(1), &[("eval_loss", 1.0)]), first, evaluation]);
        joiner.flush(&mut out);
        joiner.flush(&mut out);
        assert_eq!(out[3..], [reading(Some(2), &[])]);
        // The same step again, with nothing new and with something new.
        joiner.push(reading(Some(2), &[]), &mut out);
        joiner.flush(&mut out);
        assert_eq!(out.len(), 4);
        joiner.push(reading(Some(2), &[("loss", 1.0)]), &mut out);
        joiner.flush(&mut out);
        assert_eq!(out[4..], [reading(Some(2), &[("loss", 1.0)])]);
    }
}
