//! Claims of runs on the devices of this machine, and their order.
//!
//! ```text
//! Later ── the run it starts after is over ──▶ Queued ── its devices are free, no run is ahead ──▶ Holds
//!                                                 ▲                                                       │
//!                                                 └───────────── resumed ◀── Rests ◀── paused ────────────┘
//! ```
//! A run that is paused while it waits keeps its place, and lets the others pass: it is held.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A card of this machine, as far as it is known. At least one of the two is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// NVML's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The UUID of the card, or of a slice of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Card {
    /// Reports whether both are the same card, as far as is known. An index means another card after a change of
    /// hardware, so UUIDs decide where both are known.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.uuid, &other.uuid) {
            (Some(one), Some(two)) => one == two,
            _ => self.index.is_some() && self.index == other.index,
        }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.index, &self.uuid) {
            (Some(index), _) => write!(formatter, "cuda:{index}"),
            (None, uuid) => write!(formatter, "cuda:{}", uuid.as_deref().unwrap_or("?")),
        }
    }
}

/// The devices that a run occupies while it trains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Devices {
    /// The CPU.
    #[default]
    Cpu,
    /// These cards.
    Cards(Vec<Card>),
}

impl Devices {
    /// Reports whether both have a device in common.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> bool {
        match self {
            Self::Cpu => *other == Self::Cpu,
            Self::Cards(cards) => cards.iter().any(|card| other.contains(card)),
        }
    }

    fn contains(&self, card: &Card) -> bool {
        matches!(self, Self::Cards(cards) if cards.iter().any(|own| own.is_same(card)))
    }

    /// Returns those of these devices that one of the claims is for.
    fn claimed_by(&self, claims: &[&Claim]) -> Self {
        let Self::Cards(cards) = self else { return Self::Cpu };
        let is_claimed = |card: &&Card| claims.iter().any(|claim| claim.devices.contains(card));
        Self::Cards(cards.iter().filter(is_claimed).cloned().collect())
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cards(cards) => {
                let names: Vec<String> = cards.iter().map(ToString::to_string).collect();
                formatter.write_str(&names.join(", "))
            }
        }
    }
}

/// The claim that a run makes when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The devices.
    pub devices: Devices,
    /// Whether the run shares them with any other run.
    #[serde(default)]
    pub another: bool,
    /// Whether the run ends instead of waiting if its devices are in use when it starts. The user was not asked
    /// whether it should wait, because they were free a moment before.
    #[serde(default)]
    pub at_once: bool,
    /// The directory of the run that has to be over before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<PathBuf>,
}

/// A run's claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The devices.
    pub devices: Devices,
    /// The state of the claim.
    pub stage: Stage,
    /// Its place in the order of the queue, from 1; 0 without one. The order is stored by itself.
    #[serde(skip)]
    pub ticket: u64,
}

/// The state of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The run uses its devices.
    Holds,
    /// The run waits for its devices.
    Queued,
    /// The run waits for the end of another run, and blocks no other run.
    Later,
    /// The run is alive and uses no device.
    Rests,
}

impl Claim {
    /// Returns the run's name.
    #[must_use]
    pub fn run_name(&self) -> String {
        run_name(&self.run_dir)
    }

    /// Returns the obstacle to holding the devices; none if they are free, or held already. First come, first
    /// served: a claim that waits longer for one of the devices goes first, even if another of its devices is busy.
    #[must_use]
    pub fn obstacle<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Option<Waiting> {
        if self.stage == Stage::Holds {
            return None;
        }
        let is_ahead = |other: &Self| other.stage == Stage::Queued && (self.ticket == 0 || other.ticket < self.ticket);
        let is_rival =
            |other: &&Self| other.devices.overlap(&self.devices) && (other.stage == Stage::Holds || is_ahead(other));
        let mut rivals: Vec<&Self> = others.into_iter().filter(is_rival).collect();
        if rivals.is_empty() {
            return None;
        }
        rivals.sort_by_key(|rival| rival.ticket);
        let (holders, ahead): (Vec<&Self>, Vec<&Self>) = rivals.iter().partition(|rival| rival.stage == Stage::Holds);
        let names = |claims: &[&Self]| claims.iter().map(|claim| claim.run_name()).collect();
        let devices = self.devices.claimed_by(if holders.is_empty() { &ahead } else { &holders }).to_string();
        Some(Waiting::Devices { devices, holders: names(&holders), ahead: names(&ahead) })
    }
}

/// The place of a run that waits for its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its rank in the order of all waiting runs, whatever their devices.
    pub rank: u64,
    /// How it waits.
    pub wait: Wait,
}

/// How a run waits for its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is this many-th of those that wait for one of its devices, from 1.
    Number(usize),
    /// It waits for the end of another run.
    Later,
    /// It was held: others pass it until it is released.
    Held,
}

/// A change of a run's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChange {
    /// Another place.
    Move(Move),
    /// It keeps its place and lets others pass.
    Hold,
    /// It waits again.
    Release,
    /// It leaves the queue and ends before its first step.
    Remove,
}

/// A way to another place in the queue, among the runs that wait for one of the same devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Before all others.
    First,
    /// Behind all others.
    Last,
    /// One place sooner.
    Up,
    /// One place later.
    Down,
    /// To this place, from 1.
    To(usize),
}

impl Move {
    /// Returns the number of rivals that stay ahead. `ahead`: how many are now.
    #[must_use]
    pub fn new_ahead(self, ahead: usize, rivals: usize) -> usize {
        let wanted = match self {
            Self::First => 0,
            Self::Last => rivals,
            Self::Up => ahead.saturating_sub(1),
            Self::Down => ahead + 1,
            Self::To(number) => number.saturating_sub(1),
        };
        wanted.min(rivals)
    }
}

/// Text that names no place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a place in the queue; write first, last, up, down, or a number from 1")]
pub struct UnknownMove;

impl FromStr for Move {
    type Err = UnknownMove;

    fn from_str(text: &str) -> Result<Self, UnknownMove> {
        Ok(match text {
            "first" => Self::First,
            "last" => Self::Last,
            "up" => Self::Up,
            "down" => Self::Down,
            number => Self::To(number.parse().ok().filter(|number| *number > 0).ok_or(UnknownMove)?),
        })
    }
}

/// Returns the name of the run in a directory.
#[must_use]
pub fn run_name(run_dir: &std::path::Path) -> String {
    run_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The reason why a run may not start yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// It starts after this run.
    Run(String),
    /// Other runs use its devices, or are ahead of it in the queue.
    Devices {
        /// Its devices, for display.
        devices: String,
        /// The runs that use them.
        holders: Vec<String>,
        /// The runs that wait longer, next one first.
        ahead: Vec<String>,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (devices, holders, ahead) = match self {
            Self::Run(name) => return write!(formatter, "starts after {name}"),
            Self::Devices { devices, holders, ahead } => (devices, holders, ahead),
        };
        match &holders[..] {
            [] => write!(formatter, "{devices} is about to be free")?,
            some => write!(formatter, "{} {devices}", holds(some))?,
        }
        match &ahead[..] {
            [] => formatter.write_str("; next in the queue"),
            some => write!(formatter, "; number {} in the queue, after {}", some.len() + 1, some.join(", ")),
        }
    }
}

impl Waiting {
    /// Describes devices that are in use, for a run that does not wait for them; none if it waits for another run.
    #[must_use]
    pub fn occupation(&self) -> Option<String> {
        let Self::Devices { devices, holders, ahead } = self else { return None };
        let names: Vec<&str> = holders.iter().chain(ahead).map(String::as_str).collect();
        Some(format!("{devices} is in use by {}", names.join(", ")))
    }
}

fn holds(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "holds" } else { "hold" })
}

#[cfg(test)]
mod tests {
    use super::{Card, Claim, Devices, Move, Stage, Waiting};
    use std::path::PathBuf;

    fn cards(list: &[(Option<u32>, &str)]) -> Devices {
        let uuid = |text: &str| (!text.is_empty()).then(|| format!("GPU-{text}"));
        Devices::Cards(list.iter().map(|(index, text)| Card { index: *index, uuid: uuid(text) }).collect())
    }

    fn claim(name: &str, devices: &Devices, stage: Stage, ticket: u64) -> Claim {
        Claim { run_dir: PathBuf::from("/runs").join(name), devices: devices.clone(), stage, ticket }
    }

    #[test]
    fn a_card_is_the_same_by_whatever_both_know_of_it() {
        let table = [
            (cards(&[(Some(0), "a")]), cards(&[(Some(0), "a")]), true),
            (cards(&[(Some(0), "a")]), cards(&[(Some(0), "")]), true),
            (cards(&[(Some(0), "a")]), cards(&[(None, "a")]), true),
            (cards(&[(Some(0), "a")]), cards(&[(Some(1), "a")]), true),
            (cards(&[(Some(0), "a")]), cards(&[(Some(0), "b")]), false),
            (cards(&[(Some(0), "")]), cards(&[(None, "a")]), false),
            (cards(&[(Some(0), "a"), (Some(1), "b")]), cards(&[(Some(1), "b"), (Some(2), "c")]), true),
            (cards(&[(Some(0), "a")]), Devices::Cpu, false),
            (Devices::Cpu, Devices::Cpu, true),
        ];
        for (one, other, same) in table {
            assert_eq!((one.overlap(&other), other.overlap(&one)), (same, same), "{one:?} {other:?}");
        }
    }

    #[test]
    fn first_come_first_served_per_card() {
        let (zero, one, both) =
            (cards(&[(Some(0), "a")]), cards(&[(Some(1), "b")]), cards(&[(Some(0), "a"), (Some(1), "b")]));
        let all = [
            claim("holder", &zero, Stage::Holds, 0),
            claim("second", &both, Stage::Queued, 2),
            claim("third", &zero, Stage::Queued, 3),
            claim("patient", &one, Stage::Later, 1),
            claim("paused", &one, Stage::Rests, 0),
        ];
        let told =
            |claim: &Claim| claim.obstacle(all.iter().filter(|other| *other != claim)).map(|why| why.to_string());
        assert_eq!(told(&all[0]), None, "it holds its card already");
        assert_eq!(told(&all[1]).unwrap(), "holder holds cuda:0; next in the queue");
        assert_eq!(told(&all[2]).unwrap(), "holder holds cuda:0; number 2 in the queue, after second");
        let newcomer = claim("newcomer", &one, Stage::Queued, 0);
        assert_eq!(told(&newcomer).unwrap(), "cuda:1 is about to be free; number 2 in the queue, after second");
        assert_eq!(told(&claim("elsewhere", &cards(&[(Some(2), "c")]), Stage::Queued, 9)), None);
        assert_eq!(told(&claim("on the cpu", &Devices::Cpu, Stage::Queued, 9)), None);
        let alone = claim("patient", &one, Stage::Queued, 1);
        assert_eq!(alone.obstacle(&all[2..]), None, "it came before `second`");
    }

    #[test]
    fn a_move_ends_at_either_end_of_the_queue() {
        let moved = |text: &str, ahead| text.parse::<Move>().map(|to| to.new_ahead(ahead, 3));
        let table = [("first", 2, 0), ("last", 0, 3), ("up", 2, 1), ("up", 0, 0), ("down", 1, 2), ("down", 3, 3)];
        for (text, ahead, wanted) in table.into_iter().chain([("1", 3, 0), ("2", 3, 1), ("9", 0, 3)]) {
            assert_eq!(moved(text, ahead), Ok(wanted), "{text}");
        }
        assert!(["0", "-1", "top", ""].iter().all(|text| moved(text, 0).is_err()));
    }

    #[test]
    fn the_reason_reads_as_a_sentence() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(Waiting::Run("digits".to_owned()).to_string(), "starts after digits");
        let waiting =
            Waiting::Devices { devices: "cpu".to_owned(), holders: names(&["a", "b"]), ahead: names(&["c", "d"]) };
        assert_eq!(waiting.to_string(), "a, b hold cpu; number 3 in the queue, after c, d");
        assert_eq!(waiting.occupation().unwrap(), "cpu is in use by a, b, c, d");
    }
}
