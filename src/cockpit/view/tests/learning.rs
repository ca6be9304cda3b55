//! The line of learning, and the charts view with pins, search and cursor.

use super::{SIZES, draw_all, draw_text, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::{EvalRow, RunState, Update};
use insta::assert_snapshot;

/// Returns a run whose validation loss rises again after its lowest value, with metrics by name.
fn overfitted(size: (u16, u16)) -> State {
    let mut history = fixture::history(700, true);
    for row in &mut history.evals {
        let past_best = (row.eval.step.saturating_sub(360) / 45) as f64;
        row.eval.loss = row.eval.loss.map(|loss| loss + 0.05 * past_best);
    }
    let mut status = fixture::status(RunState::Training, 700);
    status.device = Some("cuda:0 NVIDIA GeForce RTX 4090".to_owned());
    let mut state = fixture::at(size, status, history);
    let mut row = fixture::step_row(2, 701, fixture::NOW);
    row.metrics = ["loss/box", "loss/class", "reward/mean"].map(|name| (name.to_owned(), 0.5)).into();
    update(&mut state, Msg::Keeper(Update::Steps { rows: vec![row] }));
    state
}

fn pressed(size: (u16, u16), keys: &str) -> State {
    let mut state = overfitted(size);
    press_keys(&mut state, keys);
    state
}

/// Returns the line of learning and the charts view in several conditions.
fn charts_views(size: (u16, u16)) -> Vec<(&'static str, State)> {
    let mut pinned = pressed(size, "2");
    for quantity in [Quantity::GradNorm, Quantity::Temperature] {
        pinned.screen.focus = Panel::Chart(quantity);
        press_keys(&mut pinned, "P");
    }
    pinned.notice = None;
    vec![
        ("a validation loss that rises", overfitted(size)),
        ("pinned charts", pinned),
        ("the next groups", pressed(size, "2]]]")),
        ("a search that is typed", pressed(size, "2/loss")),
        ("a search without a result", pressed(size, "2/zzz\n")),
        ("a cursor on all charts", pressed(size, "2v")),
    ]
}

#[test]
fn charts_of_every_metric_at_every_size() {
    for size in SIZES {
        assert_snapshot!(format!("learning_{}x{}", size.0, size.1), draw_all(charts_views(size)));
    }
}

#[test]
fn the_line_says_how_the_run_learns_at_every_size() {
    let long = ("validation loss 0.648", "best loss 7 evaluations ago");
    for (size, (loss, since)) in
        [((80, 24), ("validation loss 0.648", "best loss 7 evals ago")), ((120, 40), long), ((200, 50), long)]
    {
        let shown = draw_text(&overfitted(size));
        let line = shown.lines().find(|line| line.contains("accuracy")).unwrap();
        let place = if size.0 > 80 { " @ 675" } else { "" };
        assert!(line.contains(&format!("accuracy 93.4 % · best 93.4 %{place}")), "{line}");
        assert!(line.contains(loss) && line.trim_end().ends_with(since), "{line}");
        let verdict = shown.lines().find(|line| line.contains("rising for 7 evaluations")).unwrap();
        assert!(verdict.trim_start().starts_with("validation loss rising"), "{verdict}");
    }
}

#[test]
fn a_run_without_evaluations_loses_no_row() {
    let rows = |evals: Vec<EvalRow>| {
        let mut history = fixture::history(700, false);
        history.evals = evals;
        let state = fixture::at((80, 24), fixture::status(RunState::Training, 700), history);
        let shown = draw_text(&state);
        shown.lines().position(|line| line.trim_start().starts_with("loss ─")).unwrap()
    };
    assert_eq!((rows(Vec::new()), rows(fixture::history(700, false).evals)), (2, 3));
}

#[test]
fn a_line_of_evaluations_crosses_a_window_without_any() {
    // From 495 to 540 there is no evaluation; the line between the two beside it is still there.
    let drawn = |evals: Vec<EvalRow>| {
        let mut history = fixture::history(700, false);
        history.evals = evals;
        for row in &mut history.evals {
            row.eval.loss = Some(5.0);
        }
        let mut state = fixture::at((120, 40), fixture::status(RunState::Training, 700), history);
        state.screen.chart.cursor = Some(518.0);
        press_keys(&mut state, "+++++");
        state.screen.chart.cursor = None;
        draw_text(&state)
    };
    let evals = fixture::history(700, false).evals;
    let (with, without) = (drawn(evals), drawn(Vec::new()));
    let top = |shown: &str| {
        let rows = shown.lines().skip_while(|line| !line.starts_with(" loss ─")).skip(1).take(6);
        rows.flat_map(str::chars)
            .take_while(|letter| *letter != '└')
            .filter(|letter| ('\u{2801}'..='\u{28ff}').contains(letter))
            .count()
    };
    assert!(top(&with) > 40, "{with}");
    assert!(!with.contains('◇'), "{with}");
    assert!(!without.contains("evaluation"), "{without}");
}

#[test]
fn sensors_that_do_not_exist_are_mentioned_once() {
    let mut state = fixture::training((120, 40));
    press_keys(&mut state, "2");
    let shown = draw_text(&state);
    assert_eq!(shown.matches("no GPU").count(), 1, "{shown}");
    press_keys(&mut state, "nnn");
    let shown = draw_text(&state);
    assert!(shown.contains("worker RAM") && !shown.contains("VRAM"), "{shown}");
}

#[test]
fn a_loss_of_many_decades_is_drawn_logarithmically_until_the_user_chooses() {
    let mut history = fixture::history(0, false);
    for step in 1..=700u64 {
        let mut row = fixture::step_row(1, step, fixture::NOW - (700 - step.cast_signed()) * 36);
        row.loss = Some(50.0 * (-(step as f64) / 60.0).exp() + 1e-4);
        history.push_step(&row);
    }
    let mut state = fixture::at((120, 40), fixture::status(RunState::Training, 700), history);
    let heading = |state: &State| {
        let shown = draw_text(state);
        shown.lines().find(|line| line.trim_start().starts_with("loss ─")).unwrap().to_owned()
    };
    assert!(heading(&state).contains(" log "), "{}", heading(&state));
    press_keys(&mut state, "l");
    assert!(!heading(&state).contains(" log "), "{}", heading(&state));
    press_keys(&mut state, "l");
    assert!(heading(&state).contains(" log "), "{}", heading(&state));
    let mut narrow = fixture::training((120, 40));
    assert!(!heading(&narrow).contains(" log "));
    press_keys(&mut narrow, "l");
    assert!(heading(&narrow).contains(" log "));
}
