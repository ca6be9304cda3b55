use super::render;
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, View};
use crate::cockpit::update::{Msg, update};
use crate::config::theme::{Colours, Theme};
use crate::protocol::control::RunState;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use insta::assert_snapshot;
use proptest::prelude::*;
use ratatui::{Terminal, backend::TestBackend};

fn draw(state: &State) -> Terminal<TestBackend> {
    let theme = Theme::shipped().unwrap().remove(0).shown_with(Colours::None);
    let (width, height) = state.screen.size;
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, state, &theme)).unwrap();
    terminal
}

fn picture(state: &State) -> String {
    draw(state).backend().to_string()
}

fn press(state: &mut State, letters: &str) {
    for letter in letters.chars() {
        update(state, Msg::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE)));
    }
}

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 50)];

#[test]
fn overview() {
    for size in SIZES {
        assert_snapshot!(format!("overview_{}x{}", size.0, size.1), picture(&fixture::training(size)));
    }
    assert_snapshot!("overview_on_a_GPU", picture(&fixture::on_gpu((120, 40))));
}

#[test]
fn views() {
    for (key, name) in [("2", "curves"), ("3", "rungs"), ("4", "words"), ("5", "health")] {
        for size in SIZES {
            let mut state = fixture::training(size);
            update(&mut state, Msg::Log(vec!["INFO epoch 1 done".to_owned(), "WARN slow disk".to_owned()]));
            press(&mut state, key);
            assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), picture(&state));
        }
    }
    let mut state = fixture::on_gpu((120, 40));
    press(&mut state, "5");
    assert_snapshot!("health_on_a_GPU", picture(&state));
}

#[test]
fn preview() {
    for size in SIZES {
        let mut state = fixture::training(size);
        press(&mut state, "d");
        assert_snapshot!(format!("preview_{}x{}", size.0, size.1), picture(&state));
    }
}

#[test]
fn passage() {
    for size in SIZES {
        assert_snapshot!(format!("passage_{}x{}", size.0, size.1), picture(&fixture::shifting(size)));
        assert_snapshot!(format!("passage_done_{}x{}", size.0, size.1), picture(&fixture::shifted(size)));
    }
}

#[test]
fn boxes() {
    for size in SIZES {
        let mut state = fixture::training(size);
        press(&mut state, "?");
        assert_snapshot!(format!("help_{}x{}", size.0, size.1), picture(&state));
        let mut state = fixture::training(size);
        press(&mut state, "x");
        assert_snapshot!(format!("stop_{}x{}", size.0, size.1), picture(&state));
        assert_snapshot!(format!("no_keeper_{}x{}", size.0, size.1), picture(&fixture::orphaned(size)));
    }
}

#[test]
fn help_scrolls_where_it_does_not_fit() {
    let mut state = fixture::training((80, 24));
    press(&mut state, "?jjj");
    assert_snapshot!("help_scrolled", picture(&state));
    press(&mut state, &"j".repeat(99));
    assert!(picture(&state).contains("close the cockpit; the run goes on"));
    press(&mut state, "w");
    assert_eq!(state.screen.mode, Mode::Normal);
}

#[test]
fn states() {
    for size in SIZES {
        for run in [RunState::Paused, RunState::Finished, RunState::NeedsPerson] {
            let mut state = fixture::training(size);
            let mut status = fixture::status(run, 700);
            if run == RunState::NeedsPerson {
                status.why =
                    Some("3 restarts without a new durable step; the last worker ran out of device memory".to_owned());
            }
            fixture::tell(&mut state, status);
            let lines = ["INFO epoch 15 done", "thread 'cubecl' panicked: allocation of 2.1 GiB failed"];
            update(&mut state, Msg::Log(lines.map(str::to_owned).to_vec()));
            let name = format!("{}_{}x{}", run.word().replace(' ', "_"), size.0, size.1);
            assert_snapshot!(name, picture(&state));
        }
        assert_snapshot!(format!("no_data_yet_{}x{}", size.0, size.1), picture(&fixture::young(size)));
    }
    assert_snapshot!("nothing_heard_yet", picture(&fixture::connected((80, 24))));
}

#[test]
fn too_small() {
    for size in [(1, 1), (20, 4), (59, 15)] {
        assert_snapshot!(format!("tiny_{}x{}", size.0, size.1), picture(&fixture::training(size)));
    }
}

#[test]
fn unknown_is_never_a_zero() {
    let shown = picture(&fixture::young((120, 40)));
    assert!(shown.contains("n/a"), "{shown}");
    assert!(!shown.contains("0 %  of") && !shown.contains("0.00 steps/s"), "{shown}");
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
    // Geometric shapes that some terminals paint as pictures.
    let pictures = ['\u{25aa}', '\u{25ab}', '\u{25b6}', '\u{25c0}', '\u{25fb}', '\u{25fc}', '\u{25fd}', '\u{25fe}'];
    let mut states = vec![fixture::on_gpu((200, 50)), fixture::shifted((120, 40)), fixture::orphaned((80, 24))];
    for key in ["2", "3", "4", "5", "?", "d", "x"] {
        let mut state = fixture::training((120, 40));
        press(&mut state, key);
        states.push(state);
    }
    for state in states {
        for letter in picture(&state).chars() {
            assert!(safe(letter) && !pictures.contains(&letter), "{letter:?} is not from the safe set");
        }
    }
}

fn any_state() -> impl Strategy<Value = State> {
    let state = (0usize..8, 0u16..260, 0u16..90).prop_map(|(which, width, height)| {
        let size = (width, height);
        match which {
            0 => fixture::connected(size),
            1 => fixture::young(size),
            2 => fixture::on_gpu(size),
            3 => fixture::shifting(size),
            4 => fixture::shifted(size),
            5 => fixture::orphaned(size),
            6 => fixture::at(size, fixture::status(RunState::Finished, 1), fixture::history(1, false)),
            _ => fixture::training(size),
        }
    });
    let view =
        prop_oneof![Just(View::Overview), Just(View::Curves), Just(View::Rungs), Just(View::Words), Just(View::Health)];
    let mode = prop_oneof![
        4 => Just(Mode::Normal), 1 => Just(Mode::Help { from: 0 }), 1 => Just(Mode::Stop), 1 => Just(Mode::Filter),
        1 => (0usize..9).prop_map(|to| Mode::Preview { to }),
    ];
    (state, view, mode, "[-+=0lstjk/duxprc?{Tab}]{0,12}").prop_map(|(mut state, view, mode, keys)| {
        (state.screen.view, state.screen.mode) = (view, mode);
        press(&mut state, &keys);
        state
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 96 } else { 2000 }))]

    #[test]
    fn no_state_panics_at_any_size(state in any_state(), rung in 0usize..9, step: u64, samples: u64, now: i64) {
        let mut state = state;
        draw(&state);
        let mut status = fixture::status(RunState::Training, step);
        (status.rung, status.samples, status.epoch_samples) = (rung, samples, Some(step % 3));
        fixture::tell(&mut state, status);
        update(&mut state, Msg::Tick(now));
        draw(&state);
    }
}

#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn a_frame_of_a_million_steps() {
    let mut state = fixture::training((200, 50));
    state.facts.series = fixture::series(1_000_000);
    let theme = Theme::shipped().unwrap().remove(0);
    let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..200 {
        terminal.draw(|frame| render(frame, &state, &theme)).unwrap();
    }
    println!("a frame of 200×50 with 1 000 000 steps: {:?}", start.elapsed() / 200);
}
