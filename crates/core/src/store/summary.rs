//! Summaries of neighbouring steps: the pyramid behind every chart.
//!
//! ```text
//! steps      s s s s s s s s s s s s s s s s …      one row each, in the table `steps`
//! leaves     [--- 64 steps ---][--- 64 ---] …       minimum, maximum, mean, count of each metric, named ones too;
//!                                                   skipped steps: how many, where, how long in a row
//! summaries  [----------- 1 024 steps ------------] the leaves of a block, one row in `summaries`
//! ```
//! The keeper writes a block once, after the run has left it. A reader uses whole leaves from there
//! and reads single steps only where needed. A missing block (an older store, the newest steps, a
//! keeper that died) is read from `steps`.

use crate::protocol::control::StepRow;

/// Maximum number of steps in a leaf.
pub const LEAF: u64 = 64;
/// Steps in a row of `summaries`.
pub const BLOCK: u64 = 1024;

/// A metric kept for every step, or reported under a name by some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Mean training loss.
    Loss,
    /// Norm of the gradient before clipping.
    GradNorm,
    /// Milliseconds spent on waiting for data and computing.
    StepMs,
    /// Learning rate.
    Lr,
    /// Milliseconds spent waiting for data.
    DataWaitMs,
    /// Milliseconds spent computing.
    ComputeMs,
    /// Share of the step spent waiting for data, 0 to 1.
    Waiting,
    /// A metric with a name of its own.
    Named(MetricId),
}

/// Number of metrics that every step has.
pub const METRICS: usize = 7;

impl Metric {
    /// The metrics that every step has, in storage order.
    pub const ALL: [Self; METRICS] =
        [Self::Loss, Self::GradNorm, Self::StepMs, Self::Lr, Self::DataWaitMs, Self::ComputeMs, Self::Waiting];

    /// Returns the metric with a name on the command line and in files.
    #[must_use]
    pub fn find(name: &str, names: &MetricNames) -> Option<Self> {
        let known = Self::ALL.into_iter().find(|metric| metric.name(names) == name);
        known.or_else(|| names.find(name).map(Self::Named))
    }

    /// Returns the name on the command line and in files.
    #[must_use]
    pub fn name(self, names: &MetricNames) -> &str {
        match self {
            Self::Loss => "loss",
            Self::GradNorm => "grad_norm",
            Self::StepMs => "step_ms",
            Self::Lr => "lr",
            Self::DataWaitMs => "data_wait_ms",
            Self::ComputeMs => "compute_ms",
            Self::Waiting => "waiting",
            Self::Named(id) => names.name(id).unwrap_or_default(),
        }
    }

    /// Returns the place among the metrics that every step has, or the id of the name.
    fn place(self) -> Result<usize, MetricId> {
        Ok(match self {
            Self::Loss => 0,
            Self::GradNorm => 1,
            Self::StepMs => 2,
            Self::Lr => 3,
            Self::DataWaitMs => 4,
            Self::ComputeMs => 5,
            Self::Waiting => 6,
            Self::Named(id) => return Err(id),
        })
    }
}

/// Minimum, maximum and mean of a metric over some steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Minimum.
    pub min: f32,
    /// Maximum.
    pub max: f32,
    /// Mean.
    pub mean: f32,
    /// Number of steps that have the metric; never 0.
    pub count: u32,
}

impl Extent {
    /// Creates the extent of one value; none for NaN or infinity.
    #[must_use]
    pub fn one(value: f32) -> Option<Self> {
        value.is_finite().then_some(Self { min: value, max: value, mean: value, count: 1 })
    }

    /// Converts to another unit.
    #[must_use]
    pub fn times(self, factor: f32) -> Self {
        Self { min: self.min * factor, max: self.max * factor, mean: self.mean * factor, count: self.count }
    }

    /// Merges two extents.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let count = self.count.saturating_add(other.count);
        let share = f64::from(other.count) / f64::from(count);
        let mean = f64::from(self.mean) + (f64::from(other.mean) - f64::from(self.mean)) * share;
        Self { min: self.min.min(other.min), max: self.max.max(other.max), mean: mean as f32, count }
    }
}

/// Position of a step, on each possible chart axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spot {
    /// The step number.
    pub step: u64,
    /// The run's clock after the step.
    pub samples: u64,
    /// Arrival at the keeper, Unix milliseconds.
    pub time_ms: i64,
}

impl Spot {
    /// Returns the midpoint between this and a later position.
    #[must_use]
    pub fn middle(self, later: Self) -> Self {
        Self {
            step: self.step + later.step.saturating_sub(self.step) / 2,
            samples: self.samples + later.samples.saturating_sub(self.samples) / 2,
            time_ms: self.time_ms + later.time_ms.saturating_sub(self.time_ms) / 2,
        }
    }
}

/// The metrics of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The position of the step.
    pub spot: Spot,
    /// Value of each metric that every step has; NaN when missing.
    pub values: [f32; METRICS],
    /// The named metrics it reports.
    pub named: Box<[(MetricId, f32)]>,
    /// Whether the guard dropped the step.
    pub skipped: bool,
}

impl Point {
    /// Returns the part of a row that charts use, and adds its names. A skipped step has no loss and no
    /// norm; a step that was not measured has no time.
    #[must_use]
    pub fn of(row: &StepRow, names: &mut MetricNames) -> Self {
        let find = |(name, value): (&String, &f64)| Some((names.find_or_add(name)?, *value as f32));
        let figure = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let kept = |value: Option<f64>| figure(value.filter(|_| !row.skipped));
        let time = |value: f64| figure((row.compute_ms > 0.0).then_some(value));
        Self {
            spot: Spot { step: row.step, samples: row.samples, time_ms: row.time_ms },
            values: [
                kept(row.loss),
                kept(row.grad_norm),
                time(row.data_wait_ms + row.compute_ms),
                figure(row.lr),
                time(row.data_wait_ms),
                time(row.compute_ms),
                time(row.data_wait_ms / (row.data_wait_ms + row.compute_ms)),
            ],
            named: row.metrics.iter().filter_map(find).collect(),
            skipped: row.skipped,
        }
    }

    /// Returns the value of a metric; NaN when missing.
    #[must_use]
    pub fn value(&self, metric: Metric) -> f32 {
        match metric.place() {
            Ok(place) => self.values[place],
            Err(id) => self.named.iter().find(|(known, _)| *known == id).map_or(f32::NAN, |(_, value)| *value),
        }
    }
}

/// A summary of neighbouring steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// Position of the first step.
    pub first: Spot,
    /// Position of the last step.
    pub last: Spot,
    /// Number of steps.
    pub steps: u32,
    /// Number of skipped steps.
    pub skipped: u32,
    /// Skipped steps in a row at the beginning.
    pub lead: u32,
    /// Skipped steps in a row at the end.
    pub trail: u32,
    /// Longest streak of skipped steps.
    pub longest: u32,
    /// The first skipped step.
    pub skipped_at: Option<u64>,
    /// Extent of each metric, in the order of [`Metric::ALL`]; none when no step has it.
    pub extents: [Option<Extent>; METRICS],
    /// Extents of the named metrics.
    pub named: NamedExtents,
}

impl Bucket {
    /// Creates the summary of one step.
    #[must_use]
    pub fn one(point: &Point) -> Self {
        let skipped = u32::from(point.skipped);
        let mut named = NamedExtents::default();
        for (id, value) in &point.named {
            if let Some(extent) = Extent::one(*value) {
                named.add(*id, extent);
            }
        }
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
            named,
        }
    }

    /// Returns the extent of a metric; none when no step has it.
    #[must_use]
    pub fn extent(&self, metric: Metric) -> Option<Extent> {
        match metric.place() {
            Ok(place) => self.extents[place],
            Err(id) => self.named.get(id),
        }
    }

    /// Creates the summary of several steps; none without steps.
    pub fn of<'a>(points: impl IntoIterator<Item = &'a Point>) -> Option<Self> {
        points.into_iter().map(Self::one).reduce(|all, one| all.with(&one))
    }

    /// Merges two summaries; `other` comes later.
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
        self.named.merge(&other.named);
        self
    }
}

/// Groups consecutive steps into leaves: a leaf ends where the next multiple of [`LEAF`] begins.
#[must_use]
pub fn leaves(points: &[Point]) -> Vec<Bucket> {
    points.chunk_by(|a, b| a.spot.step / LEAF == b.spot.step / LEAF).filter_map(Bucket::of).collect()
}

pub mod bytes;
mod named;

pub use named::{MetricId, MetricNames, NamedExtents};

#[cfg(test)]
mod tests;
