//! In the replay, keys and mouse act on the past that is on the screen.

use super::{SIZE, key, letter};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::update::{Effect, HistoryBox, Msg, OtherBox, update};
use crate::protocol::control::{JournalKind, RunState};
use crate::protocol::worker::Level;
use crate::store::run_summary::RunSummary;
use crossterm::event::{KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

fn click(state: &mut State, column: u16, row: u16) -> Vec<Effect> {
    let kind = MouseEventKind::Down(MouseButton::Left);
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }))
}

/// Opens the replay at a moment with this history.
fn show_past(state: &mut State, history: crate::cockpit::state::facts::History) {
    update(state, letter('g'));
    let at_ms = state.replay.as_ref().unwrap().at_ms;
    update(state, Msg::Moment { at_ms, history: Ok(HistoryBox(Box::new(history))) });
    assert!(state.shown().moment.is_some());
}

/// Returns a run with two faults, in the replay after the first.
fn between_two_faults() -> State {
    let mut state = fixture::eventful(SIZE);
    let mut history = fixture::eventful_history();
    let second = history.journal.iter().rposition(|row| row.level == Level::Error).unwrap();
    history.journal.truncate(second - 1);
    assert!(history.journal.iter().any(|row| row.level == Level::Error));
    show_past(&mut state, history);
    state
}

#[test]
fn enter_and_a_click_open_the_fault_of_the_past() {
    let mut state = between_two_faults();
    let first = state.shown().facts.journal.iter().find(|row| row.level == Level::Error).unwrap().id;
    for code in ['4', 'i'] {
        update(&mut state, letter(code));
    }
    update(&mut state, key(KeyCode::Enter));
    assert_eq!((state.screen.view, state.screen.mode), (View::Log, Mode::Fault { id: first, from: 0 }));
    update(&mut state, key(KeyCode::Esc));
    let area = lay_out_state(state.shown()).area_of(Panel::Journal).unwrap();
    click(&mut state, area.x + 12, area.y + 1);
    assert_eq!(state.screen.mode, Mode::Fault { id: first, from: 0 });
    update(&mut state, key(KeyCode::Esc));
    // The cursor cannot leave the entries of the past.
    for _ in 0..5 {
        update(&mut state, key(KeyCode::Up));
    }
    assert_eq!(state.screen.journal_back, 0);
}

#[test]
fn a_click_meets_the_panel_that_the_past_draws() {
    let mut state = fixture::training(SIZE);
    let mut early = fixture::history(30, false);
    early.journal.retain(|row| row.kind == JournalKind::Run);
    show_past(&mut state, early);
    let (past, present) = (lay_out_state(state.shown()), lay_out_state(&state));
    let ladder = past.area_of(Panel::Ladder).unwrap();
    assert_ne!(Some(ladder), present.area_of(Panel::Ladder), "before the first evaluation a row is missing");
    for rung in 0..4 {
        click(&mut state, ladder.x + 2, ladder.y + 1 + rung);
        assert_eq!(state.screen.chosen_rung, Some(usize::from(rung)));
    }
}

#[test]
fn the_table_of_runs_is_the_same_in_the_past() {
    let row = |name: &str| {
        let mut status = fixture::status(RunState::Finished, 10);
        name.clone_into(&mut status.run);
        RunSummary { name: name.to_owned(), status: Some(status), ..RunSummary::default() }
    };
    let mut state = fixture::training(SIZE);
    let here = state.run_name().to_owned();
    show_past(&mut state, fixture::history(450, false));
    update(&mut state, letter('6'));
    update(&mut state, Msg::Runs(vec![row(&here), row("b"), row("zz")]));
    let chosen = |state: &State| state.shown().runs.chosen().map(|row| row.name.clone());
    assert_eq!(chosen(&state), Some(here));
    update(&mut state, key(KeyCode::Down));
    assert_eq!(chosen(&state).as_deref(), Some("b"));
    let other = OtherRun { ladder: fixture::ladder(), ..OtherRun::default() };
    update(&mut state, Msg::Other { name: "b".to_owned(), run: Ok(OtherBox(Box::new(other))) });
    assert!(state.shown().runs.read.contains_key("b"), "its config is not read for ever");
    update(&mut state, letter('O'));
    assert!(state.shown().runs.sort.reverse);
    for code in ['/', 'z'] {
        update(&mut state, letter(code));
    }
    update(&mut state, key(KeyCode::Enter));
    assert_eq!(chosen(&state).as_deref(), Some("zz"));
    let errand = crate::cockpit::errand::Errand::Open("zz".to_owned());
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [Effect::Leave(errand)], "the highlighted run opens");
}

#[test]
fn zooming_in_the_past_stays_within_its_steps() {
    let mut state = fixture::training(SIZE);
    show_past(&mut state, fixture::history(100, false));
    update(&mut state, letter('v'));
    assert_eq!(state.screen.chart.cursor, state.shown().curve_ends().map(|(_, last)| last));
    assert!(state.now_ms >= NOW);
}
