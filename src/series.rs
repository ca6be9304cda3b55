//! The curve of a run of any length: drawing cost depends only on the width of the chart, and single
//! steps stay in memory only where they are being viewed.
//!
//! ```text
//! steps     ·················· r r r r r r r r      rows of the newest steps and of a range
//!                                                   that a chart zooms in on
//! leaves    [- 64 -][- 64 -][- 64 -][- 64 -] …      min, max, mean, skipped of each metric; all kept
//! level 1   [---------- 8 leaves -----------] …     the same of 8 leaves, and so on
//! ```
//! Leaves come from the store or are built from the rows the keeper sends. A range is walked in the
//! largest full buckets that fit. Where a column is finer than a leaf and the rows are not in memory,
//! [`Series::missing`] names the rows to read, and the leaf is drawn until they arrive. Returning to an
//! earlier step (a restart redoes it) truncates every level.

pub use crate::store::summary::{Extent, Metric, MetricNames};
pub use axis::Axis;

use crate::protocol::control::StepRow;
use crate::store::summary::{Bucket, LEAF, Point, Spot};

const FAN: usize = 8;
/// Minimum number of leaves at the newest end that keep their rows.
const NEWEST: usize = 64;
/// Maximum number of leaves with rows before some are released.
const HELD: usize = 1024;

/// Data of one chart column.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Column {
    /// The metric over the steps of the column; `None` if all were skipped or there are no steps.
    pub extent: Option<Extent>,
    /// Steps in the column that the guard dropped.
    pub skipped: u32,
    /// Steps in the column.
    pub rows: u32,
    /// Steps that its values stand for: those since the value before it, of which a script may report few.
    pub steps: u32,
}

/// Statistics of skipped steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skips {
    /// First skipped step.
    pub first: Option<u64>,
    /// Longest streak.
    pub longest: u64,
    /// Current streak, up to the newest step.
    pub streak: u64,
}

/// Start of an attempt on the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First step of the attempt.
    pub first: u64,
    /// Position of that step on every axis.
    pub spot: Spot,
    /// The attempt.
    pub attempt: u64,
    /// Rung of the attempt.
    pub rung: usize,
}

/// The curve. Rows must arrive in the order they were taken. If a step was taken more than once, the
/// row of the highest attempt is kept.
#[derive(Debug, Clone, Default)]
pub struct Series {
    leaves: Vec<Bucket>,
    /// Rows of each leaf, if in memory.
    rows: Vec<Option<Box<[Point]>>>,
    /// Number of leaves with rows in memory.
    held: usize,
    /// Newest rows, not yet a full leaf.
    open: Vec<Point>,
    levels: Vec<Vec<Bucket>>,
    segments: Vec<Segment>,
    /// Names of the run's metrics.
    names: MetricNames,
    torn: bool,
}

impl Series {
    /// Creates a series for leaves from a store with these names.
    #[must_use]
    pub fn with_names(names: MetricNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Returns the names of the metrics that steps report.
    #[must_use]
    pub fn names(&self) -> &MetricNames {
        &self.names
    }

    /// Adds a row; returns false if it was already known or belongs to a past attempt.
    pub fn push(&mut self, row: &StepRow) -> bool {
        let attempt = self.segments.last().map(|segment| segment.attempt);
        let (known, past) = (self.last().is_some_and(|last| row.step <= last.step), attempt > Some(row.attempt));
        if past || (known && attempt == Some(row.attempt)) {
            return false;
        }
        if known {
            self.truncate_from(row.step);
        }
        let point = Point::of(row, &mut self.names);
        self.begin_segment(row.attempt, row.rung, point.spot);
        self.open.push(point);
        if self.open.len() as u64 == LEAF {
            self.close_leaf();
        }
        true
    }

    /// Appends consecutive steps from the store that follow everything known so far.
    pub fn extend(&mut self, attempt: u64, rung: usize, mut leaf: Bucket) {
        self.close_leaf();
        self.begin_segment(attempt, rung, leaf.first);
        // A name that the keeper added since the names were read.
        leaf.named.retain(|id| usize::from(id.0) < self.names.len());
        self.add_leaf(leaf, None);
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut steps = self.open.len();
        self.walk(0..self.leaves.len(), self.levels.len(), |bucket| steps += bucket.steps as usize);
        steps
    }

    /// Returns true before the first step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty() && self.open.is_empty()
    }

    /// Returns the first and the newest step.
    #[must_use]
    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((self.first()?.step, self.last()?.step))
    }

    /// Returns the positions of the first and the newest step.
    #[must_use]
    pub fn spots(&self) -> Option<(Spot, Spot)> {
        Some((self.first()?, self.last()?))
    }

    /// Returns the position of the first step.
    #[must_use]
    pub fn first(&self) -> Option<Spot> {
        self.leaves.first().map(|leaf| leaf.first).or_else(|| Some(self.open.first()?.spot))
    }

    /// Returns the position of the newest step.
    #[must_use]
    pub fn last(&self) -> Option<Spot> {
        self.open.last().map(|point| point.spot).or_else(|| Some(self.leaves.last()?.last))
    }

    /// Returns the starts of the attempts, oldest first.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Aggregates all steps: extremes, skips and the longest streak.
    #[must_use]
    pub fn aggregate(&self) -> Option<Bucket> {
        let mut whole: Option<Bucket> = None;
        let mut join = |bucket: &Bucket| {
            whole = Some(whole.take().map_or_else(|| bucket.clone(), |all| all.with(bucket)));
        };
        self.walk(0..self.leaves.len(), self.levels.len(), &mut join);
        self.open.iter().for_each(|point| join(&Bucket::one(point)));
        whole
    }

    /// Returns the step with the smallest value of a metric, and that value. If the leaf's rows are not
    /// in memory, returns the middle of the leaf.
    #[must_use]
    pub fn best(&self, metric: Metric) -> Option<(u64, f32)> {
        let least = self.aggregate()?.extent(metric)?.min;
        let is = |extent: Option<Extent>| extent.is_some_and(|extent| extent.min.to_bits() == least.to_bits());
        let within = |points: &[Point]| {
            points.iter().find(|point| point.value(metric).to_bits() == least.to_bits()).map(|p| p.spot.step)
        };
        let leaf = self.leaves.iter().position(|leaf| is(leaf.extent(metric)));
        let step = leaf.and_then(|place| {
            let leaf = &self.leaves[place];
            let exact = self.rows[place].as_deref().and_then(within);
            exact.or(Some(leaf.first.step + (leaf.last.step - leaf.first.step) / 2))
        });
        Some((step.or_else(|| within(&self.open))?, least))
    }

    /// Returns the first step since the last change of rung: those before were taken with other settings.
    #[must_use]
    pub fn first_on_rung(&self) -> u64 {
        let rung = self.segments.last().map(|segment| segment.rung);
        let own = self.segments.iter().rev().take_while(|segment| Some(segment.rung) == rung);
        own.last().map_or(0, |segment| segment.first)
    }

    /// Returns how many of the newest `count` steps from `first` on were skipped, and how many steps were counted.
    #[must_use]
    pub fn skipped_among(&self, count: usize, first: u64) -> (u64, u64) {
        let (mut skipped, mut of) = (0u64, 0usize);
        let points = |points: &[Point], of: &mut usize| {
            let newest = &points[points.len().saturating_sub(count - *of)..];
            let newest = &newest[newest.partition_point(|point| point.spot.step < first)..];
            *of += newest.len();
            newest.iter().filter(|point| point.skipped).count() as u64
        };
        skipped += points(&self.open, &mut of);
        for (leaf, rows) in self.leaves.iter().zip(&self.rows).rev() {
            if of >= count || leaf.last.step < first {
                break;
            }
            match rows {
                Some(rows) if of + rows.len() > count || leaf.first.step < first => skipped += points(rows, &mut of),
                _ => {
                    skipped += u64::from(leaf.skipped);
                    of += leaf.steps as usize;
                }
            }
        }
        (skipped, of as u64)
    }

    /// Returns the statistics of skipped steps.
    #[must_use]
    pub fn skips(&self) -> Skips {
        let whole = self.aggregate();
        let longest = whole.as_ref().map_or(0, |whole| u64::from(whole.longest));
        Skips { first: whole.and_then(|whole| whole.skipped_at), longest, streak: self.streak() }
    }

    /// Returns the number of consecutive skipped steps at the end of the curve.
    #[must_use]
    pub fn streak(&self) -> u64 {
        let mut streak = self.open.iter().rev().take_while(|point| point.skipped).count() as u64;
        if streak == self.open.len() as u64 {
            for leaf in self.leaves.iter().rev() {
                streak += u64::from(leaf.trail);
                if leaf.trail < leaf.steps {
                    break;
                }
            }
        }
        streak
    }

    /// Returns the newest step with a value of the metric, and that value, if the rows are in memory.
    #[must_use]
    pub fn newest(&self, metric: Metric) -> Option<(u64, f32)> {
        let within = |points: &[Point]| {
            let point = points.iter().rev().find(|point| point.value(metric).is_finite())?;
            Some((point.spot.step, point.value(metric)))
        };
        within(&self.open).or_else(|| {
            let place = self.leaves.iter().rposition(|leaf| leaf.extent(metric).is_some())?;
            within(self.rows[place].as_deref()?)
        })
    }

    /// Reports whether a later attempt rolled back past this step of an attempt.
    #[must_use]
    pub fn is_redone(&self, attempt: u64, step: u64) -> bool {
        self.segments.iter().any(|later| later.attempt > attempt && later.first <= step)
    }

    fn begin_segment(&mut self, attempt: u64, rung: usize, spot: Spot) {
        if self.segments.last().is_none_or(|segment| segment.attempt != attempt) {
            self.segments.push(Segment { first: spot.step, spot, attempt, rung });
        }
    }

    /// Turns the open rows into a leaf.
    fn close_leaf(&mut self) {
        let points = std::mem::take(&mut self.open);
        if let Some(leaf) = Bucket::of(&points) {
            self.add_leaf(leaf, Some(points.into()));
        }
        if self.held > HELD {
            self.release_rows(HELD / 2);
        }
    }

    fn add_leaf(&mut self, leaf: Bucket, rows: Option<Box<[Point]>>) {
        self.held += usize::from(rows.is_some());
        self.leaves.push(leaf);
        self.rows.push(rows);
        self.build_levels();
    }

    /// Releases all rows except those of the newest leaves.
    fn release_rows(&mut self, newest: usize) {
        let keep = self.rows.len().saturating_sub(newest);
        for rows in &mut self.rows[..keep] {
            self.held -= usize::from(rows.take().is_some());
        }
    }

    /// Builds the buckets that the newest leaf completed.
    fn build_levels(&mut self) {
        let mut level = 0;
        while self.leaves.len().is_multiple_of(FAN.pow(level as u32 + 1)) {
            let below = if level == 0 { &self.leaves } else { &self.levels[level - 1] };
            let whole = below[below.len() - FAN..].iter().cloned().reduce(|all, part| all.with(&part));
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].extend(whole);
            level += 1;
        }
    }

    /// Removes `step` and everything after it.
    fn truncate_from(&mut self, step: u64) {
        self.open.retain(|point| point.spot.step < step);
        let keep = self.leaves.partition_point(|leaf| leaf.last.step < step);
        if let Some(leaf) = self.leaves.get(keep)
            && leaf.first.step < step
        {
            match self.rows[keep].take() {
                Some(rows) => {
                    self.held -= 1;
                    self.open = rows.into_iter().filter(|point| point.spot.step < step).collect();
                }
                None => self.torn = true,
            }
        }
        self.leaves.truncate(keep);
        self.held -= self.rows.drain(keep..).flatten().count();
        for (level, buckets) in self.levels.iter_mut().enumerate() {
            buckets.truncate(keep / FAN.pow(level as u32 + 1));
        }
        self.segments.retain(|segment| segment.first < step);
    }
}

pub mod axis;
pub mod columns;
pub mod layers;
pub mod pyramid;
pub mod scale;

#[cfg(test)]
mod tests;
