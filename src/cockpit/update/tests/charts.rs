//! The mouse on charts.

use super::SIZE;
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::History;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::{Msg, update};
use crate::config::theme::Theme;
use crate::protocol::control::{RunState, StepRow};
use crate::series::Axis;
use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::{Terminal, backend::TestBackend};

fn send_mouse(state: &mut State, kind: MouseEventKind, column: u16, row: u16) {
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
}

fn click(state: &mut State, column: u16, row: u16) {
    send_mouse(state, MouseEventKind::Down(MouseButton::Left), column, row);
}

/// Returns a run whose loss falls over six decades, so that its labels are of different widths.
fn steep_run() -> State {
    let row = |step: u64| {
        let row = fixture::step_row(1, step, fixture::NOW - (700 - step.cast_signed()) * 36);
        StepRow { loss: Some(2_000.0 * (-(step as f64) / 50.0).exp()), skipped: false, ..row }
    };
    let history = History { samples: fixture::history(700, true).samples, ..History::default() };
    fixture::at(SIZE, fixture::status(RunState::Training, 700), history.with_steps((1..=700).map(row)))
}

/// Returns the column in which the cursor of the only chart on the screen is drawn.
fn drawn_cursor(state: &State) -> u16 {
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    terminal.draw(|frame| crate::cockpit::view::render(frame, state, &Theme::plain())).unwrap();
    let buffer = terminal.backend().buffer();
    let mut places = (0..SIZE.1).flat_map(|y| (0..SIZE.0).map(move |x| (x, y)));
    let cursor = places.find(|place| buffer[*place].symbol() == "┼");
    cursor.unwrap_or_else(|| panic!("no cursor at {:?} in {buffer:?}", state.screen.chart)).0
}

#[test]
fn a_click_selects_the_step_that_is_drawn_under_the_pointer() {
    for quantity in [Quantity::Loss, Quantity::GradNorm, Quantity::StepTime, Quantity::Ram] {
        for (log, axis) in [(false, Axis::Steps), (true, Axis::Steps), (true, Axis::Samples), (true, Axis::Time)] {
            let mut state = steep_run();
            (state.screen.view, state.screen.full) = (View::Charts, Some(quantity));
            state.screen.focus = Panel::Chart(quantity);
            (state.screen.chart.log, state.screen.chart.axis) = (log, axis);
            // Beside the curve, the nearest end counts.
            click(&mut state, 1, 20);
            let first = drawn_cursor(&state);
            click(&mut state, SIZE.0 - 2, 20);
            let last = drawn_cursor(&state);
            assert!(first > 3 && last < SIZE.0 - 5 && last - first > 80, "{first} to {last}");
            for column in (first..=last).step_by(7) {
                click(&mut state, column, 20);
                assert_eq!(drawn_cursor(&state), column, "{quantity:?}, log {log}, over {axis:?}");
            }
        }
    }
}

#[test]
fn a_click_reads_a_chart_and_the_wheel_zooms_where_it_is() {
    let mut state = fixture::training(SIZE);
    click(&mut state, 40, 10);
    let cursor = state.screen.chart.cursor.unwrap();
    assert!((1.0..=700.0).contains(&cursor), "{cursor}");
    send_mouse(&mut state, MouseEventKind::ScrollUp, 40, 10);
    let (start, end) = state.screen.chart.window((1.0, 700.0));
    assert!((start..=end).contains(&cursor) && end - start < 400.0, "{start} {cursor} {end}");
}

#[test]
fn the_wheel_zooms_where_it_is_over_time_too() {
    let mut state = fixture::training(SIZE);
    state.screen.chart.axis = Axis::Time;
    let ends = state.curve_ends().unwrap();
    send_mouse(&mut state, MouseEventKind::ScrollUp, 15, 10);
    let (start, end) = state.screen.chart.window(ends);
    assert!(start < f64::midpoint(ends.0, ends.1) && end < ends.1, "{start} to {end} of {ends:?}");
    assert!(!state.screen.chart.follows());
}
