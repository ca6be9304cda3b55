//! The journal with its faults, the alerts, and what a narrow screen keeps.

use super::{SIZES, draw_text, press_keys, run_conditions};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::{Proposal, RunState, StepRow, Update};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use insta::assert_snapshot;
use std::fmt::Write;

fn press(state: &mut State, code: KeyCode) {
    update(state, Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)));
}

fn click(state: &mut State, (column, row): (u16, u16)) {
    let kind = MouseEventKind::Down(MouseButton::Left);
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
}

/// Returns where a text is on the screen.
fn find(state: &State, text: &str) -> (u16, u16) {
    let shown = draw_text(state);
    let (row, line) = shown.lines().enumerate().find(|(_, line)| line.contains(text)).expect(text);
    let column = line[..line.find(text).unwrap()].chars().count();
    (u16::try_from(column).unwrap(), u16::try_from(row).unwrap())
}

/// Returns a run with three alerts.
fn with_alerts(size: (u16, u16)) -> State {
    let mut state = fixture::training(size);
    let row = |step| StepRow { loss: None, grad_norm: None, skipped: true, ..fixture::step_row(2, step, NOW) };
    update(&mut state, Msg::Keeper(Update::Steps { rows: (701..=712).map(row).collect() }));
    update(&mut state, Msg::Tick(NOW + 7_000));
    let mut status = fixture::status(RunState::Training, 712);
    let why = "8 % of the last 200 steps were not finite".to_owned();
    status.proposal = Some(Proposal { why, does: "would shift down to safe".to_owned() });
    fixture::apply_status(&mut state, status);
    state
}

#[test]
fn a_journal_with_faults_at_every_size() {
    for size in SIZES {
        let mut pictures = String::new();
        let mut picture = |name: &str, state: &State| {
            let _ = writeln!(pictures, "══ {name} ══\n{}\n", draw_text(state));
        };
        let mut state = fixture::eventful(size);
        picture("overview", &state);
        press_keys(&mut state, "4");
        picture("log", &state);
        press_keys(&mut state, "i");
        picture("faults only", &state);
        press(&mut state, KeyCode::Up);
        press(&mut state, KeyCode::Enter);
        picture("a fault", &state);
        let mut state = with_alerts(size);
        picture("alerts in the header", &state);
        press_keys(&mut state, "!");
        picture("alerts", &state);
        assert_snapshot!(format!("journal_{}x{}", size.0, size.1), pictures);
    }
}

#[test]
fn a_fault_opens_by_a_click_and_by_enter_and_shows_all_of_it() {
    for size in [(80, 24), (120, 40), (200, 50)] {
        let mut state = fixture::eventful(size);
        press_keys(&mut state, "4i");
        let fault = "worker ended at step 430";
        let at = find(&state, fault);
        click(&mut state, at);
        assert!(matches!(state.screen.mode, Mode::Fault { .. }), "{size:?}");
        let mut shown = draw_text(&state);
        press(&mut state, KeyCode::PageDown);
        shown += &draw_text(&state);
        for text in [
            "evidence",
            "injected oom at step 430",
            "cause: out of device memory",
            "response",
            "shift down: full → accumulate",
            "outcome",
            "shifted full → accumulate in 0.90 s",
            "training again",
            "10 steps",
        ] {
            assert!(shown.contains(text), "{text} at {size:?} in {shown}");
        }
        press(&mut state, KeyCode::Esc);
        assert_eq!(state.screen.mode, Mode::Normal);
        press(&mut state, KeyCode::Enter);
        assert!(matches!(state.screen.mode, Mode::Fault { .. }), "the cursor is where the click was");
    }
}

#[test]
fn the_cursor_of_the_journal_is_always_visible() {
    let mut state = fixture::eventful((80, 24));
    state.screen.focus = Panel::Journal;
    for view in [View::Overview, View::Log] {
        state.screen.view = view;
        for back in 0..12 {
            state.screen.journal_back = back;
            let text = crate::cockpit::state::journal::chosen_entry(&state).unwrap().anchor().text.clone();
            let start: String = text.chars().take(20).collect();
            let shown = draw_text(&state);
            assert!(shown.contains(&start) || shown.contains(" checkpoints, "), "{start} in {shown}");
        }
    }
}

#[test]
fn alerts_are_counted_in_the_header_and_open_by_a_click() {
    for size in [(80, 24), (120, 40), (200, 50)] {
        let mut state = with_alerts(size);
        let shown = draw_text(&state);
        assert!(shown.lines().next().unwrap().contains("⚠ 3"), "{shown}");
        let at = find(&state, "⚠ 3");
        click(&mut state, at);
        let shown = draw_text(&state);
        for text in ["⚠ stalled: no step for 7 s", "⚠ the keeper would shift down", "⚠ skipping", "for 7 s · d shifts"]
        {
            assert!(shown.contains(text), "{text} in {shown}");
        }
        // The remedies that the box names work from here.
        press_keys(&mut state, "d");
        assert!(matches!(state.screen.mode, Mode::Preview { .. }), "{:?}", state.screen.mode);
    }
    assert!(!draw_text(&fixture::training((120, 40))).contains('⚠'));
}

#[test]
fn a_lost_keeper_has_one_remedy() {
    let remedy = |mut state: State| {
        press_keys(&mut state, "!");
        draw_text(&state)
    };
    let lost = remedy(fixture::orphaned((120, 40)));
    assert!(lost.contains("for 12 s · `downshift resume") && !lost.contains("restarts by itself"), "{lost}");
    let recovering = remedy(fixture::recovering((120, 40)));
    assert!(recovering.contains("for 2 s · wait: the keeper restarts by itself"), "{recovering}");
}

#[test]
fn progress_and_the_time_left_stay_whatever_there_is_to_say() {
    for size in [(80, 24), (120, 40), (200, 50)] {
        for (name, state) in run_conditions(size) {
            let known = state.status().is_some_and(|status| status.samples > 0);
            let shown = draw_text(&state);
            assert!(!known || shown.contains("52 %"), "{name} at {size:?}: {shown}");
        }
        let mut state = fixture::training(size);
        state.show_notice("a long answer of the keeper ".repeat(30), true);
        let shown = draw_text(&state);
        assert!(shown.contains("52 %") && shown.contains("23 s left") && shown.contains('…'), "{shown}");
        let shown = draw_text(&fixture::training(size));
        assert!(shown.contains("56 s in, 23 s left") || shown.contains("56 s elapsed   23 s left"), "{shown}");
    }
}

#[test]
fn a_long_refusal_is_read_to_its_end_and_gives_its_rows_back() {
    let mut state = fixture::training((80, 24));
    let before = draw_text(&state);
    let text = "no checkpoint yet: a shift now would lose 240 steps; the script saves its first one at step 500, \
                or `downshift stop` ends the run without it";
    state.show_notice(text, true);
    let shown = draw_text(&state);
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(text.split_whitespace().all(|word| words.contains(&word)) && shown.contains("52 %"), "{shown}");
    state.notice = None;
    assert_eq!(draw_text(&state), before);
}

#[test]
fn a_long_answer_hides_neither_a_heading_nor_the_newest_line_of_the_journal() {
    for size in [(80, 24), (120, 40), (200, 50)] {
        for view in ['1', '4'] {
            let mut state = fixture::training(size);
            press_keys(&mut state, &view.to_string());
            let newest = state.facts.journal.back().unwrap().text.chars().take(16).collect::<String>();
            let parts = ["journal ─", &newest];
            let before = draw_text(&state);
            assert!(parts.iter().all(|part| before.contains(part)), "{view} at {size:?}: {before}");
            state.show_notice("the keeper refuses this for a long reason ".repeat(9), true);
            let shown = draw_text(&state);
            assert!(parts.iter().all(|part| shown.contains(part)), "{view} at {size:?}: {shown}");
        }
    }
}

/// Returns a run with a ladder of this many rungs.
fn with_rungs(size: (u16, u16), rungs: usize) -> State {
    let mut state = fixture::training(size);
    let rung = |number: usize| {
        let mut rung = state.ladder[number.min(3)].clone();
        rung.name = format!("rung-{number}");
        rung
    };
    state.ladder = (0..rungs).map(rung).collect();
    state
}

#[test]
fn a_long_ladder_scrolls_and_says_how_much_more_there_is() {
    for (size, view) in [((80, 24), '1'), ((80, 24), '3'), ((120, 40), '1'), ((120, 40), '3')] {
        let mut state = with_rungs(size, 40);
        press_keys(&mut state, &view.to_string());
        state.screen.focus = Panel::Ladder;
        assert!(draw_text(&state).contains("more below"), "{}", draw_text(&state));
        for number in 2..40 {
            press(&mut state, KeyCode::Down);
            let shown = draw_text(&state);
            assert!(shown.contains(&format!("rung-{number} ")), "{number} at {size:?} in {shown}");
        }
        let area = lay_out_state(&state).area_of(Panel::Ladder).unwrap();
        let at = find(&state, "rung-39 ");
        assert!(area.contains(at.into()));
        assert!(draw_text(&state).contains("more above") && !draw_text(&state).contains("more below"));
        let above = find(&state, "rung-38 ");
        click(&mut state, above);
        assert_eq!(state.screen.chosen_rung, Some(38), "a click chooses the rung under it");
    }
}

#[test]
fn the_knobs_of_a_rung_scroll_to_the_last() {
    let mut state = fixture::training((80, 18));
    press_keys(&mut state, "3");
    let shown = draw_text(&state);
    assert!(shown.contains("↓ 6 more below") && !shown.contains("optimizer.lr"), "{shown}");
    press(&mut state, KeyCode::PageDown);
    assert!(draw_text(&state).contains("optimizer.lr"), "{}", draw_text(&state));
    press(&mut state, KeyCode::PageUp);
    assert!(draw_text(&state).contains("against     lack of memory"), "{}", draw_text(&state));
}

/// A value that does not fit is cut with an ellipsis, never silently: with names that are too long for any panel,
/// each row of a view that shows one ends it with `…`.
#[test]
fn a_name_that_does_not_fit_is_cut_with_an_ellipsis() {
    let long = "x".repeat(300);
    for size in [(60, 16), (80, 24), (120, 40), (200, 50)] {
        let mut state = fixture::training(size);
        let mut status = fixture::status(RunState::Training, 700);
        status.run.clone_from(&long);
        status.rung_name.clone_from(&long);
        fixture::apply_status(&mut state, status);
        state.ladder.iter_mut().for_each(|rung| rung.name.clone_from(&long));
        update(&mut state, Msg::Log(vec![long.clone()]));
        for key in ('1'..='9').take(View::ALL.len()) {
            press_keys(&mut state, &key.to_string());
            let shown = draw_text(&state);
            for row in shown.lines() {
                let cut = row.split_inclusive(|letter| letter != 'x').filter(|part| part.starts_with("xxxx"));
                for part in cut {
                    assert!(part.ends_with('…'), "{key} at {size:?}: {row}\n{shown}");
                }
            }
        }
    }
}
