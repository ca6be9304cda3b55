//! Readings over a run of any length, thinned in memory as they age: the newest in full, everything
//! older in buckets. Drawing cost depends only on the width of a chart.
//!
//! ```text
//! rows      · · · · · · · · · · · · · · · · r r r r r r r r   the newest, one a step
//! level 1   [--- 8 rows ---][--- 8 rows ---][--- 8 rows ---]  min, max, mean, skipped of each metric
//! level 2   [---------- 64 rows -----------] …                the same of 8 buckets below
//! ```
//! A range is walked in the largest full buckets that fit; its unaligned ends come from the finer
//! levels.

use super::{Axis, Column};
use crate::store::summary::{Extent, Spot};
use std::collections::VecDeque;
use std::ops::Range;

const FAN: usize = 8;
/// Number of newest rows kept in full.
const WHOLE: usize = 1 << 16;

/// One row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<const N: usize> {
    /// Position.
    pub spot: Spot,
    /// Values; NaN if missing. NaN never leaves the cockpit's series.
    pub values: [f32; N],
    /// Whether the guard dropped the step.
    pub skipped: bool,
}

/// Summary of consecutive rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket<const N: usize> {
    first: Spot,
    last: Spot,
    /// Number of rows.
    pub rows: u32,
    /// Number of dropped rows.
    pub skipped: u32,
    extents: [Option<Extent>; N],
}

impl<const N: usize> Bucket<N> {
    /// Returns the midpoint of the rows.
    #[must_use]
    pub fn spot(&self) -> Spot {
        self.first.middle(self.last)
    }

    /// Returns the extent of a metric over the bucket.
    #[must_use]
    pub fn extent(&self, figure: usize) -> Option<Extent> {
        self.extents.get(figure).copied().flatten()
    }

    fn from_row(row: &Row<N>) -> Self {
        let extents = row.values.map(Extent::one);
        Self { first: row.spot, last: row.spot, rows: 1, skipped: u32::from(row.skipped), extents }
    }

    fn with(mut self, other: &Self) -> Self {
        self.last = other.last;
        self.rows = self.rows.saturating_add(other.rows);
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

/// Rows of `N` metrics, thinned as they age.
#[derive(Debug, Clone)]
pub struct Pyramid<const N: usize> {
    /// Number of rows added in total.
    length: usize,
    /// Newest rows.
    whole: VecDeque<Row<N>>,
    levels: Vec<Vec<Bucket<N>>>,
    first: Option<Spot>,
}

impl<const N: usize> Default for Pyramid<N> {
    fn default() -> Self {
        Self { length: 0, whole: VecDeque::new(), levels: Vec::new(), first: None }
    }
}

impl<const N: usize> Pyramid<N> {
    /// Adds a row.
    pub fn push(&mut self, row: Row<N>) {
        self.first.get_or_insert(row.spot);
        self.whole.push_back(row);
        self.length += 1;
        self.build_levels();
        if self.whole.len() >= WHOLE + FAN {
            let aged = (self.whole.len() - WHOLE) / FAN * FAN;
            // Drop only rows that full buckets cover.
            if self.whole_from().is_multiple_of(FAN) {
                self.whole.drain(..aged);
            }
        }
    }

    /// Returns the position of the newest row.
    #[must_use]
    pub fn last(&self) -> Option<Spot> {
        self.length.checked_sub(1).map(|row| self.spot(row))
    }

    /// Returns the rows kept in full, newest first.
    pub fn newest(&self) -> impl Iterator<Item = &Row<N>> {
        self.whole.iter().rev()
    }

    fn whole_from(&self) -> usize {
        self.length - self.whole.len()
    }

    fn spot(&self, row: usize) -> Spot {
        match row.checked_sub(self.whole_from()).and_then(|place| self.whole.get(place)) {
            Some(row) => row.spot,
            None if row == 0 => self.first.unwrap_or_default(),
            None => self.levels.first().and_then(|level| level.get(row / FAN)).map_or_else(Spot::default, Bucket::spot),
        }
    }

    /// Returns the number of rows before the first whose position fails the condition.
    fn rows_while(&self, holds: impl Fn(Spot) -> bool) -> usize {
        let (mut low, mut high) = (0, self.length);
        while low < high {
            let middle = usize::midpoint(low, high);
            if holds(self.spot(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns the rows from `window.start` to `window.end` in `width` columns: the first row is in the
    /// first column, the last in the last. Reads only a few buckets per column, whatever the length.
    #[must_use]
    pub fn columns(&self, figure: usize, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); width];
        let span = window.end - window.start;
        if width == 0 || !span.is_finite() || span < 0.0 {
            return columns;
        }
        let rows = self.rows_within(axis, &window);
        let level = self.level_for(rows.len(), width);
        self.walk(rows, level, |bucket| {
            let from_start = axis.place(bucket.spot()) - window.start;
            let place = if span > 0.0 { from_start / span * (width - 1) as f64 } else { 0.0 };
            let column = &mut columns[(place.round().max(0.0) as usize).min(width - 1)];
            column.rows = column.rows.saturating_add(bucket.rows);
            column.skipped = column.skipped.saturating_add(bucket.skipped);
            column.extent = match (column.extent, bucket.extent(figure)) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        });
        columns
    }

    /// Returns the data nearest to a position: one row, or its bucket if the row has been dropped.
    #[must_use]
    pub fn at(&self, axis: Axis, place: f64) -> Option<Bucket<N>> {
        let after = self.rows_while(|spot| axis.place(spot) < place).min(self.length.checked_sub(1)?);
        let off = |row: usize| (axis.place(self.spot(row)) - place).abs();
        let row = if after > 0 && off(after - 1) <= off(after) { after - 1 } else { after };
        match row.checked_sub(self.whole_from()).and_then(|place| self.whole.get(place)) {
            Some(row) => Some(Bucket::from_row(row)),
            None => self.levels.first()?.get(row / FAN).copied(),
        }
    }

    fn rows_within(&self, axis: Axis, window: &Range<f64>) -> Range<usize> {
        let start = self.rows_while(|spot| axis.place(spot) < window.start);
        let end = self.rows_while(|spot| axis.place(spot) <= window.end);
        start..end.max(start)
    }

    /// Returns the coarsest level with at least two buckets per column.
    fn level_for(&self, rows: usize, width: usize) -> usize {
        let mut level = 0;
        while level < self.levels.len() && rows / FAN.pow(level as u32 + 1) >= 2 * width {
            level += 1;
        }
        level
    }

    /// Calls `visit` with buckets that cover `rows` exactly, none above `top`; where the rows have been
    /// dropped, with the smallest buckets that contain them.
    fn walk(&self, rows: Range<usize>, top: usize, mut visit: impl FnMut(&Bucket<N>)) {
        let aged = self.whole_from();
        let top = if rows.start < aged { top.max(1) } else { top };
        let end = if rows.end < aged { rows.end.next_multiple_of(FAN) } else { rows.end };
        let mut at = if rows.start < aged { rows.start / FAN * FAN } else { rows.start };
        while at < end {
            let mut level = top;
            while level > 0 && (!at.is_multiple_of(FAN.pow(level as u32)) || at + FAN.pow(level as u32) > end) {
                level -= 1;
            }
            let bucket = match level.checked_sub(1) {
                None => at.checked_sub(aged).and_then(|place| self.whole.get(place)).map(Bucket::from_row),
                Some(above) => self.levels.get(above).and_then(|l| l.get(at / FAN.pow(level as u32))).copied(),
            };
            if let Some(bucket) = bucket {
                visit(&bucket);
            }
            at += FAN.pow(level as u32);
        }
    }

    /// Builds the buckets that the newest row completed.
    fn build_levels(&mut self) {
        let mut level = 0;
        while self.length.is_multiple_of(FAN.pow(level as u32 + 1)) {
            let whole = if level == 0 {
                let rows = self.whole.iter().skip(self.whole.len().saturating_sub(FAN)).map(Bucket::from_row);
                rows.reduce(|all, part| all.with(&part))
            } else {
                let below = &self.levels[level - 1];
                below[below.len().saturating_sub(FAN)..].iter().copied().reduce(|all, part| all.with(&part))
            };
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].extend(whole);
            level += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pyramid, Row, WHOLE};
    use crate::series::Axis;
    use crate::store::summary::Spot;

    fn row(step: u64, value: f32) -> Row<1> {
        let spot = Spot { step, samples: step * 32, time_ms: 1_000 + step.cast_signed() * 40 };
        Row { spot, values: [value], skipped: value.is_nan() }
    }

    #[test]
    fn rows_that_are_gone_stay_on_the_curve() {
        let mut pyramid = Pyramid::<1>::default();
        let steps = 3 * WHOLE as u64;
        for step in 1..=steps {
            let value = if step == 777 {
                99.0
            } else if step == 5_000 {
                f32::NAN
            } else {
                1.0
            };
            pyramid.push(row(step, value));
        }
        assert!(pyramid.whole.len() <= WHOLE + 8, "{}", pyramid.whole.len());
        for (axis, scale) in [(Axis::Steps, 1.0), (Axis::Samples, 32.0)] {
            let columns = pyramid.columns(0, axis, scale..steps as f64 * scale, 100);
            let largest =
                columns.iter().filter_map(|column| column.extent).map(|extent| extent.max).fold(0.0, f32::max);
            assert_eq!(largest.to_bits(), 99f32.to_bits(), "{axis:?}");
            assert_eq!(columns.iter().map(|column| column.skipped).sum::<u32>(), 1);
            assert_eq!(u64::from(columns.iter().map(|column| column.rows).sum::<u32>()), steps);
        }
        // Zoomed in, too.
        let near = pyramid.columns(0, Axis::Steps, 770.0..790.0, 40);
        assert!(near.iter().any(|column| column.extent.is_some_and(|extent| extent.max > 98.0)));
        let old = pyramid.at(Axis::Steps, 777.0).unwrap();
        assert_eq!((old.rows, old.extent(0).unwrap().max.to_bits()), (8, 99f32.to_bits()));
        let new = pyramid.at(Axis::Time, 1_000.0 + steps as f64 * 40.0).unwrap();
        assert_eq!((new.rows, new.spot().step), (1, steps));
    }
}
