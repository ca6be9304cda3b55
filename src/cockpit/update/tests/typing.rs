//! Text typed into the cockpit by mistake.

use super::*;
use crate::cockpit::update::join_bursts;

fn press_letters(state: &mut State, text: &str, pace_ms: i64) -> Vec<Request> {
    let keys: Vec<_> = text.chars().map(|c| if c == '⏎' { KeyCode::Enter } else { KeyCode::Char(c) }).collect();
    let press = |code: &KeyCode| {
        update(state, Msg::Tick(state.now_ms + pace_ms));
        sent_requests(&update(state, key(*code)))
    };
    keys.iter().flat_map(press).collect()
}

fn notice(state: &State) -> &str {
    state.notice.as_ref().map_or("", |notice| &notice.text)
}

#[test]
fn a_typed_command_confirms_nothing() {
    for line in ["downshift attach⏎", "dir⏎", "du -sh runs⏎", "xargs echo y⏎", "d y⏎"] {
        for pace_ms in [1, 80, 1_000] {
            let mut state = fixture::training(SIZE);
            assert_eq!(press_letters(&mut state, line, pace_ms), [], "{line} at {pace_ms} ms");
            assert_ne!(state.screen.mode, Mode::Normal, "{line} at {pace_ms} ms");
            assert!(notice(&state).starts_with("ignored “") && notice(&state).contains('⏎'), "{}", notice(&state));
            // Esc, and the same question answers as before.
            let keys = [KeyCode::Esc, KeyCode::Char('d'), KeyCode::Enter];
            assert_eq!(press_all(&mut state, &keys).len(), 1, "{line} at {pace_ms} ms");
        }
    }
}

#[test]
fn a_confirmation_counts_once_the_question_can_have_been_read() {
    for (keys, box_) in [("d⏎", Mode::Preview { to: 2 }), ("x⏎", Mode::WorkerEnd(WorkerEnd::Stop))] {
        let mut state = fixture::training(SIZE);
        let early = press_letters(&mut state, keys, 299);
        assert_eq!((early, state.screen.mode), (vec![], box_), "{keys}");
        assert_eq!(press_all(&mut state, &[KeyCode::Enter]).len(), 1, "{keys}");
        let mut state = fixture::training(SIZE);
        assert_eq!(press_letters(&mut state, keys, 300).len(), 1, "{keys}");
    }
}

#[test]
fn text_that_arrives_at_once_acts_on_nothing() {
    let burst = |text: &str| join_bursts(text.chars().map(letter).chain([key(KeyCode::Enter)]));
    for line in ["attach", "cp -r runs x", "python train.py", "restart"] {
        let mut state = fixture::training(SIZE);
        let sent: Vec<_> = burst(line).into_iter().flat_map(|msg| sent_requests(&update(&mut state, msg))).collect();
        assert_eq!(sent, [], "{line}");
        assert!(notice(&state).starts_with("ignored “"), "{line}: {}", notice(&state));
    }
    // A held key, and a few quick ones, are keys.
    for line in ["++++++++", "aaaa", "dd"] {
        assert!(burst(line).iter().all(|msg| matches!(msg, Msg::Key(_))), "{line}");
    }
    let mut state = fixture::training(SIZE);
    for msg in burst("/pause") {
        update(&mut state, msg);
    }
    assert_eq!(state.screen.filter, "pause");
}
