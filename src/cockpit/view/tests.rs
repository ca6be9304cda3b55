mod aged;
mod overlays;
mod unknown;

use super::render;
use crate::cockpit::fixture;
use crate::cockpit::glyphs::bring_down;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::runs::{OtherRun, RunRow};
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::update::{HistoryBox, Msg, OtherBox, update};
use crate::config::theme::{Colours, Theme};
use crate::protocol::control::RunState;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use insta::assert_snapshot;
use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::{Terminal, backend::TestBackend};
use std::fmt::Write;

fn draw(state: &State, theme: &Theme) -> Buffer {
    let (width, height) = state.screen.size;
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, state, theme)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let rows = buffer.content.chunks(usize::from(buffer.area.width.max(1)));
    let row = |cells: &[ratatui::buffer::Cell]| {
        let mut text = String::new();
        let mut skip = 0usize;
        for cell in cells {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            skip = unicode_width::UnicodeWidthStr::width(cell.symbol()).saturating_sub(1);
            text.push_str(cell.symbol());
        }
        text.trim_end().to_owned()
    };
    rows.map(row).collect::<Vec<_>>().join("\n")
}

fn picture(state: &State) -> String {
    text(&draw(state, &Theme::shipped().unwrap().remove(0).shown_with(Colours::None)))
}

fn press(state: &mut State, letters: &str) {
    for letter in letters.chars() {
        update(state, Msg::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE)));
    }
}

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 60), (40, 12)];

/// Returns the conditions a run may be in.
fn conditions(size: (u16, u16)) -> Vec<(&'static str, State)> {
    let mut starting = fixture::young(size);
    update(&mut starting, Msg::Log(vec!["loading data".to_owned()]));
    let mut trouble = fixture::on_gpu(size);
    let mut status = fixture::status(RunState::NeedsPerson, 700);
    status.why = Some("3 restarts without a new durable step; the last worker ran out of device memory".to_owned());
    fixture::tell(&mut trouble, status);
    let lines = ["INFO epoch 15 done", "thread 'cubecl' panicked: allocation of 2.1 GiB failed"];
    update(&mut trouble, Msg::Log(lines.map(str::to_owned).to_vec()));
    let mut finished = fixture::training(size);
    fixture::tell(&mut finished, fixture::status(RunState::Finished, 700));
    vec![
        ("no data", fixture::connected(size)),
        ("starting", starting),
        ("healthy", fixture::on_gpu(size)),
        ("trouble", trouble),
        ("finished", finished),
        ("without keeper", fixture::orphaned(size)),
    ]
}

/// Adds a list of runs as the store would return it, one of them overlaid.
fn with_runs(state: &mut State) {
    let mut other = fixture::status(RunState::Stopped, 500);
    (other.run, other.samples) = ("日本語-run".to_owned(), 16_000);
    let rows = vec![
        RunRow { name: state.run_name().to_owned(), status: state.status().cloned() },
        RunRow { name: other.run.clone(), status: Some(other.clone()) },
        RunRow { name: "empty-20261119".to_owned(), status: None },
    ];
    update(state, Msg::Runs(rows));
    update(state, Msg::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)));
    press(state, " ");
    let mut ladder = fixture::ladder();
    ladder[0].preset["optimizer"]["lr"] = 1e-3.into();
    let watch = Some(crate::config::knobs::Watch { vram: 0.8, ..state.watch.clone() });
    let run = OtherRun { ladder, watch, series: Some(fixture::history(500, false).series) };
    update(state, Msg::Other { name: other.run, run: Ok(OtherBox(Box::new(run))) });
}

#[test]
fn every_view_in_every_condition_at_every_size() {
    for (key, view) in ('1'..='6').zip(View::ALL) {
        for size in SIZES {
            let mut pictures = String::new();
            for (condition, mut state) in conditions(size) {
                press(&mut state, &key.to_string());
                // A box would hide the view; boxes have their own snapshots.
                state.screen.trouble_hidden = true;
                if view == View::Runs {
                    with_runs(&mut state);
                }
                let _ = writeln!(pictures, "══ {condition} ══\n{}\n", picture(&state));
            }
            assert_snapshot!(format!("{}_{}x{}", view.name(), size.0, size.1), pictures);
        }
    }
}

#[test]
fn a_rung_that_never_ran_is_previewed_by_the_plan_against_what_is_free() {
    let mut state = fixture::on_gpu((120, 40));
    press(&mut state, "dd");
    let shown = picture(&state);
    assert!(shown.contains("19.5 GiB by the plan") && shown.contains("it should fit"), "{shown}");
    let mut status = state.status().unwrap().clone();
    status.rungs[3].planned_bytes = Some(23 << 30);
    fixture::tell(&mut state, status);
    let shown = picture(&state);
    assert!(shown.contains("23.0 GiB by the plan") && shown.contains("too little"), "{shown}");
}

#[test]
fn a_run_on_the_cpu_beside_a_card_is_previewed_in_host_memory() {
    let mut state = fixture::on_gpu((120, 40));
    let mut status = state.status().unwrap().clone();
    status.device = Some("cpu".to_owned());
    fixture::tell(&mut state, status);
    press(&mut state, "dd");
    let shown = preview_part(&picture(&state));
    assert!(shown.contains("RAM") && !shown.contains("VRAM") && !shown.contains("free for it"), "{shown}");
}

#[test]
fn the_preview_of_another_shape_says_whether_a_rung_allows_a_warm_start() {
    let preview = |warm_start: [bool; 2]| {
        let mut state = fixture::on_gpu((120, 40));
        let here = state.status().unwrap().rung;
        state.ladder[here + 1].preset["model"]["channels"] = 7.into();
        (state.ladder[here].warm_start, state.ladder[here + 1].warm_start) = (warm_start[0], warm_start[1]);
        press(&mut state, "d");
        picture(&state)
    };
    let shown = preview([false, false]);
    assert!(shown.contains("neither rung says"), "{shown}");
    let shown = preview([false, true]);
    assert!(shown.contains("the new rung says"), "{shown}");
    let shown = preview([true, false]);
    assert!(shown.contains("this rung says"), "{shown}");
}

/// Returns the lines of the box in a picture.
fn preview_part(picture: &str) -> String {
    let lines = picture.lines().skip_while(|line| !line.contains("speed"));
    lines.take_while(|line| !line.contains("back")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_best_is_the_one_whose_weights_are_on_the_disk() {
    let mut state = fixture::training((120, 40));
    assert!(picture(&state).contains("best 0.298 @ 600"), "{}", picture(&state));
    state.facts.checkpoints.values_mut().for_each(|row| row.best = false);
    let shown = picture(&state);
    assert!(!shown.contains("best 0"), "an evaluation alone is none: {shown}");
}

/// Returns the boxes and the keys that open them.
fn boxes(size: (u16, u16)) -> Vec<(&'static str, State)> {
    let pressed = |keys: &str| {
        let mut state = fixture::training(size);
        press(&mut state, keys);
        state
    };
    let mut on_gpu = fixture::on_gpu(size);
    press(&mut on_gpu, "u");
    let mut full = pressed("2v");
    full.screen.full = Some(Quantity::Loss);
    let mut past = pressed("g");
    let at_ms = past.replay.as_ref().unwrap().at_ms;
    update(&mut past, Msg::Moment { at_ms, history: Ok(HistoryBox(Box::new(fixture::history(450, false)))) });
    let trouble = conditions(size).swap_remove(3).1;
    vec![
        ("preview of a shift down", pressed("d")),
        ("preview of a shift up, on a GPU", on_gpu),
        ("a shift under way", fixture::shifting(size)),
        ("a shift that is done", fixture::shifted(size)),
        ("the question before a stop", pressed("x")),
        ("help", pressed("?")),
        ("actions", pressed(":sh")),
        ("filter", pressed("/loss")),
        ("one chart with a cursor", full),
        ("the past", past),
        ("no keeper", fixture::orphaned(size)),
        ("needs a person", trouble),
        ("paused", {
            let mut state = fixture::training(size);
            fixture::tell(&mut state, fixture::status(RunState::Paused, 700));
            state
        }),
    ]
}

#[test]
fn every_box_at_every_size() {
    for size in SIZES {
        let mut pictures = String::new();
        for (name, state) in boxes(size) {
            let _ = writeln!(pictures, "══ {name} ══\n{}\n", picture(&state));
        }
        assert_snapshot!(format!("boxes_{}x{}", size.0, size.1), pictures);
    }
}

/// Renders the roles of a theme as one letter each; a cell shows the first role with its colour.
fn roles(buffer: &Buffer, theme: &Theme) -> String {
    let named = [
        ('a', theme.accent),
        ('g', theme.good),
        ('w', theme.warn),
        ('d', theme.danger),
        ('s', theme.strong),
        ('f', theme.faint),
        ('m', theme.dim),
        ('r', theme.raw),
        ('2', theme.second),
        ('k', theme.mark),
        ('1', theme.line(1)),
        ('b', theme.base),
    ];
    let letter = |cell: &ratatui::buffer::Cell| {
        let known = named.iter().find(|(_, style)| style.fg == Some(cell.fg));
        if cell.symbol() == " " { ' ' } else { known.map_or('?', |(letter, _)| *letter) }
    };
    let rows = buffer.content.chunks(usize::from(buffer.area.width));
    rows.map(|row| row.iter().map(letter).collect::<String>().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_themes_say_the_same_and_colour_the_same_roles() {
    let themes = Theme::shipped().unwrap();
    let (dark, light) = (&themes[0], &themes[1]);
    for size in SIZES {
        let views = conditions(size).into_iter().chain(boxes(size));
        for (name, mut state) in views {
            for key in '1'..='6' {
                if state.screen.mode == Mode::Normal {
                    press(&mut state, &key.to_string());
                }
                let pictures: Vec<_> = themes.iter().map(|theme| text(&draw(&state, theme))).collect();
                assert!(pictures.windows(2).all(|pair| pair[0] == pair[1]), "{name} {size:?} {key}");
                let (one, other) = (roles(&draw(&state, dark), dark), roles(&draw(&state, light), light));
                assert_eq!(one, other, "{name} {size:?} {key}");
            }
        }
    }
    assert_snapshot!("roles", roles(&draw(&fixture::on_gpu((80, 24)), dark), dark));
    assert_snapshot!("roles_in_trouble", roles(&draw(&conditions((80, 24)).swap_remove(3).1, dark), dark));
}

#[test]
fn help_scrolls_where_it_does_not_fit() {
    let mut state = fixture::training((80, 24));
    press(&mut state, "?");
    press(&mut state, &"j".repeat(99));
    assert!(picture(&state).contains("close the cockpit; the run goes on"));
    press(&mut state, "w");
    assert_eq!(state.screen.mode, Mode::Normal);
}

#[test]
fn the_whole_ladder_is_seen_on_80_columns() {
    let shown = picture(&fixture::training((80, 24)));
    for rung in fixture::ladder() {
        assert!(shown.contains(&rung.name), "{} in {shown}", rung.name);
    }
}

#[test]
fn names_of_rungs_never_lie_over_each_other() {
    // Nine shifts close together.
    let mut state = fixture::young((120, 40));
    let mut history = crate::cockpit::state::facts::History::default();
    for step in 1..=300u64 {
        let mut row = fixture::step_row(1 + step / 30, step, fixture::NOW);
        row.rung = usize::try_from(step / 30).unwrap() % 4;
        history.step(&row);
    }
    state.facts.series = history.series;
    press(&mut state, "2");
    state.screen.full = Some(Quantity::Loss);
    let shown = picture(&state);
    let row = shown.lines().find(|line| line.contains('┊') && !line.contains('│')).unwrap();
    let known = ["full", "accumulate", "plain", "safe"];
    let words: Vec<_> = row.split(['┊', ' ']).filter(|word| !word.is_empty()).collect();
    assert!(words.len() >= 3 && words.iter().all(|word| known.contains(word)), "{row}");
}

#[test]
fn unknown_is_never_a_zero() {
    let shown = picture(&fixture::young((120, 40)));
    assert!(shown.contains("n/a"), "{shown}");
    assert!(!shown.contains("0 %  of") && !shown.contains("0.00 steps/s"), "{shown}");
}

#[test]
fn the_cursor_reads_the_exact_value_of_a_step() {
    let mut state = fixture::training((120, 40));
    press(&mut state, "2v");
    let row = fixture::step_row(2, 700, 0);
    let shown = picture(&state);
    let value = crate::format::figure(row.loss.unwrap());
    assert!(shown.contains(&format!("step 700  {value}")), "{value} in {shown}");
    let mut skipped = fixture::training((120, 40));
    press(&mut skipped, "2");
    skipped.screen.chart.cursor = Some(77.0);
    assert!(picture(&skipped).contains("step 77  –, skipped"), "{}", picture(&skipped));
}

#[test]
fn every_symbol_is_from_the_safe_set() {
    let safe = |letter: char| {
        letter.is_ascii()
            || "°·×–…→←↑↓".contains(letter)
            || ('\u{2500}'..='\u{259f}').contains(&letter)
            || ('\u{2800}'..='\u{28ff}').contains(&letter)
            || ('\u{25a0}'..='\u{25ff}').contains(&letter)
    };
    // Geometric shapes that some terminals draw as emoji.
    let pictures = ['\u{25aa}', '\u{25ab}', '\u{25b6}', '\u{25c0}', '\u{25fb}', '\u{25fc}', '\u{25fd}', '\u{25fe}'];
    let plain = Theme::plain();
    for (name, mut state) in boxes((120, 40)).into_iter().chain(conditions((200, 60))) {
        for key in '1'..='6' {
            if state.screen.mode == Mode::Normal {
                press(&mut state, &key.to_string());
            }
            let mut buffer = draw(&state, &plain);
            let shown = text(&buffer);
            for letter in shown.chars() {
                assert!(safe(letter) && !pictures.contains(&letter), "{letter:?} in {name} is not from the safe set");
            }
            bring_down(&mut buffer);
            let brought_down = text(&buffer);
            assert!(brought_down.is_ascii(), "{brought_down}");
            // A question mark replaces a symbol that has no ASCII equivalent.
            let asked = |text: &str| text.matches('?').count();
            assert_eq!(asked(&brought_down), asked(&shown), "{name}\n{brought_down}");
        }
    }
}

#[test]
fn wide_letters_in_a_name_keep_the_screen_in_its_columns() {
    for width in [60, 61, 80, 133] {
        let mut state = fixture::training((width, 24));
        let mut status = fixture::status(RunState::Training, 700);
        status.run = "東京の実験-その一".to_owned();
        fixture::tell(&mut state, status);
        let shown = picture(&state);
        assert!(shown.contains("東京"), "{shown}");
        let widths = shown.lines().map(unicode_width::UnicodeWidthStr::width);
        assert!(widths.max() <= Some(usize::from(width)), "{shown}");
    }
}

fn any_state() -> impl Strategy<Value = State> {
    let size = prop_oneof![3 => (0u16..260, 0u16..90), 1 => (1u16..420, 1u16..40)];
    let state = (0usize..9, size).prop_map(|(which, size)| match which {
        0 => fixture::connected(size),
        1 => fixture::young(size),
        2 => fixture::on_gpu(size),
        3 => fixture::shifting(size),
        4 => fixture::shifted(size),
        5 => fixture::orphaned(size),
        6 => fixture::at(size, fixture::status(RunState::Finished, 1), fixture::history(1, false)),
        7 => boxes(size).swap_remove(9).1,
        _ => fixture::training(size),
    });
    let mode = prop_oneof![
        4 => Just(Mode::Normal), 1 => Just(Mode::Help { from: 0 }), 1 => Just(Mode::Stop), 1 => Just(Mode::Filter),
        1 => (0usize..9).prop_map(|to| Mode::Preview { to }), 1 => (0usize..60).prop_map(|chosen| Mode::Palette { chosen }),
    ];
    (state, 0usize..6, mode, "[-+=0lstjk/duxprcvbfgnN6: ?{Tab}]{0,12}", any::<bool>()).prop_map(
        |(mut state, view, mode, keys, full)| {
            (state.screen.view, state.screen.mode) = (View::ALL[view], mode);
            state.screen.full = full.then_some(Quantity::Vram);
            press(&mut state, &keys);
            state
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 96 } else { 2000 }))]

    #[test]
    fn no_state_panics_at_any_size(state in any_state(), rung in 0usize..9, step: u64, samples: u64, now: i64) {
        let theme = Theme::plain();
        let mut state = state;
        draw(&state, &theme);
        let mut status = fixture::status(RunState::Training, step);
        (status.rung, status.samples, status.epoch_samples) = (rung, samples, Some(step % 3));
        fixture::tell(&mut state, status);
        update(&mut state, Msg::Tick(now));
        draw(&state, &theme);
    }

    /// A value that no reading or step has reported must not appear on the screen as a number.
    #[test]
    fn an_unknown_is_never_a_number(width in 60u16..260, height in 16u16..90, view in 0usize..6) {
        let mut state = fixture::young((width, height));
        state.screen.view = View::ALL[view];
        for panel in [Panel::Gauges, Panel::Ladder] {
            state.screen.focus = panel;
            let shown = picture(&state);
            for lie in ["0 steps/s", "0.00 steps/s", "NaN", "inf", "0 °C", "0 B ", "0.0 GiB", "loss 0"] {
                prop_assert!(!shown.contains(lie), "{} in {}", lie, shown);
            }
        }
    }

    #[test]
    fn no_mouse_panics_anywhere(state in any_state(), clicks in proptest::collection::vec((0u16..260, 0u16..90, 0u8..5), 1..6)) {
        use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
        let mut state = state;
        for (column, row, what) in clicks {
            let kind = match what {
                0 => MouseEventKind::Down(MouseButton::Right),
                1 => MouseEventKind::ScrollUp,
                2 => MouseEventKind::ScrollDown,
                3 => MouseEventKind::Drag(MouseButton::Left),
                _ => MouseEventKind::Down(MouseButton::Left),
            };
            update(&mut state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
        }
        draw(&state, &Theme::plain());
    }
}
