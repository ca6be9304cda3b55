use super::{JournalEntry, Kinds, Outcome, fold, shown_entries};
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::protocol::control::{JournalKind as Kind, JournalRow};
use crate::protocol::worker::Level::{self, Error, Info, Warn};
use proptest::prelude::*;

fn rows(lines: &[(Kind, Level)]) -> Vec<JournalRow> {
    let row = |(place, (kind, level)): (usize, &(Kind, Level))| JournalRow {
        id: 10 + i64::try_from(place).unwrap(),
        time_ms: 1_000 * i64::try_from(place).unwrap(),
        step: Some(place as u64),
        level: *level,
        kind: *kind,
        text: format!("line {place}"),
    };
    lines.iter().enumerate().map(row).collect()
}

/// Returns the shape of the entries: `1` for a line, `c3` for three checkpoints, `f2+1+3 recovered` for a fault
/// with two signs, its end and a response of three lines.
fn shape(lines: &[(Kind, Level)]) -> String {
    let rows = rows(lines);
    let entry = |entry: &JournalEntry<'_>| match entry {
        JournalEntry::Line(_) => "1".to_owned(),
        JournalEntry::Checkpoints(rows) => format!("c{}", rows.len()),
        JournalEntry::Fault(fault) => {
            let outcome = match fault.outcome {
                Outcome::Recovered(_) => "recovered",
                Outcome::Ended => "ended",
                Outcome::Open => "open",
                Outcome::Unknown => "unknown",
            };
            format!("f{}+1+{} {outcome}", fault.evidence.len(), fault.response.len())
        }
    };
    fold(&rows.iter().collect::<Vec<_>>()).iter().map(entry).collect::<Vec<_>>().join(" | ")
}

const SAVE: (Kind, Level) = (Kind::Checkpoint, Info);
const SIGN: (Kind, Level) = (Kind::Worker, Warn);
const END: (Kind, Level) = (Kind::Worker, Error);
const START: (Kind, Level) = (Kind::Worker, Info);
const DOWN: (Kind, Level) = (Kind::Shift, Warn);
const AGAIN: (Kind, Level) = (Kind::Restart, Info);

#[test]
fn checkpoints_in_a_row_are_one_entry_and_other_lines_stay_visible() {
    assert_eq!(shape(&[SAVE, SAVE, SAVE]), "c3");
    assert_eq!(shape(&[START, SAVE, (Kind::Shift, Info), SAVE, SAVE, (Kind::Skip, Warn)]), "1 | 1 | 1 | c2 | 1");
    assert_eq!(shape(&[SAVE, (Kind::Checkpoint, Error), SAVE]), "1 | 1 | 1", "a failed save is never folded away");
}

#[test]
fn the_lines_of_a_fault_are_one_entry() {
    let injected = (Kind::Injected, Warn);
    let whole = [SAVE, injected, SIGN, END, DOWN, START, START, (Kind::Shift, Info), SAVE];
    assert_eq!(shape(&whole), "1 | f2+1+3 recovered | 1");
    assert_eq!(shape(&[SIGN, END, START, START, AGAIN]), "f1+1+2 recovered");
    assert_eq!(shape(&[SIGN, END, START]), "f1+1+1 open", "the next worker still loads");
    assert_eq!(shape(&[SIGN, END, DOWN, (Kind::Run, Error)]), "f1+1+2 ended");
    assert_eq!(shape(&[SIGN, (Kind::Run, Error)]), "f1+1+0 ended", "a run that fails at once");
    assert_eq!(shape(&[(Kind::Run, Error)]), "1", "a run that ends without a sign is a line");
    assert_eq!(shape(&[SIGN, START]), "1 | 1", "signs without an end are lines");
}

#[test]
fn each_fault_keeps_its_own_lines() {
    assert_eq!(shape(&[END, START, SIGN, END, START, AGAIN]), "f0+1+1 unknown | f1+1+1 recovered");
    assert_eq!(shape(&[END, START, START, AGAIN, END, START]), "f0+1+2 recovered | f0+1+1 open");
    assert_eq!(shape(&[END, START, SAVE, SAVE]), "f0+1+1 unknown | c2", "checkpoints belong to no fault");
    // A shift that the user asks for before the next start does not prove that training went on.
    assert_eq!(shape(&[END, (Kind::Shift, Info), START, (Kind::Shift, Info)]), "f0+1+2 recovered");
}

fn seen(state: &State) -> Vec<String> {
    shown_entries(state).iter().map(|entry| entry.anchor().text.clone()).collect()
}

#[test]
fn each_choice_of_kinds_shows_its_entries() {
    let mut state = fixture::training((120, 40));
    state.facts.journal =
        rows(&[(Kind::Request, Info), SAVE, SAVE, SIGN, END, DOWN, START, (Kind::Shift, Info), (Kind::Skip, Warn)])
            .into();
    let mut table = Vec::new();
    for _ in 0..5 {
        table.push((state.screen.journal_kinds, seen(&state).join(" ")));
        state.screen.journal_kinds = state.screen.journal_kinds.next();
    }
    let wanted = [
        (Kinds::All, "line 0 line 2 line 4 line 8"),
        (Kinds::Faults, "line 4 line 8"),
        (Kinds::Shifts, "line 4"),
        (Kinds::Checkpoints, "line 2"),
        (Kinds::Other, "line 0"),
    ];
    assert_eq!(table, wanted.map(|(kinds, text)| (kinds, text.to_owned())));
    assert_eq!(state.screen.journal_kinds, Kinds::All);
    // A text filter finds lines within a fault, too.
    state.screen.filter = "line 5".to_owned();
    assert_eq!(seen(&state), ["line 5"]);
}

proptest! {
    /// Every row is in exactly one entry, in order, whatever the journal holds.
    #[test]
    fn folding_loses_no_line(lines in proptest::collection::vec((0usize..10, 0usize..3), 0..60)) {
        let kinds = [
            Kind::Run, Kind::Worker, Kind::Shift, Kind::Restart, Kind::Checkpoint, Kind::Skip, Kind::Injected,
            Kind::Health, Kind::Request, Kind::Note,
        ];
        let lines: Vec<_> = lines.into_iter().map(|(kind, level)| (kinds[kind], [Info, Warn, Error][level])).collect();
        let rows = rows(&lines);
        let entries = fold(&rows.iter().collect::<Vec<_>>());
        let ids = entries.iter().flat_map(|entry| match entry {
            JournalEntry::Line(row) => vec![row.id],
            JournalEntry::Checkpoints(rows) => rows.iter().map(|row| row.id).collect(),
            JournalEntry::Fault(fault) => fault.lines().map(|row| row.id).collect(),
        });
        prop_assert_eq!(ids.collect::<Vec<_>>(), rows.iter().map(|row| row.id).collect::<Vec<_>>());
    }
}
