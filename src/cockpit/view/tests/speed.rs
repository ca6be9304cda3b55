//! The speed of the run is one figure wherever it is shown.

use super::{draw_text, press_keys};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::state::State;
use crate::cockpit::update::{Msg, update};
use crate::format::rate;
use crate::protocol::control::{RunState, StepRow, Update};

const SIZE: (u16, u16) = (200, 60);

/// Returns every figure on the screen that has the unit `steps/s`.
fn speeds(screen: &str) -> Vec<String> {
    let words: Vec<&str> = screen.split_whitespace().collect();
    let unit = |word: &str| word.starts_with("steps/s");
    words.windows(2).filter(|pair| unit(pair[1])).map(|pair| pair[0].to_owned()).collect()
}

/// Returns a run whose stored speeds differ from the live one, as after a while without an update.
fn training(wait_ms: i64, compute_ms: f64) -> State {
    let mut state = fixture::on_gpu(SIZE);
    let row = |step: u64| StepRow {
        compute_ms,
        data_wait_ms: 0.0,
        ..fixture::step_row(2, step, NOW + (step.cast_signed() - 700) * wait_ms)
    };
    let rows: Vec<StepRow> = (701..=900).map(row).collect();
    update(&mut state, Msg::Tick(rows.last().unwrap().time_ms));
    update(&mut state, Msg::Keeper(Update::Steps { rows }));
    let mut status = fixture::status(RunState::Training, 900);
    for (record, stored) in status.rungs.iter_mut().zip([None, Some(99.9), None, None]) {
        record.steps_per_s = stored;
    }
    fixture::apply_status(&mut state, status);
    fixture::follow_steps(&mut state);
    state
}

#[test]
fn every_panel_shows_one_speed() {
    // Returns how many figures with this unit all views show together.
    let count = |mut state: State, verdict: &str| {
        let live = rate(state.facts.pace().unwrap().steps_per_s);
        assert!(draw_text(&state).contains(verdict), "{}", draw_text(&state));
        let mut count = 0;
        for key in '1'..='6' {
            press_keys(&mut state, &key.to_string());
            let found = speeds(&draw_text(&state));
            assert!(found.iter().all(|speed| *speed == live), "view {key}: {found:?}, not {live}");
            count += found.len();
        }
        count
    };
    let healthy = count(training(40, 34.0), "healthy");
    let slow = count(training(300, 150.0), "ms per step, usually ");
    assert!(slow >= 4, "{slow}: meter, ladder and rung");
    assert!(healthy > slow, "{healthy}, {slow}: the verdict too");
}

#[test]
fn a_narrow_ladder_shows_the_speed_of_a_rung_that_has_overcome_its_fault() {
    let mut state = fixture::training((80, 24));
    let mut status = state.status().unwrap().clone();
    status.rungs[status.rung].fault = Some(("out of memory".to_owned(), 20));
    fixture::apply_status(&mut state, status.clone());
    let row = |state: &State| {
        let shown = draw_text(state);
        shown.lines().find_map(|line| line.split_once("▸ 1")).map(|(_, row)| row.to_owned()).unwrap()
    };
    assert!(row(&state).contains("steps/s"), "{}", draw_text(&state));
    status.state = RunState::BackingOff;
    for record in &mut status.rungs {
        record.steps_per_s = None;
    }
    fixture::apply_status(&mut state, status);
    assert!(row(&state).contains("fault at 20"), "{}", draw_text(&state));
}
