//! Evaluations that take several lines: those that show how far one is, and its summary.

use super::Content;
use crate::log_metrics::Reading;
use crate::log_metrics::clock::Placed;
use crate::log_metrics::line::{Line, LineForm};
use crate::log_metrics::names;
use std::time::Duration;

/// An evaluation that is under way.
#[derive(Debug)]
pub(super) struct Evaluating {
    line: Line,
    /// The step that it measures.
    placed: Option<Placed>,
    /// When its newest line was printed.
    printed: Option<Duration>,
}

impl Content {
    /// Joins the lines of an evaluation: those that show how far it is, and its summary. Returns any other line.
    pub(super) fn join_evaluation(&mut self, line: Line, readings: &mut Vec<Reading>) -> Option<Line> {
        let is_evaluation = line.is_evaluation || !line.has_other_than_evaluation();
        let known = self.evaluating.as_ref().map(|known| known.line.progress);
        // `step:125/1750 val_loss:4.5`: the training counts.
        let counts_training = line.names_step && !line.is_evaluation;
        if is_evaluation && line.progress.is_some() && !counts_training {
            if known.is_some_and(|known| line.progress < known) {
                self.end_evaluation(readings);
            }
            let placed =
                line.step.and_then(|count| self.place_evaluation(count, &line)).or_else(|| self.newest_in_lines());
            let step = line.step.filter(|_| placed.is_some());
            self.evaluating = Some(Evaluating { line: Line { step, ..line }, placed, printed: self.now });
            return None;
        }
        match &mut self.evaluating {
            Some(known) if is_evaluation && line.step.is_none() => {
                known.line.merge(line);
                self.end_evaluation(readings);
                None
            }
            _ => {
                self.end_evaluation(readings);
                Some(line)
            }
        }
    }

    /// Notes whether a line without values announces an evaluation: `Test Error:`.
    pub(super) fn note_announcement(&mut self, line: &Line, text: &str) {
        let says_nothing = line.values.is_empty() && line.step.is_none() && line.epoch.is_none();
        let announces = line.is_evaluation && says_nothing && text.trim_end().ends_with(':');
        self.announces_evaluation = announces.then_some(line.is_test);
    }

    /// Reads a line below one that announces an evaluation as its result, and leaves out a count of parts of a step.
    pub(super) fn as_announced(&mut self, mut line: Line) -> Line {
        self.counts_parts |= line.form == LineForm::OfParts;
        if self.counts_parts && line.is_finer && line.form == LineForm::Plain {
            (line.step, line.out_of) = (None, None);
        }
        match self.announces_evaluation.take() {
            Some(is_test) if line.step.is_none() => Line { is_test, ..line.into_evaluation() },
            _ => line,
        }
    }

    /// Emits the evaluation that was under way.
    pub(in crate::log_metrics::output) fn end_evaluation(&mut self, readings: &mut Vec<Reading>) {
        let Some(Evaluating { line, placed, printed }) = self.evaluating.take() else { return };
        let before = std::mem::replace(&mut self.printed, printed.filter(|_| printed != self.now));
        self.emit(line, placed, readings);
        self.printed = before;
    }

    fn place_evaluation(&mut self, count: u64, line: &Line) -> Option<Placed> {
        if self.progress.is_chosen() || self.own_steps {
            return None;
        }
        self.lines.place_evaluation(&line.position(count))
    }

    /// Emits the summary of an epoch. What the training measured in it, such as a mean loss, is not that of the step.
    pub(super) fn emit_summary(&mut self, mut line: Line, placed: Option<Placed>, readings: &mut Vec<Reading>) {
        line.values.retain(|(name, _)| names::is_of_evaluation(name) || !self.joiner.knows(name));
        line.epoch = None;
        self.emit(line, placed, readings);
    }
}

#[cfg(test)]
mod tests {
    use crate::log_metrics::OutputReader;

    /// Returns the steps and values of one metric.
    fn read(output: &str, name: &str) -> Vec<(Option<u64>, f64)> {
        let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
        reader.push(output.as_bytes(), &mut readings);
        reader.finish(&mut readings);
        readings.iter().filter_map(|reading| Some((reading.step, reading.value(name)?))).collect()
    }

    #[test]
    fn a_count_of_micro_batches_alone_is_no_step() {
        let output = "Epoch 1 | iter 4 step 2 | loss train: 2.5, val: n/a\nEpoch 1 | iter 8 step 4 | loss train: 2.25, val: n/a\n\
                      iter 8: val loss 1.75, val time: 30.5 ms\nEpoch 1 | iter 12 step 6 | loss train: 2.0, val: n/a\n";
        assert_eq!(read(output, "eval_loss"), [(Some(4), 1.75)]);
        assert_eq!(read(output, "loss"), [(Some(2), 2.5), (Some(4), 2.25), (Some(6), 2.0)]);
    }

    #[test]
    fn a_line_above_may_announce_an_evaluation() {
        let output = "step 10 loss 2.5\nValidation results:\n  loss: 1.5, accuracy: 0.5\nstep 20 loss 2.0\nTesting:\nstep 30 loss 1.75\n";
        assert_eq!(read(output, "eval_loss"), [(Some(10), 1.5)]);
        assert_eq!(read(output, "loss"), [(Some(10), 2.5), (Some(20), 2.0), (Some(30), 1.75)]);
    }

    #[test]
    fn the_count_of_a_test_below_the_bars_of_keras_is_none_of_the_training() {
        let output =
            "Epoch 1/1\n6/6 [==============================] - 5s 2ms/step - loss: 2.5\n2/2 - 1s - loss: 1.5\n";
        assert_eq!((read(output, "loss"), read(output, "eval_loss")), (vec![(Some(6), 2.5)], vec![(Some(6), 1.5)]));
    }
}
