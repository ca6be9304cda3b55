//! Keys and mouse on charts.

use super::SIZE;
use crate::cockpit::fixture;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::chart::ValueScale;
use crate::cockpit::state::facts::History;
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::{RunState, StepRow};
use crate::series::Axis;
use crate::theme::Theme;
use crossterm::event::{KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::{Terminal, backend::TestBackend};

fn send_mouse(state: &mut State, kind: MouseEventKind, column: u16, row: u16) {
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
}

fn press(state: &mut State, letters: &str) {
    for letter in letters.chars() {
        update(state, Msg::Key(KeyCode::Char(letter).into()));
    }
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
        let (linear, log) = (ValueScale::Linear, ValueScale::Log);
        for (scale, axis) in [(linear, Axis::Steps), (log, Axis::Steps), (log, Axis::Samples), (log, Axis::Time)] {
            let mut state = steep_run();
            (state.screen.view, state.screen.full) = (View::Charts, Some(quantity));
            state.screen.focus = Panel::Chart(quantity);
            (state.screen.chart.scale, state.screen.chart.axis) = (scale, axis);
            // Beside the curve, the nearest end counts.
            click(&mut state, 1, 20);
            let first = drawn_cursor(&state);
            click(&mut state, SIZE.0 - 2, 20);
            let last = drawn_cursor(&state);
            assert!(first > 3 && last < SIZE.0 - 5 && last - first > 80, "{first} to {last}");
            for column in (first..=last).step_by(7) {
                click(&mut state, column, 20);
                assert_eq!(drawn_cursor(&state), column, "{quantity:?}, {scale:?}, over {axis:?}");
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

/// Returns the titles of the charts on the screen.
fn titles(state: &State) -> Vec<String> {
    let charts = lay_out_state(state).panels.into_iter().filter_map(|(panel, _)| match panel {
        Panel::Chart(quantity) => Some(quantity.title(&state.facts.metrics)),
        _ => None,
    });
    charts.collect()
}

#[test]
fn a_pinned_chart_comes_first_until_it_is_unpinned() {
    let mut state = fixture::on_gpu((80, 24));
    press(&mut state, "2");
    let first = ["loss", "validation loss", "evaluation accuracy", "gradient norm"];
    assert_eq!(titles(&state), first);
    state.screen.focus = Panel::Chart(Quantity::GradNorm);
    press(&mut state, "P");
    assert_eq!(titles(&state)[..2], ["gradient norm", "loss"]);
    assert_eq!(state.screen.focus, Panel::Chart(Quantity::GradNorm));
    press(&mut state, "P");
    assert_eq!((titles(&state), state.screen.pins.len()), (first.map(str::to_owned).to_vec(), 0));
    state.screen.focus = Panel::Journal;
    press(&mut state, "P");
    assert!(state.notice.as_ref().is_some_and(|notice| notice.refused), "there is no chart to pin");
}

#[test]
fn charts_are_found_by_typing() {
    let mut state = fixture::on_gpu((80, 24));
    press(&mut state, "2]]]/gpu temp");
    assert_eq!((titles(&state), state.screen.mode), (vec!["GPU temperature".to_owned()], Mode::Filter));
    assert_eq!(state.screen.focus, Panel::Chart(Quantity::Temperature), "the chart that is visible");
    update(&mut state, Msg::Key(KeyCode::Enter.into()));
    assert_eq!((titles(&state).len(), state.screen.mode), (1, Mode::Normal));
    update(&mut state, Msg::Key(KeyCode::Enter.into()));
    assert_eq!(state.screen.full, Some(Quantity::Temperature));
    for _ in 0..2 {
        update(&mut state, Msg::Key(KeyCode::Esc.into()));
    }
    assert_eq!((titles(&state).len(), state.screen.view), (4, View::Charts));
    press(&mut state, "/zzz");
    assert!(titles(&state).is_empty());
    press(&mut state, "n[]P");
    update(&mut state, Msg::Key(KeyCode::Esc.into()));
    assert_eq!((titles(&state).len(), state.screen.filter.as_str()), (4, ""), "journal and log keep their own filter");
}

#[test]
fn groups_are_paged_by_key_and_by_click() {
    let mut state = fixture::on_gpu((80, 24));
    press(&mut state, "2]]");
    assert_eq!(titles(&state)[0], "gradient norm", "loss, task, optimisation");
    press(&mut state, "[");
    assert_eq!(titles(&state)[0], "evaluation accuracy");
    press(&mut state, "]]]]]]]]");
    assert_eq!(titles(&state), ["VRAM", "GPU temperature", "GPU load", "GPU power"]);
    assert_eq!(state.screen.focus, Panel::Chart(Quantity::Vram));
    let bar = lay_out_state(&state).chart_bar;
    click(&mut state, bar.x + 1, bar.y);
    assert_eq!(titles(&state)[0], "loss");
}
