//! Steps and metrics of a training script that downshift did not write, read from its output and from the files of its
//! loggers. Nothing here knows about runs, keepers or harnesses.
//!
//! ```text
//! bytes of a stream ─ Screen ─▶ segments ─┬─ Pattern (yours) ─┐
//!   (\r, escapes, torn lines)             ├─ Bar ── Clock ────┼─▶ Joiner ─▶ Reading { step, values }
//!                                         └─ Line ─ LineClock ┘    (one a step)
//! events.out.tfevents.*  *.wandb  *.csv  *.jsonl ─ Tail ─▶ format ─▶ Joiner ─▶ Reading
//! trackio (SQLite) ──────────────────────────────────────────────────────────▶ Reading
//! ```
//! A step is declared only when it is certain: a line that names it, a file that stores it, or the one bar that
//! counts training steps. Everything else is a reading without a step. NaN and infinity are values like others:
//! they are evidence. All input is untrusted: lines, names and records are bounded, and time is linear.

mod bar;
mod boxes;
mod clock;
mod csv;
mod error;
mod file;
mod heads;
mod joiner;
mod jsonl;
mod line;
mod line_clock;
mod names;
mod numbers;
mod output;
mod pattern;
pub mod prefix;
mod progress;
mod protobuf;
mod ranks;
mod record;
mod samples;
mod screen;
mod shares;
mod skips;
mod table;
mod tail;
mod tensorboard;
mod test_set;
mod time_left;
mod token;
mod trackio;
mod unread;
mod wandb;

pub use clock::Counting;
pub use error::FileError;
pub use file::FileReader;
pub use names::{MAX_NAME, MAX_NAMES};
pub use numbers::read_numbers;
pub use output::{Mark, OutputReader};
pub use pattern::{Pattern, PatternError};
pub use shares::Shares;
pub use skips::{Skip, Span, skip_counts};
pub use table::TableRows;
pub use unread::UnreadLines;

use std::time::Duration;

/// Values that a training reported together: those of a step, or those of an evaluation (`eval_…`), never both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The optimizer step, when certain.
    pub step: Option<u64>,
    /// The count of a line started over, and its step is not certain: the values belong to no known step.
    pub count_started_over: Option<u64>,
    /// The step at which the training ends, when certain.
    pub total_steps: Option<u64>,
    /// The epoch, as the training counts it.
    pub epoch: Option<f64>,
    /// The number of epochs in the training.
    pub epochs: Option<u64>,
    /// The steps in each epoch, when certain.
    pub epoch_size: Option<u64>,
    /// It measures a part of an epoch that counts no steps.
    pub is_partial: bool,
    /// Metrics by name, each name once: `loss`, `lr`, `grad_norm`, `eval_loss`, `accuracy`; others by their own
    /// name in lower case. NaN and infinity stay.
    pub values: Vec<(String, f64)>,
    /// The time until the end of the training, as its line tells it.
    pub time_left: Option<Duration>,
    /// When its line was printed, on the clock of the one who reads, if it was held back since.
    pub printed: Option<Duration>,
    /// A sentence about an update that was left out; then the reading holds nothing else.
    pub skip: Option<Skip>,
}

impl Reading {
    /// Returns the value of a metric.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    fn is_empty(&self) -> bool {
        self.step.is_none() && self.count_started_over.is_none() && self.total_steps.is_none() && self.values.is_empty()
    }

    /// Adds what a later reading of the same step says; its values replace earlier ones.
    fn merge(&mut self, later: Self) {
        self.total_steps = later.total_steps.or(self.total_steps);
        self.epoch = later.epoch.or(self.epoch);
        self.epochs = later.epochs.or(self.epochs);
        self.epoch_size = later.epoch_size.or(self.epoch_size);
        self.time_left = later.time_left.or(self.time_left);
        for (name, value) in later.values {
            match self.values.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = value,
                None => self.values.push((name, value)),
            }
        }
    }
}
