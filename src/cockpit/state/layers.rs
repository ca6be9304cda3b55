//! The state of the layers view: the layers at each evaluation, and the part that is shown.

use super::State;
use crate::cockpit::read_error::ReadError;
use crate::protocol::control::LayerRow;
use crate::series::layers::{LayerHistory, Measure};
use std::sync::Arc;

/// The knowledge of the layers view.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The history, or why it could not be read; `None` until it was read.
    pub history: Option<Result<Arc<LayerHistory>, ReadError>>,
    /// Whether it is being read.
    reading: bool,
    /// Whether rows may be missing from it.
    stale: bool,
    /// When an evaluation named a layer that was not finite while no first one was known, Unix milliseconds. Only the
    /// store knows the parameter and the step.
    unknown_since_ms: Option<i64>,
}

/// The keeper writes the parameter to the store within this time, in milliseconds.
const WRITTEN_MS: i64 = 1_000;

impl Layers {
    /// Adds an evaluation that the keeper reported.
    pub fn push(&mut self, row: LayerRow) {
        if let Some(Ok(history)) = &mut self.history {
            if history.first_non_finite.is_none() && row.stats.layers.iter().any(|layer| layer.non_finite) {
                self.unknown_since_ms.get_or_insert(row.time_ms);
            }
            Arc::make_mut(history).push(row);
        }
        // A reading under way may have missed it.
        self.stale |= self.reading;
    }

    /// Notes that evaluations may have been missed.
    pub fn note_gap(&mut self) {
        self.stale = true;
    }

    /// Notes what to read again: a history that could not be read, or one without the first parameter that was not
    /// finite.
    pub fn retry(&mut self, now_ms: i64) {
        let is_written = |since_ms: i64| now_ms.saturating_sub(since_ms) >= WRITTEN_MS;
        self.stale |= matches!(self.history, Some(Err(_))) || self.unknown_since_ms.is_some_and(is_written);
    }

    /// Reports whether the history must be read now, and marks it.
    pub fn take_missing(&mut self) -> bool {
        let missing = !self.reading && (self.history.is_none() || self.stale);
        if missing {
            (self.reading, self.stale, self.unknown_since_ms) = (true, false, None);
        }
        missing
    }

    /// Stores the history that was read. Evaluations that the keeper reported before it wrote them stay.
    pub fn store_history(&mut self, history: Result<LayerHistory, ReadError>) {
        self.reading = false;
        let before = self.history.take().and_then(Result::ok);
        let complete = |mut history: LayerHistory| {
            if let Some(before) = &before {
                history.add_later(before);
            }
            Arc::new(history)
        };
        self.history = Some(history.map(complete));
    }
}

/// Position in the layers view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerCursor {
    /// The value on the screen.
    pub measure: Measure,
    /// The chosen layer.
    pub layer: usize,
    /// Evaluations back from the newest.
    pub back: usize,
}

impl State {
    /// Returns the history of the layers, once read.
    #[must_use]
    pub fn layer_history(&self) -> Option<&LayerHistory> {
        self.layers.history.as_ref()?.as_deref().ok()
    }
}

#[cfg(test)]
mod tests;
