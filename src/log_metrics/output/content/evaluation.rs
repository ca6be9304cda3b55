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
