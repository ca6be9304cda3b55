//! Lines that count samples. The first one waits for the second, which shows how many samples a step has.

use super::Content;
use crate::log_metrics::Reading;
use crate::log_metrics::clock::{Epoch, Extent};
use crate::log_metrics::line::{Line, LineForm};
use crate::log_metrics::samples::Count;

impl Content {
    /// Gives a line that counts samples its step; returns none if it waits. Any other line stays as it is.
    pub(super) fn count_samples(&mut self, line: Line, readings: &mut Vec<Reading>) -> Option<Line> {
        let line = self.in_announced_epoch(line);
        let Some(count) = count_of(&line) else {
            self.end_samples(readings);
            return Some(line);
        };
        if !self.samples.learn(count) {
            self.end_samples(readings);
            self.first_of_samples = Some((line, self.now));
            return None;
        }
        if let Some((first, printed)) = self.first_of_samples.take()
            && let Some(step) = first.step
        {
            let first = self.in_steps(first);
            let before = std::mem::replace(&mut self.printed, printed.filter(|_| printed != self.now));
            self.take_counted(first.step.unwrap_or(step), first, readings);
            self.printed = before;
        }
        Some(self.in_steps(line))
    }

    /// Emits the line that waits: no other one of its epoch has followed, and its step is unknown.
    pub(in crate::log_metrics::output) fn end_samples(&mut self, readings: &mut Vec<Reading>) {
        if let Some((line, _)) = self.first_of_samples.take() {
            self.emit(line, None, readings);
        }
    }

    /// Gives a line without an epoch the one that a line above announces. Without any, its count is that of something else.
    fn in_announced_epoch(&self, line: Line) -> Line {
        match self.heading {
            _ if line.form != LineForm::OfSamples || line.epoch.is_some() => line,
            Some(epoch) => Line { epoch: Some(epoch), extent: Extent::Epoch, ..line },
            None => Line { step: None, out_of: None, form: LineForm::Plain, ..line },
        }
    }

    fn in_steps(&self, line: Line) -> Line {
        match count_of(&line).and_then(|count| self.samples.place(count)) {
            Some((step, steps)) => Line { step: Some(step), out_of: Some(steps), ..line },
            None => line,
        }
    }
}

fn count_of(line: &Line) -> Option<Count> {
    let is_of_samples = line.form == LineForm::OfSamples && !line.is_evaluation;
    let epoch = line.epoch.and_then(Epoch::index).filter(|_| is_of_samples)?;
    Some(Count { epoch, samples: line.step?, out_of: line.out_of? })
}
