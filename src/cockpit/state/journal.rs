//! The journal in entries: checkpoints in a row fold into one entry, and so do the lines of one fault. Lines
//! are told apart by kind and level, never by their text.

use super::State;
use crate::protocol::control::{JournalKind, JournalRow};
use crate::protocol::worker::Level;

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalEntry<'a> {
    /// A line of its own.
    Line(&'a JournalRow),
    /// Two or more saved checkpoints in a row, oldest first.
    Checkpoints(Vec<&'a JournalRow>),
    /// A fault, from its first sign until training went on.
    Fault(Fault<'a>),
}

/// The lines of one fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault<'a> {
    /// Signs of it before the worker or the run ended, with the cause the keeper found.
    pub evidence: Vec<&'a JournalRow>,
    /// The end of the worker, or of the run.
    pub end: &'a JournalRow,
    /// How the keeper responded, and the next start.
    pub response: Vec<&'a JournalRow>,
    /// How it came out.
    pub outcome: Outcome<'a>,
}

/// Outcome of a fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome<'a> {
    /// Training went on; the line proves it with the steps before and after.
    Recovered(&'a JournalRow),
    /// The fault ended the run.
    Ended,
    /// The next worker has not taken a step yet.
    Open,
    /// Other events followed before a first step.
    Unknown,
}

/// Kinds of entries that the journal shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kinds {
    /// Every entry.
    #[default]
    All,
    /// Faults, errors and warnings.
    Faults,
    /// Shifts and restarts.
    Shifts,
    /// Checkpoints.
    Checkpoints,
    /// Requests, and what began or ended.
    Other,
}

impl Kinds {
    const ALL: [Self; 5] = [Self::All, Self::Faults, Self::Shifts, Self::Checkpoints, Self::Other];

    /// Returns the next choice, from the last back to the first.
    #[must_use]
    pub fn next(self) -> Self {
        let after = Self::ALL.iter().skip_while(|kinds| **kinds != self).nth(1);
        after.copied().unwrap_or_default()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "everything",
            Self::Faults => "faults and warnings",
            Self::Shifts => "shifts and restarts",
            Self::Checkpoints => "checkpoints",
            Self::Other => "other events",
        }
    }

    fn includes(self, entry: &JournalEntry<'_>) -> bool {
        let moves = |row: &JournalRow| matches!(row.kind, JournalKind::Shift | JournalKind::Restart);
        match (self, entry) {
            (Self::All, _)
            | (Self::Faults, JournalEntry::Fault(_))
            | (Self::Checkpoints, JournalEntry::Checkpoints(_)) => true,
            (Self::Faults, JournalEntry::Line(row)) => row.level != Level::Info,
            // A fault is answered by a shift or a restart.
            (Self::Shifts, JournalEntry::Fault(fault)) => fault.lines().any(moves),
            (Self::Shifts, JournalEntry::Line(row)) => moves(row),
            (Self::Checkpoints, JournalEntry::Line(row)) => row.kind == JournalKind::Checkpoint,
            (Self::Other, JournalEntry::Line(row)) => {
                row.level == Level::Info && !moves(row) && row.kind != JournalKind::Checkpoint
            }
            _ => false,
        }
    }
}

impl<'a> JournalEntry<'a> {
    /// Returns the newest line, which names the entry: it stays the same while older lines are dropped.
    #[must_use]
    pub fn anchor(&self) -> &'a JournalRow {
        match self {
            Self::Line(row) => row,
            Self::Checkpoints(rows) => rows[rows.len() - 1],
            Self::Fault(fault) => fault.end,
        }
    }
}

impl<'a> Fault<'a> {
    /// Returns every line, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &'a JournalRow> {
        let last = match self.outcome {
            Outcome::Recovered(row) => Some(row),
            Outcome::Ended | Outcome::Open | Outcome::Unknown => None,
        };
        self.evidence.iter().copied().chain([self.end]).chain(self.response.iter().copied()).chain(last)
    }

    /// Parses a fault at the start of the rows; returns it with the number of its rows.
    fn parse(rows: &[&'a JournalRow]) -> Option<(Self, usize)> {
        let is_sign = |row: &&&JournalRow| {
            matches!((row.kind, row.level), (JournalKind::Injected, _) | (JournalKind::Worker, Level::Warn))
        };
        let signs = rows.iter().take_while(is_sign).count();
        let end = rows.get(signs)?;
        let evidence = rows[..signs].to_vec();
        let (response, outcome) = match (end.kind, end.level) {
            (JournalKind::Worker, Level::Error) => parse_response(&rows[signs + 1..]),
            // A run that fails at once has no line about its worker.
            (JournalKind::Run, Level::Error) if signs > 0 => (Vec::new(), Outcome::Ended),
            _ => return None,
        };
        let fault = Self { evidence, end, response, outcome };
        let used = fault.lines().count();
        Some((fault, used))
    }
}

/// Parses the rows after the end of a worker: the response, the next start and the first step.
fn parse_response<'a>(rows: &[&'a JournalRow]) -> (Vec<&'a JournalRow>, Outcome<'a>) {
    let mut response = Vec::new();
    let mut started = false;
    for row in rows {
        match (row.kind, row.level) {
            (JournalKind::Shift | JournalKind::Restart, Level::Info) if started => {
                return (response, Outcome::Recovered(row));
            }
            (JournalKind::Run, Level::Error) => {
                response.push(*row);
                return (response, Outcome::Ended);
            }
            (JournalKind::Worker, Level::Info) => {
                started = true;
                response.push(*row);
            }
            // The next fault, or a run that goes on.
            (JournalKind::Worker | JournalKind::Injected, _) if started => return (response, Outcome::Unknown),
            (JournalKind::Worker, Level::Error) | (JournalKind::Run | JournalKind::Checkpoint, Level::Info) => {
                return (response, Outcome::Unknown);
            }
            _ => response.push(*row),
        }
    }
    (response, Outcome::Open)
}

/// Folds rows, oldest first, into entries.
#[must_use]
pub fn fold<'a>(rows: &[&'a JournalRow]) -> Vec<JournalEntry<'a>> {
    let is_save = |row: &&&JournalRow| (row.kind, row.level) == (JournalKind::Checkpoint, Level::Info);
    let mut entries = Vec::new();
    let mut rest = rows;
    while let [first, ..] = rest {
        let saves = rest.iter().take_while(is_save).count();
        let (entry, used) = match Fault::parse(rest) {
            Some((fault, used)) => (JournalEntry::Fault(fault), used),
            None if saves > 1 => (JournalEntry::Checkpoints(rest[..saves].to_vec()), saves),
            None => (JournalEntry::Line(first), 1),
        };
        entries.push(entry);
        rest = &rest[used..];
    }
    entries
}

/// Returns the entries that the journal shows, oldest first. A text filter finds single lines.
#[must_use]
pub fn shown_entries(state: &State) -> Vec<JournalEntry<'_>> {
    let filter = state.screen.filter.to_lowercase();
    let rows = state.facts.journal.iter();
    let kinds = state.screen.journal_kinds;
    let mut entries: Vec<JournalEntry<'_>> = if filter.is_empty() {
        fold(&rows.collect::<Vec<_>>())
    } else {
        rows.filter(|row| row.text.to_lowercase().contains(&filter)).map(JournalEntry::Line).collect()
    };
    entries.retain(|entry| kinds.includes(entry));
    entries
}

/// Returns the entry under the cursor of the journal.
#[must_use]
pub fn chosen_entry(state: &State) -> Option<JournalEntry<'_>> {
    let mut entries = shown_entries(state);
    let place = entries.len().checked_sub(1)?.saturating_sub(state.screen.journal_back);
    Some(entries.swap_remove(place))
}

/// Returns the fault that ended with this line of the journal.
#[must_use]
pub fn find_fault(state: &State, id: i64) -> Option<Fault<'_>> {
    let rows: Vec<&JournalRow> = state.facts.journal.iter().collect();
    fold(&rows).into_iter().find_map(|entry| match entry {
        JournalEntry::Fault(fault) if fault.end.id == id => Some(fault),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
