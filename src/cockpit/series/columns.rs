//! From the curve to the columns of a chart, and which rows that would need.

use super::{Column, Extent, FAN, HELD, Metric, NEWEST, Series};
use crate::protocol::control::StepRow;
use crate::store::summary::{Bucket, Place, Point};
use std::ops::Range;

impl Series {
    /// The steps from `window.start` to `window.end` in `width` columns: the first lies on the
    /// first column, the last on the last. Looks at a few buckets a column, whatever the length.
    #[must_use]
    pub fn columns(&self, metric: Metric, window: Range<f64>, width: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); width];
        let span = window.end - window.start;
        if width == 0 || !span.is_finite() || span < 0.0 {
            return columns;
        }
        let put = |bucket: &Bucket| {
            let middle = bucket.first.step as f64 + (bucket.last.step - bucket.first.step) as f64 / 2.0;
            let place = if span > 0.0 { (middle - window.start) / span * (width - 1) as f64 } else { 0.0 };
            let column = &mut columns[(place.round().max(0.0) as usize).min(width - 1)];
            column.skipped = column.skipped.saturating_add(bucket.skipped);
            column.extent = match (column.extent, bucket.extents[metric as usize]) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        };
        self.visit(&window, width, put);
        columns
    }

    /// The steps that have to be read for a chart of a window to be exact, where their rows are
    /// not held: none where a column is wider than a leaf. `width` is in columns of [`Column`]s.
    #[must_use]
    pub fn missing(&self, window: &Range<f64>, width: usize) -> Option<Range<u64>> {
        let leaves = self.leaves_within(window);
        if leaves.len() >= width.clamp(1, HELD - NEWEST) {
            return None;
        }
        let without = |place: &usize| self.rows[*place].is_none();
        let (first, last) = (leaves.clone().find(without)?, leaves.rev().find(without)?);
        Some(self.leaves[first].first.step..self.leaves[last].last.step.saturating_add(1))
    }

    /// Takes in rows that [`Self::missing`] asked for; where they become too many, older ones go.
    pub fn fill(&mut self, rows: &[StepRow]) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
        let leaves = self.leaves_within(&(first.step as f64..last.step as f64));
        if self.held + leaves.len() > HELD {
            self.release(NEWEST);
        }
        for place in leaves.filter(|place| *place < self.leaves.len()) {
            let leaf = &self.leaves[place];
            let start = rows.partition_point(|row| row.step < leaf.first.step);
            let end = rows.partition_point(|row| row.step <= leaf.last.step);
            let points: Box<[Point]> = rows[start..end.max(start)].iter().map(Point::of).collect();
            // Another number of steps: the store and this curve are not of the same moment.
            if points.len() == leaf.steps as usize && self.rows[place].is_none() {
                self.rows[place] = Some(points);
                self.held += 1;
            }
        }
    }

    /// Whether a step was redone that lies before all rows that are held: part of the curve is then
    /// missing until it is read again.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// The values of the (about `count`) steps before `step`, oldest first: what smoothing needs
    /// to begin with at the left edge of a window. Where rows are not held, a leaf's mean stands
    /// for each of its steps.
    pub fn before(&self, metric: Metric, step: f64, count: usize) -> impl Iterator<Item = f32> + '_ {
        let mut newest_first: Vec<f32> = Vec::new();
        let finite = |points: &[Point], into: &mut Vec<f32>| {
            let end = points.partition_point(|point| (point.place.step as f64) < step);
            let values = points[..end].iter().rev().map(|point| point.values[metric as usize]);
            into.extend(values.filter(|value| value.is_finite()).take(count.saturating_sub(into.len())));
        };
        finite(&self.open, &mut newest_first);
        let mut place = self.leaves.partition_point(|leaf| (leaf.first.step as f64) < step);
        while place > 0 && newest_first.len() < count {
            place -= 1;
            match (&self.rows[place], self.leaves[place].extents[metric as usize]) {
                (Some(rows), _) => finite(rows, &mut newest_first),
                (None, Some(Extent { mean, count: steps, .. })) => {
                    let room = count - newest_first.len();
                    newest_first.extend(std::iter::repeat_n(mean, (steps as usize).min(room)));
                }
                (None, None) => {}
            }
        }
        newest_first.into_iter().rev()
    }

    /// Where a step lies on the other axes: that of the nearest known steps, in proportion.
    #[must_use]
    pub fn place(&self, step: f64) -> Option<(f64, f64)> {
        let before = self.leaves.partition_point(|leaf| (leaf.first.step as f64) <= step);
        let ends = |place: usize| {
            let leaf = self.leaves.get(place)?;
            Some((leaf.first, leaf.last))
        };
        let open = || Some((self.open.first()?.place, self.open.last()?.place));
        let (mut from, mut to) = before.checked_sub(1).and_then(ends).or_else(open).or_else(|| ends(0))?;
        if step > to.step as f64 {
            // Between this leaf and what comes next, or within the open rows.
            let (next, last) = ends(before).or_else(open)?;
            (from, to) = if step >= next.step as f64 { (next, last) } else { (to, next) };
        }
        let share = if to.step > from.step {
            ((step - from.step as f64) / (to.step - from.step) as f64).clamp(0.0, 1.0)
        } else {
            0.0
        };
        let between = |a: f64, b: f64| a + (b - a) * share;
        Some((
            between(from.samples as f64, to.samples as f64),
            between(from.time_ms as f64, to.time_ms as f64),
        ))
    }

    /// The step where another axis has this value: the inverse of a part of [`Self::place`].
    #[must_use]
    pub fn step_at(&self, value: f64, axis: impl Fn(Place) -> f64) -> Option<f64> {
        let place = self.leaves.partition_point(|leaf| axis(leaf.last) < value);
        let (from, to) = match self.leaves.get(place) {
            Some(leaf) => (leaf.first, leaf.last),
            None => match (self.open.first(), self.open.last()) {
                (Some(first), Some(last)) => (first.place, last.place),
                _ => self.leaves.last().map(|leaf| (leaf.first, leaf.last))?,
            },
        };
        let span = axis(to) - axis(from);
        let share = if span > 0.0 { ((value - axis(from)) / span).clamp(0.0, 1.0) } else { 0.0 };
        Some(from.step as f64 + (to.step - from.step) as f64 * share)
    }

    /// The points that are held between two steps, oldest first: what a cursor reads.
    pub fn points(&self, steps: Range<u64>) -> impl Iterator<Item = &Point> + '_ {
        let leaves = self.leaves_within(&(steps.start as f64..steps.end as f64));
        let held = self.rows[leaves].iter().flatten().flat_map(|rows| rows.iter());
        held.chain(&self.open).filter(move |point| steps.contains(&point.place.step))
    }

    /// Calls `put` with what lies within the window: buckets where a column is wide, rows where it
    /// is narrow and at the ragged ends.
    pub(super) fn visit(&self, window: &Range<f64>, width: usize, mut put: impl FnMut(&Bucket)) {
        let within = |point: &&Point| (window.start..=window.end).contains(&(point.place.step as f64));
        let close = |place: usize, put: &mut dyn FnMut(&Bucket)| match &self.rows[place] {
            Some(rows) => rows.iter().filter(within).for_each(|point| put(&Bucket::one(point))),
            None => put(&self.leaves[place]),
        };
        let leaves = self.leaves_within(window);
        if leaves.len() < width.max(4) {
            leaves.for_each(|place| close(place, &mut put));
        } else {
            close(leaves.start, &mut put);
            let inner = leaves.start + 1..leaves.end - 1;
            self.walk(inner.clone(), self.level_for(inner.len(), width), &mut put);
            close(leaves.end - 1, &mut put);
        }
        self.open.iter().filter(within).for_each(|point| put(&Bucket::one(point)));
    }

    fn leaves_within(&self, window: &Range<f64>) -> Range<usize> {
        let start = self.leaves.partition_point(|leaf| (leaf.last.step as f64) < window.start);
        let end = self.leaves.partition_point(|leaf| (leaf.first.step as f64) <= window.end);
        start..end.max(start)
    }

    /// The coarsest level with at least two buckets a column.
    fn level_for(&self, leaves: usize, width: usize) -> usize {
        let mut level = 0;
        while level < self.levels.len() && leaves / FAN.pow(level as u32 + 1) >= 2 * width {
            level += 1;
        }
        level
    }

    /// Calls `visit` with buckets that cover `leaves` exactly, none above `top`.
    pub(super) fn walk(&self, leaves: Range<usize>, top: usize, mut visit: impl FnMut(&Bucket)) {
        let mut at = leaves.start;
        while at < leaves.end {
            let mut level = top;
            while level > 0 && (!at.is_multiple_of(FAN.pow(level as u32)) || at + FAN.pow(level as u32) > leaves.end) {
                level -= 1;
            }
            match level {
                0 => visit(&self.leaves[at]),
                _ => visit(&self.levels[level - 1][at / FAN.pow(level as u32)]),
            }
            at += FAN.pow(level as u32);
        }
    }
}
