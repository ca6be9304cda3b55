//! Marks of the lines that were read.

use super::Content;
use crate::log_metrics::clock::{Epoch, Placed};
use crate::log_metrics::line::Line;
use crate::log_metrics::output::Mark;

/// Marks that wait to be taken; more are those of a reader that nobody asks for them.
const MAX_MARKS: usize = 4096;

impl Content {
    pub(super) fn mark(&mut self, line: &Line, placed: Option<Placed>) {
        self.epoch = line.epoch.and_then(Epoch::index).or(self.epoch);
        self.add_mark(placed.map(|placed| Mark::Step(placed.step)));
        if line.has_evaluation() {
            let step = placed.map(|placed| placed.step).or_else(|| self.joiner.step()).unwrap_or(0);
            let mark = Mark::Evaluation { step, epoch: self.epoch, names_step: line.step.is_some() };
            self.marks.push((mark, self.printed));
        }
    }

    pub(super) fn add_mark(&mut self, mark: Option<Mark>) {
        if self.marks.len() >= MAX_MARKS {
            self.marks.clear();
        }
        self.marks.extend(mark.map(|mark| (mark, self.printed)));
    }
}
