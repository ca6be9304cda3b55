//! Reads the segments of one stream: bars, rows of tables, and lines.

mod evaluation;
mod marks;
mod samples;

use super::Mark;
use crate::log_metrics::Reading;
use crate::log_metrics::bar::{Bar, Maker};
use crate::log_metrics::boxes::{self, Boxes};
use crate::log_metrics::clock::{Epoch, Extent, Placed};
use crate::log_metrics::joiner::Joiner;
use crate::log_metrics::line::{Line, LineForm};
use crate::log_metrics::line_clock::{LineClock, LineStep};
use crate::log_metrics::pattern::Pattern;
use crate::log_metrics::prefix;
use crate::log_metrics::progress::ProgressBars;
use crate::log_metrics::ranks::{Ranked, Ranks};
use crate::log_metrics::samples::SampleSteps;
use crate::log_metrics::screen::End;
use crate::log_metrics::shares::Shares;
use crate::log_metrics::skips::Skip;
use crate::log_metrics::table::{Part, Table};
use crate::log_metrics::test_set::TestSet;
use crate::log_metrics::unread::UnreadLines;
use evaluation::Evaluating;
use std::time::Duration;

/// Lines without a step that wait for the bar below them.
const MAX_HELD: usize = 16;
/// The segments of one stream.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Content {
    patterns: Vec<Pattern>,
    /// A pattern names the step: nothing else does.
    own_steps: bool,
    /// The step that a pattern named last.
    own_step: Option<u64>,
    pub(super) progress: ProgressBars,
    /// The counts of the newest bar, of any kind.
    pub(super) bar: Option<(u64, u64)>,
    /// Steps of lines that name them.
    pub(super) lines: LineClock,
    /// Lines whose steps are doubted.
    doubted: Vec<Doubted>,
    has_line_steps: bool,
    ranks: Ranks,
    samples: SampleSteps,
    /// The first line that counts samples, and its time: the next one shows its step.
    first_of_samples: Option<(Line, Option<Duration>)>,
    /// The epoch that a line of its own announced, if the first one came before all steps.
    announced: Option<Epoch>,
    /// A bar was just cleared to write a line above it.
    is_cleared: bool,
    held: Vec<Line>,
    /// The newest header of a table.
    table: Option<Table>,
    boxes: Boxes,
    evaluating: Option<Evaluating>,
    /// The line above ends in a colon and announces an evaluation; whether it is that of the test set.
    announces_evaluation: Option<bool>,
    /// A line named parts of a step beside it, so a count of parts alone is none of steps.
    counts_parts: bool,
    /// The epoch that a line of its own announced last, until a line ends it.
    heading: Option<Epoch>,
    /// The step, and its end, that a line of its own named last.
    step_heading: Option<(u64, Option<u64>)>,
    pub(super) joiner: Joiner,
    /// The lines before the first step.
    pub(super) unread: UnreadLines,
    shares: Shares,
    test_set: TestSet,
    /// The epoch that was named last.
    epoch: Option<u64>,
    pub(super) marks: Vec<(Mark, Option<Duration>)>,
    /// The time of the bytes that are read, if there is a clock.
    pub(super) now: Option<Duration>,
    /// When the line that is emitted was printed, if it was held back.
    printed: Option<Duration>,
}

/// A line that is held back, and the time at which it was printed.
#[derive(Debug)]
struct Doubted {
    line: Line,
    placed: Placed,
    printed: Option<Duration>,
}

impl Content {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        Self {
            patterns: patterns.to_vec(),
            own_steps: patterns.iter().any(Pattern::names_step),
            own_step: None,
            progress: ProgressBars::default(),
            bar: None,
            lines: LineClock::default(),
            doubted: Vec::new(),
            has_line_steps: false,
            ranks: Ranks::default(),
            samples: SampleSteps::default(),
            first_of_samples: None,
            announced: None,
            is_cleared: false,
            held: Vec::new(),
            table: None,
            boxes: Boxes::default(),
            evaluating: None,
            announces_evaluation: None,
            counts_parts: false,
            heading: None,
            step_heading: None,
            joiner: Joiner::default(),
            unread: UnreadLines::default(),
            shares: Shares::default(),
            test_set: TestSet::default(),
            epoch: None,
            marks: Vec::new(),
            now: None,
            printed: None,
        }
    }

    pub(super) fn take(&mut self, text: &str, end: End, readings: &mut Vec<Reading>) {
        if text.bytes().all(|byte| byte == b' ') {
            self.is_cleared = true;
            return;
        }
        let was_cleared = std::mem::take(&mut self.is_cleared);
        if end == End::Line && self.joiner.step().is_none() {
            self.unread.take(text);
        }
        if let Some(skip) = Skip::read(text) {
            readings.push(Reading { skip: Some(skip), ..Reading::default() });
        }
        if let Some(line) = self.patterns.iter().find_map(|pattern| pattern.read(text)) {
            self.take_own(line, readings);
            return;
        }
        match self.ranks.read(text) {
            Ranked::Counts(text) => self.take_text(text, end, was_cleared, readings),
            Ranked::Other(values) => self.emit_unplaced(values, readings),
            Ranked::TakesOver(lines) => {
                for text in lines {
                    self.take_text(&text, end, was_cleared, readings);
                }
            }
        }
    }

    /// Takes the text behind the rank of a process.
    fn take_text(&mut self, text: &str, end: End, was_cleared: bool, readings: &mut Vec<Reading>) {
        let text = prefix::behind_stamps(text);
        match self.boxes.take(text) {
            boxes::Part::Row => return,
            boxes::Part::End(pairs) => self.take_report(Line::read(&pairs), was_cleared, readings),
            boxes::Part::Other => {}
        }
        match Table::read(text, self.table.as_ref()) {
            Some(Part::Header(table)) => self.table = Some(table),
            Some(Part::Row(row)) => self.take_segment(&row, Some(Maker::Table), end, was_cleared, readings),
            Some(Part::Detail) => {}
            None => self.take_segment(text, None, end, was_cleared, readings),
        }
    }

    /// Takes a bar or a line. `maker`: that of the bar, where its text does not tell.
    fn take_segment(
        &mut self,
        text: &str,
        maker: Option<Maker>,
        end: End,
        was_cleared: bool,
        readings: &mut Vec<Reading>,
    ) {
        if let Some(mut bar) = Bar::read(text) {
            bar.maker = match (bar.maker, maker) {
                (Maker::Rich, Some(maker)) => maker,
                (Maker::Tqdm, Some(_)) => Maker::TqdmOfTable,
                (own, _) => own,
            };
            self.bar = Some((bar.count, bar.out_of)).filter(|_| bar.is_complete).or(self.bar);
            if !self.own_steps && !self.has_line_steps {
                self.take_bar(&bar, end, readings);
            }
            if !bar.behind.is_empty() {
                self.take_line(Line::read(bar.behind), false, readings);
            }
        } else {
            let line = Line::read_whole(text);
            if !line.reports_metrics() {
                self.note_announcement(&line, text);
            }
            // A row of a table reports metrics, whatever their names.
            if maker == Some(Maker::Table) {
                self.take_report(line, was_cleared, readings);
            } else {
                self.take_line(line, was_cleared, readings);
            }
        }
    }

    /// Takes the match of a pattern; without a step it belongs to the step that a pattern named last.
    fn take_own(&mut self, line: Line, readings: &mut Vec<Reading>) {
        self.own_step = line.step.or(self.own_step);
        let placed = self.own_step.map(|step| Placed { step, total_steps: line.total_steps });
        self.emit(line, placed, readings);
    }

    fn take_bar(&mut self, bar: &Bar<'_>, end: End, readings: &mut Vec<Reading>) {
        let frames_loss = self.held.iter().any(Line::has_training_loss);
        if bar.maker == Maker::Keras && bar.count == bar.out_of {
            // A count that follows is that of a test.
            self.heading = None;
        }
        let Some(redraw) = self.progress.draw(bar, end == End::Up, frames_loss) else { return };
        for line in std::mem::take(&mut self.held) {
            self.emit(line, redraw.placed, readings);
        }
        self.emit_unplaced(redraw.unplaced, readings);
        // Nothing of this epoch is done: the step is the last one of the epoch before.
        let is_before = bar.count == 0 && redraw.placed.is_some_and(|placed| placed.step > 0);
        let line = Line { epoch: redraw.epoch.filter(|_| !is_before), values: redraw.values, ..Line::default() };
        self.emit(line, redraw.placed, readings);
    }

    fn take_line(&mut self, line: Line, was_cleared: bool, readings: &mut Vec<Reading>) {
        if !line.reports_metrics() {
            if line.progress.is_none() || !line.is_evaluation {
                self.end_evaluation(readings);
            }
            if line.total_steps.is_some() {
                self.emit(Line { values: Vec::new(), step: None, ..line }, None, readings);
            } else if let Some((step, out_of)) = line.heads_step() {
                self.step_heading = Some((step, out_of));
            } else if let Some(epoch) = line.epoch.filter(|_| line.heads_epoch()) {
                self.progress.announce_epoch(epoch);
                self.heading = Some(epoch);
                self.epoch = epoch.index();
                self.add_mark(self.epoch.map(Mark::Epoch));
                // An epoch that is named after its steps says nothing about those that follow.
                self.announced = Some(epoch).filter(|_| self.announced.is_some() || self.lines.is_new());
            }
            return;
        }
        self.take_report(line, was_cleared, readings);
    }

    /// Takes a line that reports metrics.
    fn take_report(&mut self, line: Line, was_cleared: bool, readings: &mut Vec<Reading>) {
        let line = self.as_announced(line);
        let Some(line) = self.join_evaluation(line, readings) else { return };
        let Some(mut line) = self.count_samples(line, readings) else { return };
        if line.form == LineForm::EndsEpoch {
            // Once the epoch has ended, the data is evaluated.
            line = match self.heading.take() {
                Some(epoch) => Line { epoch: Some(epoch), extent: Extent::Epoch, ..line },
                None => Line { is_test: true, ..line.into_evaluation() },
            };
        }
        let is_training = !line.is_evaluation && line.has_other_than_evaluation() && line.epoch.is_none();
        if let Some((step, out_of)) = self.step_heading.filter(|_| line.step.is_none() && is_training) {
            (line.step, line.out_of) = (Some(step), out_of);
        } else if line.step.is_some() {
            self.step_heading = None;
        }
        match line.step {
            Some(count) if !self.own_steps => self.take_counted(count, line, readings),
            // The bar is redrawn at once, with the step that the line belongs to.
            None if was_cleared && !self.own_steps && !self.has_line_steps => {
                self.held.push(line);
                if self.held.len() > MAX_HELD {
                    let oldest = self.held.remove(0);
                    self.emit(oldest, None, readings);
                }
            }
            // An evaluation belongs to the step that was printed last.
            _ if line.is_evaluation || !line.has_other_than_evaluation() => {
                self.emit(line, self.newest_in_lines(), readings);
            }
            None if self.has_line_steps && line.has_evaluation() => {
                let placed = self.newest_in_lines();
                self.emit_summary(line, placed, readings);
            }
            _ => self.emit(line, None, readings),
        }
    }

    /// Returns the step of the newest line, where lines name the steps.
    pub(super) fn newest_in_lines(&self) -> Option<Placed> {
        let step = self.joiner.step().filter(|_| self.has_line_steps)?;
        Some(Placed { step, total_steps: None })
    }

    /// Takes a line that names a step, unless a bar says otherwise.
    fn take_counted(&mut self, count: u64, line: Line, readings: &mut Vec<Reading>) {
        if self.progress.is_chosen() {
            let agrees = self.joiner.step().is_some_and(|step| step.abs_diff(count) <= 1);
            let placed = agrees.then_some(Placed { step: count, total_steps: None });
            return self.emit(line, placed, readings);
        }
        self.has_line_steps = true;
        let position = line.position(count);
        // The rest of a step that was taken within an earlier line.
        let mut line = line;
        if line.form == LineForm::OfParts && self.joiner.step() == Some(count) {
            line.values.retain(|(name, _)| !self.joiner.knows(name));
            line.epoch = None;
        }
        if line.is_evaluation || !line.has_other_than_evaluation() {
            let placed = self.lines.place_evaluation(&position).or_else(|| self.newest_in_lines());
            return self.emit(line, placed, readings);
        }
        match self.lines.place(&position, self.announced.and_then(Epoch::index)) {
            LineStep::At(placed) => {
                self.drop_doubted(readings);
                self.emit(line, Some(placed), readings);
            }
            LineStep::Doubtful(placed) if self.doubted.len() < MAX_HELD => {
                self.doubted.push(Doubted { line, placed, printed: self.now });
            }
            LineStep::Confirmed(placed) => {
                for Doubted { line, placed, printed } in std::mem::take(&mut self.doubted) {
                    self.printed = printed;
                    self.emit(line, Some(placed), readings);
                }
                self.printed = None;
                self.emit(line, Some(placed), readings);
            }
            LineStep::Elsewhere if line.has_evaluation() => {
                let placed = self.lines.place_evaluation(&position).or_else(|| self.newest_in_lines());
                self.emit_summary(line, placed, readings);
            }
            LineStep::Elsewhere | LineStep::Doubtful(_) => self.emit_unplaced(line.values, readings),
            // The epochs before are not known, and no step came before: the epoch is all that places it.
            LineStep::Uncertain if line.form == LineForm::OfSamples && self.joiner.step().is_none() => {
                self.has_line_steps = false;
                self.emit(Line { step: None, out_of: None, ..line }, None, readings);
            }
            LineStep::Uncertain => self.joiner.push(
                Reading {
                    count_started_over: Some(count),
                    epoch: line.epoch.map(|epoch| epoch.value),
                    values: line.values,
                    ..Reading::default()
                },
                readings,
            ),
        }
    }

    pub(super) fn drop_doubted(&mut self, readings: &mut Vec<Reading>) {
        for Doubted { line, .. } in std::mem::take(&mut self.doubted) {
            self.emit_unplaced(line.values, readings);
        }
    }

    pub(super) fn emit(&mut self, mut line: Line, placed: Option<Placed>, readings: &mut Vec<Reading>) {
        if line.has_percent {
            self.shares.note(&mut line.values);
        } else {
            self.shares.normalise(&mut line.values);
        }
        self.test_set.keep_apart(&mut line);
        self.mark(&line, placed);
        // Where nothing counts steps, an epoch is all that places a value.
        let counts = self.has_line_steps || self.own_steps || self.progress.is_chosen();
        let named = self.epoch.filter(|_| !counts).map(|epoch| epoch as f64);
        let reading = Reading {
            step: placed.map(|placed| placed.step),
            count_started_over: None,
            total_steps: placed.and_then(|placed| placed.total_steps).or(line.total_steps),
            epoch: line.epoch.map(|epoch| epoch.value).or(named),
            epochs: line.epoch.or(self.heading).and_then(|epoch| epoch.count),
            epoch_size: line.out_of.filter(|_| line.extent.is_epoch() && placed.is_some()),
            is_partial: placed.is_none() && line.progress.is_some() && !line.is_evaluation,
            values: line.values,
            time_left: line.time_left,
            printed: self.printed,
            skip: None,
        };
        self.joiner.push(reading, readings);
    }

    /// Emits values whose step the bar did not show, if they are evidence: NaN or infinite.
    pub(super) fn emit_unplaced(&mut self, values: Vec<(String, f64)>, readings: &mut Vec<Reading>) {
        if values.iter().any(|(_, value)| !value.is_finite()) {
            self.emit(Line { values, ..Line::default() }, None, readings);
        }
    }

    pub(super) fn flush(&mut self, readings: &mut Vec<Reading>) {
        for line in std::mem::take(&mut self.held) {
            self.emit(line, None, readings);
        }
        self.joiner.flush(readings);
    }
}
