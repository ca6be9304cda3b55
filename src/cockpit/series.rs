//! The curve of a run, of any length: a cost of drawing that depends on the width of the chart
//! alone, and memory that holds single steps only where they are looked at.
//!
//! ```text
//! steps     ·················· r r r r r r r r      rows of the newest steps, and of a part that a
//!                                                   chart shows closely
//! leaves    [- 64 -][- 64 -][- 64 -][- 64 -] …      min, max, mean, skipped of each figure; all kept
//! level 1   [---------- 8 leaves -----------] …     the same of 8 leaves, and so on
//! ```
//! Leaves come from the store or are made of the rows that the keeper sends. A range is walked in
//! the largest full buckets that fit; where a column is finer than a leaf and the rows are not
//! held, [`Series::missing`] says which to read, and until they are there the leaf is drawn.
//! Going back to an earlier step (a restart redoes it) cuts every level.

pub use crate::store::summary::{Extent, Metric};
pub use axis::Axis;

use crate::protocol::control::StepRow;
use crate::store::summary::{Bucket, LEAF, Point, Spot};

const FAN: usize = 8;
/// Leaves whose rows are kept at the newest end at least.
const NEWEST: usize = 64;
/// Leaves whose rows are kept at most before some are let go.
const HELD: usize = 1024;

/// What a chart draws in one of its columns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Column {
    /// The figure over the steps of the column; none where all were skipped or there is no step.
    pub extent: Option<Extent>,
    /// How many of its steps the guard dropped.
    pub skipped: u32,
    /// How many steps it has.
    pub rows: u32,
}

/// What is known about skipped steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skips {
    /// The first one.
    pub first: Option<u64>,
    /// The most in a row.
    pub longest: u64,
    /// Those in a row up to the newest step.
    pub streak: u64,
}

/// Where an attempt begins on the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its first step.
    pub first: u64,
    /// The same on every axis.
    pub spot: Spot,
    /// The attempt.
    pub attempt: u64,
    /// Its rung.
    pub rung: usize,
}

/// The curve. Rows must come in the order they were taken; of a step taken again, the row of the
/// highest attempt is kept.
#[derive(Debug, Clone, Default)]
pub struct Series {
    leaves: Vec<Bucket>,
    /// The rows of each leaf, where they are held.
    rows: Vec<Option<Box<[Point]>>>,
    /// How many leaves have their rows.
    held: usize,
    /// The newest rows, not yet a leaf.
    open: Vec<Point>,
    levels: Vec<Vec<Bucket>>,
    segments: Vec<Segment>,
    torn: bool,
}

impl Series {
    /// Takes a row in; false when it was known already or belongs to a past attempt.
    pub fn push(&mut self, row: &StepRow) -> bool {
        let attempt = self.segments.last().map(|segment| segment.attempt);
        let (known, past) = (self.last().is_some_and(|last| row.step <= last.step), attempt > Some(row.attempt));
        if past || (known && attempt == Some(row.attempt)) {
            return false;
        }
        if known {
            self.cut(row.step);
        }
        let point = Point::of(row);
        self.begin(row.attempt, row.rung, point.spot);
        self.open.push(point);
        if self.open.len() as u64 == LEAF {
            self.close();
        }
        true
    }

    /// Takes in neighbouring steps of the store that come after all that is known.
    pub fn extend(&mut self, attempt: u64, rung: usize, leaf: &Bucket) {
        self.close();
        self.begin(attempt, rung, leaf.first);
        self.add(*leaf, None);
    }

    /// How many steps there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut steps = self.open.len();
        self.walk(0..self.leaves.len(), self.levels.len(), |bucket| steps += bucket.steps as usize);
        steps
    }

    /// True before the first step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty() && self.open.is_empty()
    }

    /// The first and the newest step.
    #[must_use]
    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((self.first()?.step, self.last()?.step))
    }

    /// Where the first and the newest step lie.
    #[must_use]
    pub fn spots(&self) -> Option<(Spot, Spot)> {
        Some((self.first()?, self.last()?))
    }

    /// Where the first step lies.
    #[must_use]
    pub fn first(&self) -> Option<Spot> {
        self.leaves.first().map(|leaf| leaf.first).or_else(|| Some(self.open.first()?.spot))
    }

    /// Where the newest step lies.
    #[must_use]
    pub fn last(&self) -> Option<Spot> {
        self.open.last().map(|point| point.spot).or_else(|| Some(self.leaves.last()?.last))
    }

    /// Where attempts begin, oldest first.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All steps together: extremes, skips, the longest streak.
    #[must_use]
    pub fn whole(&self) -> Option<Bucket> {
        let mut whole: Option<Bucket> = None;
        let mut join = |bucket: &Bucket| whole = Some(whole.map_or(*bucket, |all| all.with(bucket)));
        self.walk(0..self.leaves.len(), self.levels.len(), &mut join);
        self.open.iter().for_each(|point| join(&Bucket::one(point)));
        whole
    }

    /// The step with the smallest value of a figure, and the value. Within a leaf whose rows are
    /// not held, the leaf's middle.
    #[must_use]
    pub fn best(&self, metric: Metric) -> Option<(u64, f32)> {
        let least = self.whole()?.extents[metric as usize]?.min;
        let is = |extent: Option<Extent>| extent.is_some_and(|extent| extent.min.to_bits() == least.to_bits());
        let within = |points: &[Point]| {
            points.iter().find(|point| point.values[metric as usize].to_bits() == least.to_bits()).map(|p| p.spot.step)
        };
        let leaf = self.leaves.iter().position(|leaf| is(leaf.extents[metric as usize]));
        let step = leaf.and_then(|place| {
            let leaf = &self.leaves[place];
            let exact = self.rows[place].as_deref().and_then(within);
            exact.or(Some(leaf.first.step + (leaf.last.step - leaf.first.step) / 2))
        });
        Some((step.or_else(|| within(&self.open))?, least))
    }

    /// Skipped ones among the newest `count` steps, and how many steps that really were.
    #[must_use]
    pub fn skipped_among(&self, count: usize) -> (u64, u64) {
        let (mut skipped, mut of) = (0u64, 0usize);
        let points = |points: &[Point], of: &mut usize| {
            let newest = &points[points.len().saturating_sub(count - *of)..];
            *of += newest.len();
            newest.iter().filter(|point| point.skipped).count() as u64
        };
        skipped += points(&self.open, &mut of);
        for (leaf, rows) in self.leaves.iter().zip(&self.rows).rev() {
            if of >= count {
                break;
            }
            match rows {
                Some(rows) if of + rows.len() > count => skipped += points(rows, &mut of),
                _ => {
                    skipped += u64::from(leaf.skipped);
                    of += leaf.steps as usize;
                }
            }
        }
        (skipped, of as u64)
    }

    /// What is known about skipped steps.
    #[must_use]
    pub fn skips(&self) -> Skips {
        let whole = self.whole();
        let longest = whole.map_or(0, |whole| u64::from(whole.longest));
        Skips { first: whole.and_then(|whole| whole.skipped_at), longest, streak: self.streak() }
    }

    /// Skipped steps in a row at the end of the curve.
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

    /// The newest value of a figure and its step, where the rows are held.
    #[must_use]
    pub fn newest(&self, metric: Metric) -> Option<(u64, f32)> {
        let within = |points: &[Point]| {
            let point = points.iter().rev().find(|point| point.values[metric as usize].is_finite())?;
            Some((point.spot.step, point.values[metric as usize]))
        };
        within(&self.open).or_else(|| {
            let place = self.leaves.iter().rposition(|leaf| leaf.extents[metric as usize].is_some())?;
            within(self.rows[place].as_deref()?)
        })
    }

    fn begin(&mut self, attempt: u64, rung: usize, spot: Spot) {
        if self.segments.last().is_none_or(|segment| segment.attempt != attempt) {
            self.segments.push(Segment { first: spot.step, spot, attempt, rung });
        }
    }

    /// Makes a leaf of the open rows.
    fn close(&mut self) {
        let points = std::mem::take(&mut self.open);
        if let Some(leaf) = Bucket::of(&points) {
            self.add(leaf, Some(points.into()));
        }
        if self.held > HELD {
            self.release(HELD / 2);
        }
    }

    fn add(&mut self, leaf: Bucket, rows: Option<Box<[Point]>>) {
        self.held += usize::from(rows.is_some());
        self.leaves.push(leaf);
        self.rows.push(rows);
        self.fold();
    }

    /// Lets go of all rows but those of the newest leaves.
    fn release(&mut self, newest: usize) {
        let keep = self.rows.len().saturating_sub(newest);
        for rows in &mut self.rows[..keep] {
            self.held -= usize::from(rows.take().is_some());
        }
    }

    /// Builds the buckets that the newest leaf filled.
    fn fold(&mut self) {
        let mut level = 0;
        while self.leaves.len().is_multiple_of(FAN.pow(level as u32 + 1)) {
            let below = if level == 0 { &self.leaves } else { &self.levels[level - 1] };
            let whole = below[below.len() - FAN..].iter().copied().reduce(|all, part| all.with(&part));
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].extend(whole);
            level += 1;
        }
    }

    /// Forgets `step` and everything after it.
    fn cut(&mut self, step: u64) {
        self.open.retain(|point| point.spot.step < step);
        let keep = self.leaves.partition_point(|leaf| leaf.last.step < step);
        if let Some(leaf) = self.leaves.get(keep)
            && leaf.first.step < step
        {
            match self.rows[keep].take() {
                Some(rows) => {
                    self.held -= 1;
                    self.open = rows.iter().copied().filter(|point| point.spot.step < step).collect();
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
mod columns;
pub mod pyramid;
pub use columns::At;

#[cfg(test)]
mod tests;
