//! Reads the output of a training: one reader per stream.

mod content;
mod mark;

use super::Reading;
use super::bar::Bar;
use super::clock::Counting;
use super::pattern::Pattern;
use super::screen::{End, Screen};
use super::unread::UnreadLines;
use content::Content;
pub use mark::Mark;
use std::time::Duration;

/// Reads steps and metrics from the bytes of one stream. How the bytes are cut into pushes does not matter.
#[derive(Debug)]
pub struct OutputReader {
    screen: Screen,
    content: Content,
}

impl OutputReader {
    /// Creates the reader of a stream; `patterns` come before the formats it knows.
    #[must_use]
    pub fn new(patterns: &[Pattern]) -> Self {
        Self { screen: Screen::new(), content: Content::new(patterns) }
    }

    /// Notes that the stream begins within the training, after step `from`; 0 is its beginning. A count that starts over
    /// there has unknown steps before it.
    #[must_use]
    pub fn resumed(mut self, from: u64) -> Self {
        if from > 0 {
            self.content.lines.resume(from);
            self.content.progress.resume(from);
        }
        self
    }

    /// Notes how the lines of the same script counted before it was resumed.
    #[must_use]
    pub fn recalling(mut self, learnt: Option<Counting>) -> Self {
        if let Some(learnt) = learnt {
            self.content.lines.recall(learnt);
        }
        self
    }

    /// Returns how the lines count, once an epoch that ended has shown it anew.
    pub fn counting_news(&mut self) -> Option<Counting> {
        self.content.lines.counting_news()
    }

    /// Notes that the count which the newest line named is the step of the training.
    pub fn confirm_count(&mut self) {
        self.content.lines.confirm_count();
    }

    /// Reads bytes, and adds the readings that they complete. A step is complete when the next one begins.
    pub fn push(&mut self, bytes: &[u8], readings: &mut Vec<Reading>) {
        self.screen.push(bytes, |text, end| self.content.take(text, end, readings));
    }

    /// Reads bytes, and returns the readings that they complete; `at_once` also the one of the step that is open. Where the
    /// steps come from elsewhere, nothing has to wait for the next one.
    ///
    /// `now` is the time of the bytes.
    pub fn read(&mut self, bytes: &[u8], at_once: bool, now: Duration) -> Vec<Reading> {
        self.content.now = Some(now);
        let mut readings = Vec::new();
        self.push(bytes, &mut readings);
        if at_once {
            self.flush(&mut readings);
        }
        readings
    }

    /// Returns the newest step that the output has named, also if more about it may follow.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        self.content.joiner.step()
    }

    /// Takes the marks of the lines that were read since the last call, with the times of those that were held back.
    pub fn take_marks(&mut self) -> Vec<(Mark, Option<Duration>)> {
        std::mem::take(&mut self.content.marks)
    }

    /// Takes the count of the newest progress bar, and the count that it ends at.
    pub fn take_bar(&mut self) -> Option<(u64, u64)> {
        self.content.bar.take()
    }

    /// Adds the readings that are held back: call it when the stream pauses. A bar without a line end is read; any
    /// other unfinished line is not, since it may be cut in the middle of a number.
    pub fn flush(&mut self, readings: &mut Vec<Reading>) {
        let open = self.screen.unfinished();
        if Bar::read(&open).is_some_and(|bar| bar.is_complete) {
            self.content.take(&open, End::Return, readings);
        }
        self.content.flush(readings);
    }

    /// Returns the lines in which no step was found.
    #[must_use]
    pub fn unread_lines(&self) -> &UnreadLines {
        &self.content.unread
    }

    /// Adds the last readings of a stream that has ended.
    pub fn finish(mut self, readings: &mut Vec<Reading>) {
        self.finish_reading(readings);
    }

    /// Adds the last readings of a stream that has ended, and forgets none of it.
    pub fn finish_reading(&mut self, readings: &mut Vec<Reading>) {
        self.flush(readings);
        self.content.end_evaluation(readings);
        self.content.end_samples(readings);
        self.content.flush(readings);
        self.content.drop_doubted(readings);
        let waiting = self.content.progress.take_waiting();
        self.content.emit_unplaced(waiting, readings);
    }
}

#[cfg(test)]
mod tests;
