//! What neighbouring steps have in common: the pyramid below every chart.
//!
//! ```text
//! steps      s s s s s s s s s s s s s s s s …      one row each, in the table `steps`
//! leaves     [--- 64 steps ---][--- 64 ---] …       smallest, largest, mean, count of each figure;
//!                                                   skipped steps: how many, where, how long in a row
//! summaries  [----------- 1 024 steps ------------] the leaves of a block, one row in `summaries`
//! ```
//! The keeper writes a block once, when the run has left it; a reader takes whole leaves from there
//! and reads single steps only where it needs them. A block that is missing (an older store, the
//! newest steps, a keeper that died) is read from `steps`.

use crate::protocol::control::StepRow;

/// Steps of a leaf, at most.
pub const LEAF: u64 = 64;
/// Steps of a row of `summaries`.
pub const BLOCK: u64 = 1024;

/// A figure kept of every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Mean training loss.
    Loss,
    /// Norm of the gradient before clipping.
    GradNorm,
    /// Milliseconds of waiting for data and computing.
    StepMs,
    /// Learning rate.
    Lr,
    /// Milliseconds of waiting for data.
    DataWaitMs,
    /// Milliseconds of computing.
    ComputeMs,
    /// Share of the step spent waiting for data, 0 to 1.
    Waiting,
}

/// How many [`Metric`]s there are.
pub const METRICS: usize = 7;

impl Metric {
    /// All of them, in the order they are stored in.
    pub const ALL: [Self; METRICS] =
        [Self::Loss, Self::GradNorm, Self::StepMs, Self::Lr, Self::DataWaitMs, Self::ComputeMs, Self::Waiting];

    /// The name on the command line and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::GradNorm => "grad_norm",
            Self::StepMs => "step_ms",
            Self::Lr => "lr",
            Self::DataWaitMs => "data_wait_ms",
            Self::ComputeMs => "compute_ms",
            Self::Waiting => "waiting",
        }
    }
}

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
    /// That of one value; none where it is no number.
    #[must_use]
    pub fn one(value: f32) -> Option<Self> {
        value.is_finite().then_some(Self { min: value, max: value, mean: value, count: 1 })
    }

    /// The same in another unit.
    #[must_use]
    pub fn times(self, factor: f32) -> Self {
        Self { min: self.min * factor, max: self.max * factor, mean: self.mean * factor, count: self.count }
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

/// Where a step lies, on each of the axes a chart may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spot {
    /// Its number.
    pub step: u64,
    /// The clock after it.
    pub samples: u64,
    /// When it reached the keeper, Unix milliseconds.
    pub time_ms: i64,
}

/// The figures of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where it lies.
    pub spot: Spot,
    /// NaN where a figure is missing.
    pub values: [f32; METRICS],
    /// Whether the guard dropped it.
    pub skipped: bool,
}

impl Point {
    /// What charts keep of a row. A skipped step has no loss and no norm, and no time unless it was
    /// measured.
    #[must_use]
    pub fn of(row: &StepRow) -> Self {
        let figure = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let kept = |value: Option<f64>| figure(value.filter(|_| !row.skipped));
        let measured = !row.skipped || row.compute_ms > 0.0;
        let time = |value: f64| figure(measured.then_some(value));
        Self {
            spot: Spot { step: row.step, samples: row.samples, time_ms: row.time_ms },
            values: [
                kept(row.loss),
                kept(row.grad_norm),
                time(row.data_wait_ms + row.compute_ms),
                figure(Some(row.lr)),
                time(row.data_wait_ms),
                time(row.compute_ms),
                time(row.data_wait_ms / (row.data_wait_ms + row.compute_ms)),
            ],
            skipped: row.skipped,
        }
    }
}

/// What some neighbouring steps have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The first of them.
    pub first: Spot,
    /// The last.
    pub last: Spot,
    /// How many.
    pub steps: u32,
    /// How many of them the guard dropped.
    pub skipped: u32,
    /// Skipped ones in a row at the beginning.
    pub lead: u32,
    /// Skipped ones in a row at the end.
    pub trail: u32,
    /// The most skipped ones in a row.
    pub longest: u32,
    /// The first skipped step.
    pub skipped_at: Option<u64>,
    /// Each figure, in the order of [`Metric::ALL`]; none where no step has it.
    pub extents: [Option<Extent>; METRICS],
}

impl Bucket {
    /// That of one step.
    #[must_use]
    pub fn one(point: &Point) -> Self {
        let skipped = u32::from(point.skipped);
        Self {
            first: point.spot,
            last: point.spot,
            steps: 1,
            skipped,
            lead: skipped,
            trail: skipped,
            longest: skipped,
            skipped_at: point.skipped.then_some(point.spot.step),
            extents: point.values.map(Extent::one),
        }
    }

    /// That of some steps; none of none.
    pub fn of<'a>(points: impl IntoIterator<Item = &'a Point>) -> Option<Self> {
        points.into_iter().map(Self::one).reduce(|all, one| all.with(&one))
    }

    /// Both together; `other` comes later.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        let whole = |bucket: &Self| bucket.skipped == bucket.steps;
        let (all_mine, all_theirs) = (whole(&self), whole(other));
        self.longest = self.longest.max(other.longest).max(self.trail.saturating_add(other.lead));
        self.lead = if all_mine { self.lead.saturating_add(other.lead) } else { self.lead };
        self.trail = if all_theirs { self.trail.saturating_add(other.trail) } else { other.trail };
        self.last = other.last;
        self.steps = self.steps.saturating_add(other.steps);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.skipped_at = self.skipped_at.or(other.skipped_at);
        for (mine, theirs) in self.extents.iter_mut().zip(other.extents) {
            *mine = match (*mine, theirs) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (a, b) => a.or(b),
            };
        }
        self
    }
}

/// The leaves of some steps in order: a leaf ends where the next multiple of [`LEAF`] begins.
#[must_use]
pub fn leaves(points: &[Point]) -> Vec<Bucket> {
    points.chunk_by(|a, b| a.spot.step / LEAF == b.spot.step / LEAF).filter_map(Bucket::of).collect()
}

pub mod bytes;

#[cfg(test)]
mod tests;
