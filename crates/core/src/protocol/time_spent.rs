//! Where the wall time of a run went: its kept steps, and everything else by its part. The parts add up to the wall time.
//!
//! The keeper charges time to a part as it passes. When steps are lost, their time moves to [`Part::Repeated`].

use super::run_state::RunState;
use crate::format::{counted, took};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Shorter parts are left out of texts.
const NOTICEABLE_MS: u64 = 50;

/// A part of the wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Steps whose result was kept: the useful part.
    Steps,
    /// Start of a worker, until it trains: imports, data, model, checkpoint.
    Start,
    /// Compilation of kernels.
    Compile,
    /// Evaluations.
    Evaluation,
    /// Saves during which training stood still.
    Save,
    /// Steps that were lost, and are taken again.
    Repeated,
    /// No progress until the keeper noticed.
    Hung,
    /// Wait for the card: other runs come first, or its memory is still held.
    Card,
    /// Wait before a restart, or for the card to cool.
    BackOff,
    /// End of a worker, with its last save.
    Stop,
    /// A pause that you requested.
    Paused,
    /// Anything else, such as time without a keeper.
    #[serde(other)]
    Other,
}

impl Part {
    /// Returns the part that a state of the run spends; none once the run is over.
    #[must_use]
    pub fn of(state: RunState) -> Option<Self> {
        match state {
            RunState::Training => Some(Self::Steps),
            RunState::Starting => Some(Self::Start),
            RunState::Compiling => Some(Self::Compile),
            RunState::Evaluating => Some(Self::Evaluation),
            RunState::Checkpointing => Some(Self::Save),
            RunState::AwaitingCard | RunState::AwaitingVram => Some(Self::Card),
            RunState::BackingOff => Some(Self::BackOff),
            RunState::Stopping => Some(Self::Stop),
            RunState::Paused => Some(Self::Paused),
            RunState::Recovering | RunState::Unattended | RunState::Interrupted => Some(Self::Other),
            RunState::Finished | RunState::Failed | RunState::NeedsPerson | RunState::Stopped => None,
        }
    }

    /// Returns its name for display.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Start => "start",
            Self::Compile => "compile",
            Self::Evaluation => "evaluation",
            Self::Save => "save",
            Self::Repeated => "steps repeated",
            Self::Hung => "hung",
            Self::Card => "waiting for the card",
            Self::BackOff => "waiting to restart",
            Self::Stop => "stop",
            Self::Paused => "paused",
            Self::Other => "other",
        }
    }
}

/// The wall time of a run, by part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpent {
    /// Milliseconds of each part.
    parts_ms: BTreeMap<Part, u64>,
    /// Workers that ended unasked.
    pub faults: u64,
    /// Milliseconds lost to them: steps repeated, hangs, and the way to the next step.
    pub lost_to_faults_ms: u64,
    /// Time of the newest charge, Unix milliseconds.
    pub as_of_ms: i64,
}

impl TimeSpent {
    /// Adds time to a part.
    pub fn charge(&mut self, part: Part, ms: u64) {
        if ms > 0 {
            *self.parts_ms.entry(part).or_default() += ms;
        }
    }

    /// Moves time from one part to another, as far as there is any. Returns how much.
    pub fn transfer(&mut self, from: Part, to: Part, ms: u64) -> u64 {
        let moved = self.ms(from).min(ms);
        if moved > 0 {
            *self.parts_ms.entry(from).or_default() -= moved;
            self.charge(to, moved);
        }
        moved
    }

    /// Returns the milliseconds of a part.
    #[must_use]
    pub fn ms(&self, part: Part) -> u64 {
        self.parts_ms.get(&part).copied().unwrap_or(0)
    }

    /// Returns the wall time in milliseconds: the sum of all parts.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.parts_ms.values().sum()
    }

    /// Returns the share of kept steps, 0 to 1; none before any time has passed.
    #[must_use]
    pub fn useful(&self) -> Option<f64> {
        let wall = self.wall_ms();
        (wall > 0).then(|| self.ms(Part::Steps) as f64 / wall as f64)
    }

    /// Formats the share: `97.3 %`. It never rounds up to 100 %.
    #[must_use]
    pub fn useful_text(&self) -> Option<String> {
        self.useful().map(|share| format!("{:.1} %", (share * 1000.0).floor() / 10.0))
    }

    /// Returns every part that took a noticeable time, the kept steps first: `steps 2 h 05 min`.
    #[must_use]
    pub fn parts_text(&self) -> Vec<String> {
        let steps = format!("{} {}", Part::Steps.name(), took(self.ms(Part::Steps)));
        [vec![steps], self.losses_text()].concat()
    }

    /// Returns the parts beside the kept steps, the longest first: `start 14.2 s`.
    #[must_use]
    pub fn losses_text(&self) -> Vec<String> {
        let mut parts: Vec<(Part, u64)> = self.parts_ms.iter().map(|(part, ms)| (*part, *ms)).collect();
        parts.retain(|(part, ms)| *ms >= NOTICEABLE_MS && *part != Part::Steps);
        parts.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
        parts.iter().map(|(part, ms)| format!("{} {}", part.name(), took(*ms))).collect()
    }
}

impl fmt::Display for TimeSpent {
    /// Writes the share and the loss: `useful 97.3 %, 11 min lost to 2 faults`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "useful {}", self.useful_text().unwrap_or_else(|| "0 %".to_owned()))?;
        if self.faults > 0 {
            write!(formatter, ", {} lost to {}", took(self.lost_to_faults_ms), counted(self.faults, "fault"))?;
        }
        Ok(())
    }
}

/// A row of a step, as far as its time is concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// The step.
    pub step: u64,
    /// When it ended, Unix milliseconds.
    pub time_ms: i64,
    /// Milliseconds that it computed and waited for data; 0 if that was not measured.
    pub own_ms: f64,
}

/// Returns the milliseconds that the steps of a worker's first line took, by those of its second one. The first line stands for as
/// many steps as the second, but no more than it counts.
#[must_use]
pub fn first_line_ms(first: u64, second: u64, second_ms: f64) -> f64 {
    let steps = second.saturating_sub(first);
    if steps == 0 { 0.0 } else { second_ms * first.min(steps) as f64 / steps as f64 }
}

/// Returns the milliseconds that the steps after `after` took, by the rows of one attempt in their order. A row stands for all
/// steps since the one before it, since a script may print every tenth. A measured step does not count the evaluation or save
/// before it.
#[must_use]
pub fn time_of_steps(rows: &[StepTime], after: u64) -> f64 {
    let ahead = before_first(rows);
    let of_row = |(place, row): (usize, &StepTime)| {
        let before = place.checked_sub(1).and_then(|place| rows.get(place)).or(ahead.as_ref());
        let gap = before.map(|before| row.time_ms.saturating_sub(before.time_ms).max(0) as f64);
        let measured = Some(row.own_ms).filter(|own| *own > 0.0);
        let took = match (measured, gap) {
            (Some(own), Some(gap)) if place > 0 => own.min(gap),
            (own, gap) => own.or(gap).unwrap_or(0.0),
        };
        let first = before.map_or(row.step.saturating_sub(1), |before| before.step);
        let (all, lost) = (row.step.saturating_sub(first), row.step.saturating_sub(first.max(after)));
        if measured.is_some() || all == 0 {
            took * f64::from(u8::from(lost > 0))
        } else {
            took * lost as f64 / all as f64
        }
    };
    rows.iter().enumerate().map(of_row).sum()
}

/// Returns when the first line would have begun, by the second one.
fn before_first(rows: &[StepTime]) -> Option<StepTime> {
    let [first, second, ..] = rows else { return None };
    let gap_ms = second.time_ms.saturating_sub(first.time_ms).max(0);
    let ms = first_line_ms(first.step, second.step, gap_ms as f64);
    let steps = second.step.saturating_sub(first.step).min(first.step);
    Some(StepTime { step: first.step - steps, time_ms: first.time_ms.saturating_sub(ms as i64), own_ms: 0.0 })
}

#[cfg(test)]
mod tests {
    use super::{Part, StepTime, TimeSpent, time_of_steps};

    #[test]
    fn the_parts_add_up_to_the_wall_time_whatever_moves() {
        let mut time = TimeSpent::default();
        for (part, ms) in [(Part::Start, 10_000), (Part::Steps, 900_000), (Part::Other, 5_000), (Part::Save, 85_000)] {
            time.charge(part, ms);
        }
        assert_eq!(time.wall_ms(), 1_000_000);
        assert_eq!(time.transfer(Part::Steps, Part::Repeated, 100_000), 100_000);
        assert_eq!(time.transfer(Part::Start, Part::Hung, 99_000), 10_000, "no more than there is");
        assert_eq!(time.wall_ms(), 1_000_000);
        assert_eq!(time.useful(), Some(0.8));
        assert_eq!(
            time.parts_text(),
            ["steps 13 min", "steps repeated 1 min 40 s", "save 1 min 25 s", "hung 10.0 s", "other 5.0 s"]
        );
    }

    #[test]
    fn the_share_says_what_faults_cost_and_is_never_rounded_up_to_all() {
        let mut time = TimeSpent::default();
        assert_eq!(time.to_string(), "useful 0 %");
        (time.faults, time.lost_to_faults_ms) = (2, 660_000);
        time.charge(Part::Steps, 9_739_000);
        time.charge(Part::Start, 261_000);
        assert_eq!(time.to_string(), "useful 97.3 %, 11 min lost to 2 faults");
        time.lost_to_faults_ms = 400;
        assert_eq!(time.to_string(), "useful 97.3 %, 0.4 s lost to 2 faults");
        let mut nearly = TimeSpent::default();
        nearly.charge(Part::Steps, 9_999_999);
        nearly.charge(Part::Start, 1);
        assert_eq!(nearly.to_string(), "useful 99.9 %");
    }

    #[test]
    fn lost_steps_count_with_their_own_time_where_it_is_known() {
        let row = |step, time_ms, own_ms| StepTime { step, time_ms, own_ms };
        // An evaluation of 5 s stands between 11 and 12.
        let measured = [row(10, 1_000, 100.0), row(11, 1_100, 100.0), row(12, 6_200, 100.0)];
        assert!((time_of_steps(&measured, 10) - 200.0).abs() < 1e-9);
        assert!((time_of_steps(&measured, 11) - 100.0).abs() < 1e-9);
        assert!(time_of_steps(&measured, 12).abs() < 1e-9);
        // A script prints every tenth step; it goes back to 45.
        let printed = [row(40, 0, 0.0), row(50, 1_000, 0.0), row(60, 2_000, 0.0)];
        assert!((time_of_steps(&printed, 45) - 1_500.0).abs() < 1e-9);
        // Its first line stands for ten steps as well.
        assert!((time_of_steps(&printed, 30) - 3_000.0).abs() < 1e-9);
        assert!((time_of_steps(&[row(1, 500, 0.0), row(100, 99_500, 0.0)], 0) - 100_000.0).abs() < 1e-9);
    }

    #[test]
    fn a_part_of_another_version_counts_as_other() {
        let time: TimeSpent = serde_json::from_str(
            r#"{"parts_ms":{"steps":70,"teleport":30},"faults":0,"lost_to_faults_ms":0,"as_of_ms":5}"#,
        )
        .unwrap();
        assert_eq!((time.ms(Part::Other), time.wall_ms()), (30, 100));
    }
}
