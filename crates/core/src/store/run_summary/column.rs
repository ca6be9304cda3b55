//! The columns of a list of runs, and the order that each of them gives.

use super::RunSummary;
use crate::protocol::control::RunState;
use std::cmp::{Ordering, Reverse};

/// A column that runs can be sorted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Column {
    /// The start: living runs, then those of the queue in its order, then the others; the newest first.
    #[default]
    Started,
    /// The name, in alphabetical order.
    Name,
    /// The state: living runs first.
    State,
    /// The time spent: the longest first.
    Duration,
    /// The share of useful time: the largest first.
    Useful,
    /// The steps taken: the most first.
    Steps,
    /// The best evaluation: the best first, among runs ranked by the same metric.
    Best,
    /// The device, in alphabetical order.
    Device,
    /// The current rung: the fastest first.
    Rung,
    /// Overrides by `--set`, in alphabetical order; runs without any come last.
    Set,
    /// The tags, in alphabetical order; runs without any come last.
    Tags,
}

/// A name that is not a column's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown column; choose from: {}", Column::ALL.map(Column::name).join(", "))]
pub struct UnknownColumn;

impl Column {
    /// All columns, in the order in which a key goes through them.
    pub const ALL: [Self; 11] = [
        Self::Started,
        Self::Name,
        Self::State,
        Self::Duration,
        Self::Useful,
        Self::Steps,
        Self::Best,
        Self::Device,
        Self::Rung,
        Self::Set,
        Self::Tags,
    ];

    /// Returns its heading.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Name => "name",
            Self::State => "state",
            Self::Duration => "duration",
            Self::Useful => "useful",
            Self::Steps => "steps",
            Self::Best => "best",
            Self::Device => "device",
            Self::Rung => "rung",
            Self::Set => "set",
            Self::Tags => "tags",
        }
    }

    /// Parses its name.
    ///
    /// # Errors
    /// Returns an error that lists the names.
    pub fn parse(name: &str) -> Result<Self, UnknownColumn> {
        Self::ALL.into_iter().find(|column| column.name() == name).ok_or(UnknownColumn)
    }

    /// Returns the next column; the first follows the last.
    #[must_use]
    pub fn next(self) -> Self {
        let place = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }

    /// Orders two runs.
    #[must_use]
    pub fn compare(self, a: &RunSummary, b: &RunSummary, now_ms: i64) -> Ordering {
        match self {
            Self::Started => {
                known_first(life_rank(a), life_rank(b)).then_with(|| Reverse(start_ms(a)).cmp(&Reverse(start_ms(b))))
            }
            Self::Name => a.name.cmp(&b.name),
            Self::State => state_rank(a).cmp(&state_rank(b)).then_with(|| life_rank(a).cmp(&life_rank(b))),
            Self::Duration => Reverse(a.duration_ms(now_ms)).cmp(&Reverse(b.duration_ms(now_ms))),
            Self::Useful => useful(b).total_cmp(&useful(a)),
            Self::Steps => Reverse(step(a)).cmp(&Reverse(step(b))),
            Self::Best => compare_best(a, b),
            Self::Device => known_first(device(a), device(b)),
            Self::Rung => known_first(a.status.as_ref().map(|s| s.rung), b.status.as_ref().map(|s| s.rung)),
            Self::Set => {
                known_first(a.overrides.first(), b.overrides.first()).then_with(|| a.overrides.cmp(&b.overrides))
            }
            Self::Tags => known_first(a.labels.tags.first(), b.labels.tags.first())
                .then_with(|| a.labels.tags.cmp(&b.labels.tags)),
        }
    }
}

/// Returns the start; of a run that still waits for its first worker, the time of its run file.
fn start_ms(run: &RunSummary) -> Option<i64> {
    run.times.started_ms.or(run.created_ms)
}

/// Living runs that have their devices, then those of the queue in its order; none for others.
fn life_rank(run: &RunSummary) -> Option<u64> {
    run.place.map(|place| place.rank.max(1)).or_else(|| run.runs_on().then_some(0))
}

fn step(run: &RunSummary) -> Option<u64> {
    run.status.as_ref().map(|status| status.step)
}

/// Returns the share of useful time; a run without one comes last.
fn useful(run: &RunSummary) -> f64 {
    run.status.as_ref().and_then(|status| status.time.useful()).unwrap_or(-1.0)
}

fn device(run: &RunSummary) -> Option<&str> {
    run.status.as_ref()?.device.as_deref()
}

/// Living runs, then those that need attention, then the others by the name of their state.
fn state_rank(run: &RunSummary) -> (u8, &'static str) {
    let word = run.status.as_ref().map_or("", |status| status.state.word());
    let rank = match run.status.as_ref().map(|status| status.state) {
        _ if run.runs_on() => 0,
        Some(RunState::NeedsPerson | RunState::Failed | RunState::Interrupted) => 1,
        Some(_) => 2,
        None => 3,
    };
    (rank, word)
}

/// Orders by the ranking metric's name and its goal, then by its value.
fn compare_best(a: &RunSummary, b: &RunSummary) -> Ordering {
    let best = |run: &RunSummary| run.status.as_ref().and_then(|status| status.best.clone());
    match (best(a), best(b)) {
        (Some(x), Some(y)) => {
            let kind = x.metric.cmp(&y.metric).then(a.ranking.goal.cmp(&b.ranking.goal));
            kind.then_with(|| a.ranking.compare(x.value, y.value))
        }
        (x, y) => y.is_some().cmp(&x.is_some()),
    }
}

/// Orders known values before unknown ones.
fn known_first<T: Ord>(a: Option<T>, b: Option<T>) -> Ordering {
    match (a, b) {
        (Some(x), Some(y)) => x.cmp(&y),
        (x, y) => y.is_some().cmp(&x.is_some()),
    }
}

/// Sorts runs by a column. Runs that it does not tell apart keep their order: the newest first.
pub fn sort_runs<T>(runs: &mut [T], of: impl Fn(&T) -> &RunSummary, column: Column, reverse: bool, now_ms: i64) {
    runs.sort_by(|a, b| {
        let order = column.compare(of(a), of(b), now_ms);
        if reverse { order.reverse() } else { order }
    });
}
