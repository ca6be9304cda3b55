//! Reduces the curve to the columns of a chart, and determines which rows that requires.

use super::{Axis, Column, Extent, FAN, HELD, Metric, NEWEST, Series};
use crate::protocol::control::StepRow;
use crate::store::summary::{Bucket, Point, Spot};
use std::ops::Range;

/// Data of the curve at a position.
#[derive(Debug, Clone)]
pub struct CurvePoint(Bucket);

impl CurvePoint {
    /// Returns the position.
    #[must_use]
    pub fn spot(&self) -> Spot {
        self.0.first.middle(self.0.last)
    }

    /// Returns the number of steps it represents: 1 if the single step is known.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.0.steps
    }

    /// Reports whether any of its steps was skipped.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.0.skipped > 0
    }

    /// Returns the value of a metric.
    #[must_use]
    pub fn extent(&self, metric: Metric) -> Option<Extent> {
        self.0.extent(metric)
    }
}

/// One metric over consecutive steps: the input of a column.
pub(super) struct Seen {
    ends: (f64, f64),
    last_step: u64,
    steps: u32,
    skipped: u32,
    extent: Option<Extent>,
}

impl Seen {
    fn from_point(point: &Point, metric: Metric, axis: Axis) -> Self {
        let place = axis.place(point.spot);
        let extent = Extent::one(point.value(metric));
        Self { ends: (place, place), last_step: point.spot.step, steps: 1, skipped: u32::from(point.skipped), extent }
    }

    fn from_bucket(bucket: &Bucket, metric: Metric, axis: Axis) -> Self {
        let ends = (axis.place(bucket.first), axis.place(bucket.last));
        Self {
            ends,
            last_step: bucket.last.step,
            steps: bucket.steps,
            skipped: bucket.skipped,
            extent: bucket.extent(metric),
        }
    }
}

impl Series {
    /// Number of leaves below which every single step of a window can be kept in memory.
    pub const EXACT_LEAVES: usize = HELD - NEWEST;

    /// Returns the steps from `window.start` to `window.end` in `width` columns: the first step is in
    /// the first column, the last in the last. Reads only a few buckets per column, whatever the
    /// length.
    #[must_use]
    pub fn columns(&self, metric: Metric, window: Range<f64>, width: usize) -> Vec<Column> {
        self.columns_on(metric, Axis::Steps, window, width)
    }

    /// Does the same for a window of any axis.
    #[must_use]
    pub fn columns_on(&self, metric: Metric, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); width];
        let span = window.end - window.start;
        if width == 0 || !span.is_finite() || span < 0.0 {
            return columns;
        }
        let mut previous = self.earlier(metric, axis, window.start, 1).last().map(|(.., step)| *step);
        let put = |seen: &Seen| {
            let middle = f64::midpoint(seen.ends.0, seen.ends.1);
            let place = if span > 0.0 { (middle - window.start) / span * (width - 1) as f64 } else { 0.0 };
            let column = &mut columns[(place.round().max(0.0) as usize).min(width - 1)];
            column.rows = column.rows.saturating_add(seen.steps);
            column.skipped = column.skipped.saturating_add(seen.skipped);
            if let Some(extent) = seen.extent {
                let since = previous.replace(seen.last_step).map_or(0, |step| seen.last_step.saturating_sub(step));
                let steps = u32::try_from(since).unwrap_or(u32::MAX).max(extent.count);
                column.steps = column.steps.saturating_add(steps);
            }
            column.extent = match (column.extent, seen.extent) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        };
        self.visit((metric, axis), &window, width, put);
        columns
    }

    /// Returns the steps to read to make a chart of a window exact, if their rows are not in memory;
    /// `None` if a column is wider than a leaf. `width` is in columns of [`Column`]s.
    #[must_use]
    pub fn missing(&self, axis: Axis, window: &Range<f64>, width: usize) -> Option<Range<u64>> {
        let leaves = self.leaves_within(axis, window);
        if leaves.len() >= width.clamp(1, Self::EXACT_LEAVES) {
            return None;
        }
        let without = |place: &usize| self.rows[*place].is_none();
        let (first, last) = (leaves.clone().find(without)?, leaves.rev().find(without)?);
        Some(self.leaves[first].first.step..self.leaves[last].last.step.saturating_add(1))
    }

    /// Adds the rows that [`Self::missing`] asked for; releases older ones if there are too many.
    pub fn fill(&mut self, rows: &[StepRow]) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
        let leaves = self.leaves_within(Axis::Steps, &(first.step as f64..last.step as f64));
        if self.held + leaves.len() > HELD {
            self.release_rows(NEWEST);
        }
        for place in leaves {
            let leaf = &self.leaves[place];
            let start = rows.partition_point(|row| row.step < leaf.first.step);
            let end = rows.partition_point(|row| row.step <= leaf.last.step);
            let names = &mut self.names;
            let points: Box<[Point]> = rows[start..end.max(start)].iter().map(|row| Point::of(row, names)).collect();
            // If the number of steps differs, the store and this curve are snapshots of different moments.
            if points.len() == leaf.steps as usize && self.rows[place].is_none() {
                self.rows[place] = Some(points);
                self.held += 1;
            }
        }
    }

    /// Reports whether a step before all rows in memory was redone: that part of the curve is missing
    /// until it is read again.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Returns the step nearest to a position, or the leaf that represents it.
    #[must_use]
    pub fn at(&self, axis: Axis, place: f64) -> Option<CurvePoint> {
        let off = |spot: Spot| (axis.place(spot) - place).abs();
        let nearest = |points: &[Point]| {
            let point = points.iter().min_by(|a, b| off(a.spot).total_cmp(&off(b.spot)))?;
            Some((off(point.spot), Bucket::one(point)))
        };
        let next = self.leaves.partition_point(|leaf| axis.place(leaf.last) < place);
        let of_leaf = |index: usize| {
            if let Some(points) = self.rows.get(index)? {
                return nearest(points);
            }
            let leaf = &self.leaves[index];
            let inside = axis.place(leaf.first) <= place && place <= axis.place(leaf.last);
            Some((if inside { 0.0 } else { off(leaf.first).min(off(leaf.last)) }, leaf.clone()))
        };
        let found = [of_leaf(next), next.checked_sub(1).and_then(of_leaf), nearest(&self.open)];
        found.into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, bucket)| CurvePoint(bucket))
    }

    /// Returns about `count` values before a position, oldest first, each with the number of steps it stands for: those since
    /// the value before it. Older ones are means of a leaf.
    #[must_use]
    pub fn before_on(&self, metric: Metric, axis: Axis, place: f64, count: usize) -> Vec<(f32, u32)> {
        let mut previous = None;
        let stands_for = |(value, steps, step): (f32, u32, u64)| {
            let since = previous.replace(step).map_or(0, |before| step.saturating_sub(before));
            (value, u32::try_from(since).unwrap_or(u32::MAX).max(steps))
        };
        self.earlier(metric, axis, place, count).into_iter().map(stands_for).collect()
    }

    /// Returns about `count` values before a position, oldest first, each with how many there are and the last step.
    fn earlier(&self, metric: Metric, axis: Axis, place: f64, count: usize) -> Vec<(f32, u32, u64)> {
        let (mut newest_first, mut steps): (Vec<(f32, u32, u64)>, usize) = (Vec::new(), 0);
        let finite = |points: &[Point], into: &mut Vec<(f32, u32, u64)>, room: usize| {
            let end = points.partition_point(|point| axis.place(point.spot) < place);
            let values = points[..end].iter().rev().map(|point| (point.value(metric), 1, point.spot.step));
            let before = into.len();
            into.extend(values.filter(|(value, ..)| value.is_finite()).take(room));
            into.len() - before
        };
        steps += finite(&self.open, &mut newest_first, count);
        let mut leaf = self.leaves.partition_point(|leaf| axis.place(leaf.first) < place);
        while leaf > 0 && steps < count {
            leaf -= 1;
            match (&self.rows[leaf], self.leaves[leaf].extent(metric)) {
                (Some(rows), _) => steps += finite(rows, &mut newest_first, count - steps),
                (None, Some(extent)) => {
                    newest_first.push((extent.mean, extent.count, self.leaves[leaf].last.step));
                    steps += extent.count as usize;
                }
                (None, None) => {}
            }
        }
        newest_first.reverse();
        newest_first
    }

    /// Calls `put` with the contents of the window: buckets where a column is wide, rows where it is
    /// narrow and at the unaligned ends.
    pub(super) fn visit(
        &self,
        (metric, axis): (Metric, Axis),
        window: &Range<f64>,
        width: usize,
        mut put: impl FnMut(&Seen),
    ) {
        let within = |point: &&Point| (window.start..=window.end).contains(&axis.place(point.spot));
        // Read only what the chart draws: a view has many charts, each with up to a leaf per column.
        let close = |place: usize, put: &mut dyn FnMut(&Seen)| match &self.rows[place] {
            Some(rows) => {
                for point in rows.iter().filter(within) {
                    put(&Seen::from_point(point, metric, axis));
                }
            }
            None => put(&Seen::from_bucket(&self.leaves[place], metric, axis)),
        };
        let leaves = self.leaves_within(axis, window);
        if leaves.len() < width.max(4) {
            leaves.for_each(|place| close(place, &mut put));
        } else {
            close(leaves.start, &mut put);
            let inner = leaves.start + 1..leaves.end - 1;
            let level = self.level_for(inner.len(), width);
            self.walk(inner, level, |bucket| put(&Seen::from_bucket(bucket, metric, axis)));
            close(leaves.end - 1, &mut put);
        }
        for point in self.open.iter().filter(within) {
            put(&Seen::from_point(point, metric, axis));
        }
    }

    fn leaves_within(&self, axis: Axis, window: &Range<f64>) -> Range<usize> {
        let start = self.leaves.partition_point(|leaf| axis.place(leaf.last) < window.start);
        let end = self.leaves.partition_point(|leaf| axis.place(leaf.first) <= window.end);
        start..end.max(start)
    }

    /// Returns the coarsest level with at least two buckets per column.
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
