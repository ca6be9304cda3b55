//! The progress of a training in its log: how far it got, whether it went on after a failure, and whether its loss diverged.

use super::losses::Losses;
use crate::format::count;
use crate::log_metrics::{OutputReader, Reading};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;

/// Distinct steps after a failure that show that the training went on. Other ranks may still print the one they are in.
const WENT_ON: usize = 2;
/// The same after a failure that was only announced, unless the training was started again.
const WENT_ON_LONG: usize = 64;
/// Lines around a step in which a loss without one belongs to it.
const NEARBY: u64 = 16;
/// How far a step may fall behind the newest one before it belongs to another start: ranks print at different times.
const BEHIND: u64 = 2;
/// Lines and drawings of bars that are all read. Of later ones, only the last, those after a failure, and one block in each
/// period or line are.
const WHOLE: u64 = 100_000;
const PERIOD: u64 = 1024;
const BLOCK: usize = 64;

/// How far a training got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LoggedProgress {
    /// The newest step, or the count of the newest bar.
    pub count: u64,
    /// The count at which the training or the bar ends, if the log names it.
    pub total: Option<u64>,
    /// The line that told it last.
    pub line: u64,
    /// Whether a bar told it, which may be one of several.
    pub is_bar: bool,
}

impl LoggedProgress {
    /// Reports whether the training, or the newest bar, reached its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.total == Some(self.count)
    }
}

impl fmt::Display for LoggedProgress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line;
        let at = match self.total.filter(|total| *total >= self.count) {
            Some(total) => format!("{} of {}", count(self.count), count(total)),
            None => count(self.count),
        };
        match (self.is_bar, self.is_complete()) {
            (true, true) => write!(formatter, "The last progress bar reached its end, {at} (line {line})."),
            (true, false) => write!(formatter, "The log stops in a progress bar at {at} (line {line})."),
            (false, true) => write!(formatter, "The training reached its last step, {at} (line {line})."),
            (false, false) => write!(formatter, "The log stops at step {at} (line {line})."),
        }
    }
}

/// Reads the progress of a log line by line.
#[derive(Debug)]
pub struct ProgressReader {
    output: OutputReader,
    readings: Vec<Reading>,
    newest: Option<LoggedProgress>,
    /// The step that was named last: a count that starts over names none.
    named: Option<u64>,
    bar: Option<LoggedProgress>,
    /// The newest advances to another step, oldest first: the line of each, and the number of its drawing.
    advances: VecDeque<(u64, u64)>,
    /// The line at which the newest start began to count.
    restart: u64,
    /// The epoch and the loss that were told last without a step.
    unplaced: Option<(Option<f64>, f64)>,
    /// The line of the newest failure.
    failure: u64,
    /// Reads what follows the newest end of a process: another start repeats steps that `output` knows. With the step that it
    /// named last.
    since: Option<(OutputReader, Option<u64>)>,
    /// Lines so far, each drawing of a bar among them.
    drawings: u64,
    /// The newest lines that were not read, with their numbers.
    skipped: VecDeque<(u64, Vec<u8>)>,
    losses: Losses,
}

impl Default for ProgressReader {
    fn default() -> Self {
        Self {
            output: OutputReader::new(&[]),
            readings: Vec::new(),
            newest: None,
            named: None,
            bar: None,
            advances: VecDeque::new(),
            restart: 0,
            unplaced: None,
            failure: 0,
            since: None,
            drawings: 0,
            skipped: VecDeque::new(),
            losses: Losses::default(),
        }
    }
}

impl ProgressReader {
    /// Reads a line without its end, and its number.
    pub fn push(&mut self, line: &[u8], number: u64) {
        let awaits_steps = self.failure > 0 && !self.went_on_after(self.failure);
        let line = if self.drawings > WHOLE && !awaits_steps { newest_drawings(line) } else { line };
        if number > WHOLE && !awaits_steps && number % PERIOD >= BLOCK as u64 {
            self.skipped.truncate(BLOCK - 1);
            self.skipped.push_front((number, line.to_vec()));
        } else {
            self.read_skipped();
            self.read(line, number);
        }
    }

    /// Notes that a line tells of a failure, and whether a process may have ended by it.
    pub fn note_failure(&mut self, line: u64, is_end: bool) {
        self.failure = line;
        // One that has seen no step yet knows nothing that would hide another start.
        if is_end && self.since.as_ref().is_none_or(|(_, named)| named.is_some()) {
            self.since = Some((OutputReader::new(&[]), None));
        }
    }

    fn read_skipped(&mut self) {
        while let Some((number, line)) = self.skipped.pop_back() {
            self.read(&line, number);
        }
    }

    fn read(&mut self, line: &[u8], number: u64) {
        let mut rest = line;
        while let Some(end) = memchr::memchr(b'\r', rest) {
            let (drawing, after) = rest.split_at(end + 1);
            self.read_drawing(drawing, b"", number);
            rest = after;
        }
        self.read_drawing(rest, b"\n", number);
    }

    fn read_drawing(&mut self, text: &[u8], end: &[u8], number: u64) {
        self.drawings += 1;
        self.output.push(text, &mut self.readings);
        self.output.push(end, &mut self.readings);
        self.take_readings(number);
        let step = self.output.step().filter(|step| self.named != Some(*step));
        if let Some(step) = step {
            self.named = Some(step);
            self.take_step(step, number);
        }
        let bar = self.output.take_bar();
        let bar = bar.map(|(count, total)| LoggedProgress { count, total: Some(total), line: number, is_bar: true });
        let known = bar.zip(self.bar).filter(|(bar, last)| bar.total == last.total);
        // The bar of another rank.
        let is_behind = known
            .is_some_and(|(bar, last)| bar.count > 0 && bar.count < last.count && bar.count + BEHIND >= last.count);
        if let Some((bar, last)) = known.filter(|_| !is_behind) {
            // The bar of another epoch begins.
            if last.is_complete() && bar.count < last.count {
                self.advance(number);
            } else {
                self.count_from(last.count, bar.count, number);
            }
        }
        self.bar = bar.filter(|_| !is_behind).or(self.bar);
        self.read_since_the_end(text, end, number);
    }

    /// Takes a count that comes after another one of the same kind.
    fn count_from(&mut self, last: u64, count: u64, line: u64) {
        if count < last {
            self.restart = line;
        }
        if count != last {
            self.advance(line);
        }
    }

    fn read_since_the_end(&mut self, text: &[u8], end: &[u8], number: u64) {
        let is_over = self.went_on_after(self.failure) || number > self.failure.saturating_add(WHOLE);
        let Some((output, named)) = self.since.as_mut().filter(|_| !is_over) else { return };
        output.push(text, &mut self.readings);
        output.push(end, &mut self.readings);
        self.readings.clear();
        let step = output.step().filter(|step| *named != Some(*step));
        if let Some(step) = step {
            *named = Some(step);
            self.take_step(step, number);
        }
    }

    fn take_step(&mut self, step: u64, line: u64) {
        let newest = self.newest.map(|newest| newest.count);
        if newest.is_some_and(|newest| step <= newest && step.saturating_add(BEHIND) >= newest) {
            return;
        }
        match newest {
            Some(newest) => self.count_from(newest, step, line),
            None => self.advance(line),
        }
        let total = self.newest.and_then(|newest| newest.total);
        self.newest = Some(LoggedProgress { count: step, total, line, is_bar: false });
    }

    fn advance(&mut self, line: u64) {
        let advance = (line, self.drawings);
        if self.advances.back() == Some(&advance) {
            return;
        }
        if self.advances.len() == WENT_ON_LONG {
            self.advances.pop_front();
        }
        self.advances.push_back(advance);
    }

    /// Takes what was told without a step, where none is told nearby: another epoch or loss is an advance.
    fn take_unplaced(&mut self, reading: &Reading, line: u64) {
        // `train_loss` is the mean of a summary.
        let is_loss = |(name, _): &&(String, f64)| name.contains("loss") && name != "train_loss";
        let Some((_, loss)) = reading.values.iter().find(is_loss).filter(|(_, loss)| loss.is_finite()) else { return };
        let told = (reading.epoch, *loss);
        let last = self.unplaced.replace(told);
        if told.0.zip(last.and_then(|last| last.0)).is_some_and(|(epoch, last)| epoch < last) {
            self.restart = line;
        }
        if last != Some(told) && self.newest.is_none_or(|newest| newest.line + NEARBY < line) {
            self.advance(line);
        }
    }

    fn take_readings(&mut self, line: u64) {
        for reading in std::mem::take(&mut self.readings) {
            match reading.step.or(reading.count_started_over) {
                Some(step) => self.take_step(step, line),
                None => self.take_unplaced(&reading, line),
            }
            if let Some(newest) = &mut self.newest {
                newest.total = reading.total_steps.or(newest.total);
            }
            if let Some(loss) = reading.value("loss") {
                self.losses.push(reading.step, loss);
            }
        }
    }

    /// Reports whether it has read a step or a loss.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.advances.is_empty()
    }

    /// Reports whether the training went on after a line.
    #[must_use]
    pub fn went_on_after(&self, line: u64) -> bool {
        self.advanced_after(line, WENT_ON)
    }

    /// Reports whether the training went on long after a line that announced its end, or was started again.
    #[must_use]
    pub fn went_on_long_after(&self, line: u64) -> bool {
        self.advanced_after(line, WENT_ON_LONG) || self.restart > line && self.advanced_after(line, WENT_ON)
    }

    fn advanced_after(&self, line: u64, count: usize) -> bool {
        self.advances.iter().nth_back(count - 1).is_some_and(|(advance, _)| *advance > line)
    }

    /// Reports whether the training, or a bar, reached its end after a line.
    #[must_use]
    pub fn finished_after(&self, line: u64) -> bool {
        self.bar.iter().chain(&self.newest).any(|progress| progress.is_complete() && progress.line > line)
    }

    /// Reports whether the training took its last step before a line.
    #[must_use]
    pub fn finished_before(&self, line: u64) -> bool {
        self.newest.is_some_and(|newest| newest.is_complete() && newest.line < line)
    }

    /// Reads the end of the log. Returns how far it got, and how its loss diverged.
    pub fn finish(&mut self) -> (Option<LoggedProgress>, Option<String>) {
        self.read_skipped();
        self.output.flush(&mut self.readings);
        self.take_readings(self.newest.map_or(0, |newest| newest.line));
        let bar = self.bar.filter(|bar| self.newest.is_none_or(|step| step.total.is_none() && bar.line >= step.line));
        (bar.or(self.newest), self.losses.describe_divergence())
    }
}

/// Returns the end of a line: the newest drawings of a bar.
fn newest_drawings(line: &[u8]) -> &[u8] {
    memchr::memrchr_iter(b'\r', line).nth(BLOCK).map_or(line, |at| &line[at..])
}

#[cfg(test)]
mod tests {
    use super::ProgressReader;

    fn read(log: &str) -> ProgressReader {
        let mut reader = ProgressReader::default();
        for (line, number) in log.split('\n').zip(1..) {
            reader.push(line.as_bytes(), number);
        }
        reader
    }

    #[test]
    fn a_log_tells_how_far_the_training_got() {
        let told = |log: &str| read(log).finish().0.map(|progress| progress.to_string());
        let bar = |count: u64| format!("\r 1%|█  | {count}/900 [00:01<00:10, 3.1it/s, loss=2.0]");
        let cut = (425..=430).map(bar).collect::<String>();
        assert_eq!(told(&format!("start\n{cut}")).unwrap(), "The log stops in a progress bar at 430 of 900 (line 2).");
        let whole = (1..=900).map(bar).collect::<String>();
        assert_eq!(
            told(&format!("{whole}\ntraining finished")).unwrap(),
            "The last progress bar reached its end, 900 of 900 (line 1)."
        );
        assert_eq!(told("step 1 loss 2.0\nstep 2 loss 1.9\nbye").unwrap(), "The log stops at step 2 (line 2).");
        assert_eq!(told("step 2/2 loss 1.9").unwrap(), "The training reached its last step, 2 of 2 (line 1).");
        assert_eq!(told("nothing"), None);
    }

    #[test]
    fn the_end_and_what_follows_a_failure_are_read_in_a_log_of_any_length() {
        let mut reader = ProgressReader::default();
        let push =
            |reader: &mut ProgressReader, step: u64| reader.push(format!("step {step} loss 1.0").as_bytes(), step);
        (1..=300_500).for_each(|step| push(&mut reader, step));
        reader.note_failure(300_500, false);
        (300_500..=300_501).for_each(|step| push(&mut reader, step));
        assert!(!reader.went_on_after(300_500));
        (300_502..=400_700).for_each(|step| push(&mut reader, step));
        assert!(reader.went_on_after(300_500));
        assert_eq!(reader.finish().0.map(|progress| progress.count), Some(400_700));
    }

    #[test]
    fn a_bar_goes_on_within_its_line() {
        let bar = |count: u64| format!("\r{count:3}%|█  | {count}/100 [00:01<00:10, 3.1it/s, loss=2.0]");
        let bars = |from: u64, to: u64| (from..=to).map(bar).collect::<String>();
        let failed = 2;
        let after = |text: &str| read(&format!("{}\nRuntimeError\n{text}\n", bars(1, 40)));
        assert!(!after("").went_on_after(failed));
        assert!(!after(&bars(41, 41)).went_on_after(failed));
        assert!(after(&bars(41, 45)).went_on_after(failed));
        assert!(!after(&bars(41, 45)).went_on_long_after(failed));
        assert!(after(&bars(20, 25)).went_on_long_after(failed), "started again");
        assert!(!after(&(bars(41, 100) + &bars(1, 3))).went_on_long_after(failed), "the next epoch");
    }

    #[test]
    fn ranks_that_finish_their_step_do_not_go_on_and_another_start_does() {
        let mut reader = read("step 20 loss 1.0\n");
        let failed = 2;
        for number in 3..9 {
            reader.push(format!("step {} loss 1.0", 20 + number % 2).as_bytes(), number);
        }
        assert!(!reader.went_on_after(failed));
        for step in 0..2_u64 {
            reader.push(format!("step {step} loss 1.0").as_bytes(), 9 + step);
        }
        assert!(reader.went_on_after(failed));
    }
}
