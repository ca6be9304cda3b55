//! Properties of the view in any state, at any size.

use super::{draw, draw_text, open_boxes, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View, WorkerEnd};
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::RunState;
use crate::theme::Theme;
use crossterm::event::KeyModifiers;
use proptest::prelude::*;

#[test]
fn unknown_is_never_a_zero() {
    let shown = draw_text(&fixture::young((120, 40)));
    assert!(shown.contains("n/a"), "{shown}");
    assert!(!shown.contains("0 %  of") && !shown.contains("0.00 steps/s"), "{shown}");
}

fn any_state() -> impl Strategy<Value = State> {
    let size = prop_oneof![3 => (0u16..260, 0u16..90), 1 => (1u16..420, 1u16..40)];
    let state = (0usize..11, size).prop_map(|(which, size)| match which {
        0 => fixture::connected(size),
        1 => fixture::young(size),
        2 => fixture::on_gpu(size),
        3 => fixture::shifting(size),
        4 => fixture::shifted(size),
        5 => fixture::orphaned(size),
        8 => fixture::recovering(size),
        6 => fixture::at(size, fixture::status(RunState::Finished, 1), fixture::history(1, false)),
        7 => open_boxes(size).into_iter().find(|(name, _)| *name == "the past").expect("a box").1,
        9 => fixture::eventful(size),
        _ => fixture::training(size),
    });
    let mode = prop_oneof![
        4 => Just(Mode::Normal), 1 => Just(Mode::Help { from: 0 }), 1 => prop::sample::select(vec![WorkerEnd::Stop, WorkerEnd::Pause, WorkerEnd::Restart]).prop_map(Mode::WorkerEnd),
         1 => Just(Mode::Filter),
        1 => (0usize..14).prop_map(|chosen| Mode::Menu { chosen }), 1 => Just(Mode::Delete),
        1 => prop::sample::select(&[Prompt::FindRuns, Prompt::Tags, Prompt::Note, Prompt::Export][..]).prop_map(Mode::Prompt),
        1 => (0usize..20).prop_map(|from| Mode::Alerts { from }),
        1 => (0i64..40, 0usize..20).prop_map(|(id, from)| Mode::Fault { id, from }),
        1 => (0usize..9).prop_map(|to| Mode::Preview { to }), 1 => (0usize..60).prop_map(|chosen| Mode::Palette { chosen }),
    ];
    (state, 0..View::ALL.len(), mode, "[-+=0lstjk/duxprcvbfgnN678i!moP\\]C: ?{Tab}]{0,12}", any::<bool>()).prop_map(
        |(mut state, view, mode, keys, full)| {
            (state.screen.view, state.screen.mode) = (View::ALL[view], mode);
            state.screen.full = full.then_some(Quantity::Vram);
            press_keys(&mut state, &keys);
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
        fixture::apply_status(&mut state, status);
        update(&mut state, Msg::Tick(now));
        draw(&state, &theme);
    }

    /// A value that no reading or step has reported must not appear on the screen as a number.
    #[test]
    fn an_unknown_is_never_a_number(width in 60u16..260, height in 16u16..90, view in 0..View::ALL.len()) {
        let mut state = fixture::young((width, height));
        state.screen.view = View::ALL[view];
        for panel in [Panel::Gauges, Panel::Ladder] {
            state.screen.focus = panel;
            // The ladder names the troubles that a rung helps against.
            let shown = draw_text(&state).replace("faults, NaN", "");
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
