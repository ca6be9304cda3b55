//! The last line and the boxes name the keys that act, and no others.

use super::{draw_text, press_keys, run_conditions, summary};
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::RunState;

fn footer(state: &State) -> String {
    draw_text(state).lines().last().unwrap_or_default().to_owned()
}

fn in_panel(mut state: State, key: char, panel: Panel) -> State {
    press_keys(&mut state, &key.to_string());
    state.screen.focus = panel;
    state
}

#[test]
fn an_ended_run_says_first_what_can_be_done_with_it() {
    for size in [(120, 40), (200, 50)] {
        for run in [RunState::Finished, RunState::Stopped, RunState::Failed] {
            let mut state = fixture::training(size);
            fixture::apply_status(&mut state, fixture::status(run, 700));
            for key in ['1', '2', '4', '5'] {
                press_keys(&mut state, &key.to_string());
                assert!(footer(&state).trim_start().starts_with("m menu"), "{run:?} {key}: {}", footer(&state));
            }
        }
        let mut failed = run_conditions(size).swap_remove(3).1;
        let shown = draw_text(&failed);
        assert!(shown.contains("resume from the menu, or run:") && shown.contains("m menu     Esc close"), "{shown}");
        press_keys(&mut failed, "m");
        assert!(matches!(failed.screen.mode, Mode::Menu { .. }), "the key works while the box is open");
    }
}

#[test]
fn enter_stays_in_the_own_view_of_a_panel_and_is_listed_only_where_it_acts() {
    for (key, panel, acts) in [
        ('4', Panel::Journal, false),
        ('4', Panel::Log, false),
        ('3', Panel::Ladder, false),
        ('3', Panel::Rung, false),
        ('5', Panel::Gauges, false),
        ('5', Panel::Checkpoints, true),
        ('6', Panel::RunList, false),
        ('6', Panel::Difference, false),
        ('6', Panel::Compare, false),
        ('1', Panel::Journal, true),
        ('1', Panel::Ladder, true),
    ] {
        let mut state = in_panel(fixture::training((200, 50)), key, panel);
        let rows = vec![summary(state.run_name(), state.status().cloned(), 76_000)];
        update(&mut state, Msg::Runs(rows));
        assert_eq!(footer(&state).contains("Enter "), acts, "{key} {panel:?}: {}", footer(&state));
        let view = state.screen.view;
        press_keys(&mut state, "\n");
        assert_eq!(state.screen.view == view && state.screen.mode == Mode::Normal, !acts, "{key} {panel:?}");
        assert_eq!(state.notice.as_ref().is_some_and(|notice| notice.refused), !acts, "it says why: {panel:?}");
        assert_ne!((state.screen.view, view == View::Overview), (View::Overview, false), "{panel:?}");
    }
    let mut ladder = in_panel(fixture::training((200, 50)), '3', Panel::Ladder);
    ladder.screen.chosen_rung = Some(2);
    assert!(footer(&ladder).contains("Enter preview"), "{}", footer(&ladder));
    fixture::apply_status(&mut ladder, fixture::status(RunState::Finished, 700));
    assert!(!footer(&ladder).contains("Enter "), "a shift of a finished run is refused");
    let fault = {
        let mut state = in_panel(fixture::eventful((200, 50)), '4', Panel::Journal);
        press_keys(&mut state, "i");
        state
    };
    assert!(footer(&fault).contains("Enter open"), "{}", footer(&fault));
}

#[test]
fn keys_that_turn_pages_are_listed_where_there_is_more() {
    let charts = in_panel(fixture::on_gpu((120, 40)), '2', fixture::on_gpu((120, 40)).screen.focus);
    assert!(
        draw_text(&charts).contains("charts 1 to 4 of") && footer(&charts).contains("PgDn more"),
        "{}",
        footer(&charts)
    );
    let mut one = charts;
    one.screen.chart_search = "accuracy".to_owned();
    one.screen.focus = Panel::Chart(one.charts()[0].quantity);
    assert!(!footer(&one).contains("PgDn"), "{}", footer(&one));
    let checkpoints = in_panel(fixture::training((120, 40)), '5', Panel::Checkpoints);
    assert!(footer(&checkpoints).contains("↑↓ choose  Enter menu"), "{}", footer(&checkpoints));
}

#[test]
fn long_lists_say_how_much_more_there_is() {
    let mut state = fixture::eventful((120, 40));
    press_keys(&mut state, "5");
    let mut rows: Vec<_> = state.facts.checkpoints.values().cloned().collect();
    for row in &mut rows {
        row.kept = true;
    }
    state.facts.checkpoints = rows.into_iter().map(|row| (row.step, row)).collect();
    assert!(draw_text(&state).contains("more below"), "{}", draw_text(&state));
    for back in 0..state.facts.checkpoints.len() {
        state.screen.chosen_checkpoint = back;
        let step = state.chosen_checkpoint().unwrap().step;
        assert!(draw_text(&state).contains(&format!(" {step} ")), "{step} in {}", draw_text(&state));
    }
    assert!(draw_text(&state).contains("more above") && !draw_text(&state).contains("more below"));
    press_keys(&mut state, "6");
    let runs = (0..60).map(|number| summary(&format!("run-{number:02}"), state.status().cloned(), number * 1000));
    let runs = runs.collect();
    update(&mut state, Msg::Runs(runs));
    for number in 0..60 {
        state.runs.move_cursor_to(number);
        let name = state.runs.chosen().unwrap().name.clone();
        let shown = draw_text(&state);
        assert!(shown.contains(&name) && shown.contains(" more "), "{name} in {shown}");
    }
}
