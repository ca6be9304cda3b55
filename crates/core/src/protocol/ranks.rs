//! The ranks of a distributed training: where each one stands, and which one left the others first.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Ranks that a sentence lists.
const LISTED: usize = 4;

/// What a rank does. In each step it passes data, compute and reduction in this order; at the border after a step it runs
/// the script's own code, evaluates or saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankPhase {
    /// It waits for the next batch.
    Data,
    /// Forward and backward pass.
    Compute,
    /// It waits for the gradients of the other ranks: in the all-reduce, or the reduce-scatter of sharded weights.
    Reduction,
    /// The script's own code between two steps.
    Script,
    /// It evaluates.
    Evaluating,
    /// It saves.
    Saving,
    /// Its training took its last step.
    Ended,
    /// Somewhere in a training of which only steps are seen.
    Training,
}

impl RankPhase {
    /// Every phase; a companion names one by its place here.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Compute,
        Self::Reduction,
        Self::Script,
        Self::Evaluating,
        Self::Saving,
        Self::Ended,
        Self::Training,
    ];

    /// Returns the place between two steps: a rank with a lower one is behind.
    fn order(self) -> u8 {
        match self {
            Self::Script | Self::Evaluating | Self::Saving => 0,
            Self::Data => 1,
            Self::Compute | Self::Training => 2,
            Self::Reduction => 3,
            Self::Ended => 4,
        }
    }

    /// Returns the word for display.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Compute => "compute",
            Self::Reduction => "grad sync",
            Self::Script => "script",
            Self::Evaluating => "evaluating",
            Self::Saving => "saving",
            Self::Ended => "ended",
            Self::Training => "training",
        }
    }

    /// Returns the clause for a sentence.
    fn clause(self) -> &'static str {
        match self {
            Self::Data => "waiting for data",
            Self::Compute => "computing",
            Self::Reduction => "waiting in gradient sync",
            Self::Script => "in the script's own code",
            Self::Evaluating => "evaluating",
            Self::Saving => "saving",
            Self::Ended => "past its last step",
            Self::Training => "training",
        }
    }
}

/// State of a process, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs, or could (R).
    Running,
    /// It waits for something (S).
    Sleeping,
    /// It waits for a device or a file system, and no signal reaches it (D).
    Uninterruptible,
    /// A signal or a debugger stopped it (T, t).
    Stopped,
    /// It has ended, and its parent has not noticed (Z, X).
    Dead,
}

impl ProcessState {
    /// Reads the letter of `/proc/PID/stat`.
    #[must_use]
    pub fn of_letter(letter: &str) -> Option<Self> {
        Some(match letter {
            "R" => Self::Running,
            "S" | "I" => Self::Sleeping,
            "D" => Self::Uninterruptible,
            "T" | "t" => Self::Stopped,
            "Z" | "X" => Self::Dead,
            _ => return None,
        })
    }

    /// Returns the words for display.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Sleeping => "asleep",
            Self::Uninterruptible => "blocked in the kernel (D)",
            Self::Stopped => "stopped by a signal (T)",
            Self::Dead => "ended (Z)",
        }
    }
}

/// A sign that a rank differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankMark {
    /// Its loss was NaN or infinite before that of any other rank.
    NonFinite,
    /// Its mean loss is far from that of the others.
    LossApart,
    /// The others wait for it in each step.
    Straggler,
}

impl RankMark {
    /// Returns the words for display.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NonFinite => "loss not finite",
            Self::LossApart => "loss differs",
            Self::Straggler => "straggler",
        }
    }
}

/// A rank as of now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// Its number, from 0.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The number of its node, if it is not on that of the keeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The index of its GPU; none on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<u32>,
    /// The last step that it took.
    pub step: u64,
    /// What it does.
    pub phase: RankPhase,
    /// How long it has stood there, in milliseconds.
    pub stands_ms: u64,
    /// How long it has used no processor, in milliseconds.
    pub idle_ms: u64,
    /// The state of its process; none if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
    /// Its share of a processor, 1 = one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Mean time of a step, waits for other ranks included, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<f64>,
    /// Mean part of a step that it did not spend waiting for other ranks, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_ms: Option<f64>,
    /// Mean wait for data in a step, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_wait_ms: Option<f64>,
    /// Its newest finite loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Bytes in use: device memory that PyTorch has allocated, or without a GPU resident memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of device memory that PyTorch has reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// How it differs from the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<RankMark>,
}

impl RankRow {
    /// Returns where it stands: the rank with the lowest place is behind.
    fn place(&self) -> (u64, u8) {
        (self.step, self.phase.order())
    }

    /// Reports whether a signal has stopped its process, or it has ended.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        matches!(self.process, Some(ProcessState::Stopped | ProcessState::Dead))
    }
}

/// The rank that left the others first.
#[derive(Debug, Clone, PartialEq)]
pub struct Laggard<'a> {
    /// The rank.
    pub row: &'a RankRow,
    /// The number of ranks.
    pub world: usize,
    /// Ranks that wait for the gradients of all.
    pub waiting: usize,
    /// Other ranks that stand where it stands.
    pub beside: Vec<&'a RankRow>,
}

/// Finds the rank that the others wait for: one that was stopped, or else the one that stands at the lowest (step, phase).
/// Of several at the same place it is the one that has stood there longest. None if all have ended, or there is only one.
#[must_use]
pub fn find_laggard(rows: &[RankRow]) -> Option<Laggard<'_>> {
    let world = rows.len();
    let open = || rows.iter().filter(|row| row.phase != RankPhase::Ended);
    let halted = open().filter(|row| row.is_halted()).min_by_key(|row| (row.place(), row.rank));
    let first = halted.or_else(|| open().min_by_key(|row| (row.place(), u64::MAX - row.stands_ms, row.rank)))?;
    let others = || open().filter(|row| row.rank != first.rank);
    let waiting = others().filter(|row| row.phase == RankPhase::Reduction && row.place() > first.place()).count();
    let beside = others().filter(|row| row.place() == first.place()).collect();
    (world > 1).then_some(Laggard { row: first, world, waiting, beside })
}

impl Laggard<'_> {
    /// Reports whether no single rank left the others: all of them wait in the same reduction.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.row.phase == RankPhase::Reduction && !self.row.is_halted()
    }

    /// Reports whether it is one of several that stand at the lowest place, and nobody waits for them: some of them may wait
    /// for another one, and their places do not tell for which.
    #[must_use]
    pub fn is_one_of_several(&self) -> bool {
        !self.is_all() && !self.row.is_halted() && !self.beside.is_empty() && self.waiting == 0
    }

    /// Returns the ranks that stand at the lowest place.
    pub fn together(&self) -> impl Iterator<Item = &RankRow> {
        [self.row].into_iter().chain(self.beside.iter().copied())
    }

    /// Lists the ranks that stand at the lowest place: `ranks 0, 1, 2 and 61 more`.
    fn list(&self) -> String {
        let mut numbers: Vec<u32> = self.together().map(|row| row.rank).collect();
        numbers.sort_unstable();
        let (named, more) = numbers.split_at(numbers.len().min(LISTED));
        let mut words: Vec<String> = named.iter().map(ToString::to_string).collect();
        let last = if more.is_empty() { words.pop().unwrap_or_default() } else { format!("{} more", more.len()) };
        format!("ranks {} and {last}", words.join(", "))
    }
}

impl fmt::Display for Laggard<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, world, waiting, beside } = self;
        let within = row.step + 1;
        if self.is_all() {
            return write!(
                formatter,
                "all ranks wait in the gradient sync of step {within}: no rank left it, the network may"
            );
        }
        let (what, spot) = match row.phase.order() {
            0 => (row.phase.clause(), format!("after step {}", row.step)),
            _ => (row.phase.clause(), format!("in step {within}")),
        };
        if self.is_one_of_several() {
            return write!(formatter, "{} of {world} stand {spot}, {what}", self.list());
        }
        let place = format!("{what} {spot}");
        if !beside.is_empty() && !row.is_halted() {
            write!(formatter, "{} of {world} left first: {place}", self.list())?;
        } else {
            write!(formatter, "rank {} of {world} left first: {place}", row.rank)?;
        }
        if let Some(process) = row.process {
            write!(formatter, ", {}", process.describe())?;
        }
        match waiting {
            0 => Ok(()),
            1 => formatter.write_str("; 1 rank waits in gradient sync"),
            waiting => write!(formatter, "; {waiting} ranks wait in gradient sync"),
        }
    }
}

/// A collective operation, as PyTorch's flight recorder has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// Its number in the group of all ranks, from 1; 0 if none is recorded.
    pub number: u64,
    /// Its name: `gloo:all_reduce`.
    #[serde(default)]
    pub name: String,
    /// It is over on this rank.
    #[serde(default)]
    pub done: bool,
}

/// The spread of step times over the ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The least own time of a step, in milliseconds.
    pub least_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// The most.
    pub most_ms: f64,
}

/// Returns the spread of the ranks' own times; none before two ranks have been measured.
#[must_use]
pub fn find_spread(rows: &[RankRow]) -> Option<Spread> {
    let mut times: Vec<f64> = rows.iter().filter_map(|row| row.own_ms).collect();
    times.sort_by(f64::total_cmp);
    let (least_ms, most_ms) = (*times.first()?, *times.last()?);
    (times.len() > 1).then(|| Spread { least_ms, median_ms: median_of_sorted(&times), most_ms })
}

/// Returns the median of sorted values, of which there is at least one.
pub fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

#[cfg(test)]
mod tests;
