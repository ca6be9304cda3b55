//! The curve of a run, of any length, in memory that grows slowly and with a cost of drawing that
//! depends on the width of the chart alone.
//!
//! ```text
//! rows      r r r r r r r r  r r r r r r r r  r r r …        one a step
//! level 1   [--- 8 rows ---][--- 8 rows ---]                 min, max, mean, skipped of each figure
//! level 2   [---------- 64 rows -----------] …               the same of 8 buckets below
//! ```
//! Only full buckets are kept, so that going back to an earlier step (a restart redoes it) is a
//! cut at every level and nothing is computed again. A range is walked in the largest full
//! buckets that fit; its ragged ends come from the finer levels.

use crate::protocol::control::StepRow;
use std::ops::Range;

/// A figure kept of every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Mean training loss.
    Loss,
    /// Norm of the gradient before clipping.
    GradNorm,
    /// Milliseconds of waiting for data and computing.
    StepMs,
}

const METRICS: usize = 3;
const FAN: usize = 8;

/// Smallest, largest and mean of a figure over some steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Smallest.
    pub min: f32,
    /// Largest.
    pub max: f32,
    /// Mean.
    pub mean: f32,
    /// How many steps had the figure; never 0.
    pub count: u32,
}

impl Extent {
    fn one(value: f32) -> Option<Self> {
        value.is_finite().then_some(Self { min: value, max: value, mean: value, count: 1 })
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let count = self.count.saturating_add(other.count);
        let share = f64::from(other.count) / f64::from(count);
        let mean = f64::from(self.mean) + (f64::from(other.mean) - f64::from(self.mean)) * share;
        Self { min: self.min.min(other.min), max: self.max.max(other.max), mean: mean as f32, count }
    }
}

/// What some neighbouring steps have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    first: u64,
    last: u64,
    skipped: u32,
    extents: [Option<Extent>; METRICS],
}

impl Bucket {
    fn with(mut self, other: &Self) -> Self {
        self.last = other.last;
        self.skipped = self.skipped.saturating_add(other.skipped);
        for (mine, theirs) in self.extents.iter_mut().zip(other.extents) {
            *mine = match (*mine, theirs) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        }
        self
    }
}

/// What a chart draws in one of its columns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Column {
    /// The figure over the steps of the column; none where all were skipped or there is no step.
    pub extent: Option<Extent>,
    /// How many of its steps the guard dropped.
    pub skipped: u32,
}

/// Where an attempt begins on the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its first step.
    pub first: u64,
    /// The attempt.
    pub attempt: u64,
    /// Its rung.
    pub rung: usize,
}

/// The curve. Rows must come in the order they were taken; of a step taken again, the row of the
/// highest attempt is kept.
#[derive(Debug, Clone, Default)]
pub struct Series {
    steps: Vec<u64>,
    /// NaN where a figure is missing; it never leaves this module.
    values: Vec<[f32; METRICS]>,
    skipped: Vec<bool>,
    levels: Vec<Vec<Bucket>>,
    segments: Vec<Segment>,
}

impl Series {
    /// Takes a row in; false when it was known already or belongs to a past attempt.
    pub fn push(&mut self, row: &StepRow) -> bool {
        let attempt = self.segments.last().map(|segment| segment.attempt);
        let (known, past) = (self.steps.last().is_some_and(|last| row.step <= *last), attempt > Some(row.attempt));
        if past || (known && attempt == Some(row.attempt)) {
            return false;
        }
        if known {
            self.cut(row.step);
        }
        if attempt != Some(row.attempt) {
            self.segments.push(Segment { first: row.step, attempt: row.attempt, rung: row.rung });
        }
        let figure = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let kept = |value: Option<f64>| figure(value.filter(|_| !row.skipped));
        self.steps.push(row.step);
        self.skipped.push(row.skipped);
        self.values.push([kept(row.loss), kept(row.grad_norm), (row.data_wait_ms + row.compute_ms) as f32]);
        self.fold();
        true
    }

    /// How many steps are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// True before the first step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The first and the newest step.
    #[must_use]
    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((*self.steps.first()?, *self.steps.last()?))
    }

    /// Where attempts begin, oldest first.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Skipped ones among the newest `count` steps, and how many steps that really were.
    #[must_use]
    pub fn skipped_among(&self, count: usize) -> (u64, u64) {
        let newest = &self.skipped[self.skipped.len().saturating_sub(count)..];
        (newest.iter().filter(|skipped| **skipped).count() as u64, newest.len() as u64)
    }

    /// Skipped steps in a row at the end of the curve.
    #[must_use]
    pub fn streak(&self) -> u64 {
        self.skipped.iter().rev().take_while(|skipped| **skipped).count() as u64
    }

    /// The newest value of a figure and its step.
    #[must_use]
    pub fn newest(&self, metric: Metric) -> Option<(u64, f32)> {
        let place = self.values.iter().rposition(|values| values[metric as usize].is_finite())?;
        Some((self.steps[place], self.values[place][metric as usize]))
    }

    /// The steps from `window.start` to `window.end` in `width` columns: the first lies on the
    /// first column, the last on the last. Looks at a few buckets a column, whatever the length.
    #[must_use]
    pub fn columns(&self, metric: Metric, window: Range<f64>, width: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); width];
        let span = window.end - window.start;
        if width == 0 || !span.is_finite() || span < 0.0 {
            return columns;
        }
        let rows = self.rows_within(&window);
        let level = self.level_for(rows.len(), width);
        self.walk(rows, level, |bucket| {
            let middle = bucket.first as f64 + (bucket.last - bucket.first) as f64 / 2.0;
            let place = if span > 0.0 { (middle - window.start) / span * (width - 1) as f64 } else { 0.0 };
            let column = &mut columns[(place.round().max(0.0) as usize).min(width - 1)];
            column.skipped = column.skipped.saturating_add(bucket.skipped);
            column.extent = match (column.extent, bucket.extents[metric as usize]) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        });
        columns
    }

    /// The values of the (at most `count`) steps before `step`, oldest first: what smoothing needs
    /// to begin with at the left edge of a window.
    pub fn before(&self, metric: Metric, step: f64, count: usize) -> impl Iterator<Item = f32> + '_ {
        let end = self.steps.partition_point(|known| (*known as f64) < step);
        self.values[end.saturating_sub(count)..end]
            .iter()
            .map(move |values| values[metric as usize])
            .filter(|value| value.is_finite())
    }

    fn rows_within(&self, window: &Range<f64>) -> Range<usize> {
        let start = self.steps.partition_point(|step| (*step as f64) < window.start);
        let end = self.steps.partition_point(|step| (*step as f64) <= window.end);
        start..end.max(start)
    }

    /// The coarsest level with at least two buckets a column.
    fn level_for(&self, rows: usize, width: usize) -> usize {
        let mut level = 0;
        while level < self.levels.len() && rows / FAN.pow(level as u32 + 1) >= 2 * width {
            level += 1;
        }
        level
    }

    /// Calls `visit` with buckets that cover `rows` exactly, none above `top`.
    fn walk(&self, rows: Range<usize>, top: usize, mut visit: impl FnMut(&Bucket)) {
        let mut at = rows.start;
        while at < rows.end {
            let mut level = top;
            while level > 0 && (!at.is_multiple_of(FAN.pow(level as u32)) || at + FAN.pow(level as u32) > rows.end) {
                level -= 1;
            }
            match level {
                0 => visit(&self.bucket(at)),
                _ => visit(&self.levels[level - 1][at / FAN.pow(level as u32)]),
            }
            at += FAN.pow(level as u32);
        }
    }

    fn bucket(&self, row: usize) -> Bucket {
        let step = self.steps[row];
        let extents = self.values[row].map(Extent::one);
        Bucket { first: step, last: step, skipped: u32::from(self.skipped[row]), extents }
    }

    /// Builds the buckets that the newest row filled.
    fn fold(&mut self) {
        let mut level = 0;
        while self.steps.len().is_multiple_of(FAN.pow(level as u32 + 1)) {
            let end = self.steps.len() / FAN.pow(level as u32);
            let parts = (end - FAN)..end;
            let whole = match level {
                0 => parts.map(|row| self.bucket(row)).reduce(|all, part| all.with(&part)),
                _ => self.levels[level - 1][parts].iter().copied().reduce(|all, part| all.with(&part)),
            };
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].extend(whole);
            level += 1;
        }
    }

    /// Forgets `step` and everything after it.
    fn cut(&mut self, step: u64) {
        let rows = self.steps.partition_point(|known| *known < step);
        self.steps.truncate(rows);
        self.values.truncate(rows);
        self.skipped.truncate(rows);
        for (level, buckets) in self.levels.iter_mut().enumerate() {
            buckets.truncate(rows / FAN.pow(level as u32 + 1));
        }
        self.segments.retain(|segment| segment.first < step);
    }
}

#[cfg(test)]
mod tests;
