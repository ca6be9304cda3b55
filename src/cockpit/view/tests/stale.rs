//! Stale data stays on the screen, with its age and the reason.

use super::draw_text;
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::state::State;
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::{ReadingRow, Update};

/// Returns the line of the screen that contains a word.
fn line_with(shown: &str, word: &str) -> String {
    shown.lines().find(|line| line.contains(word)).unwrap_or_default().to_owned()
}

/// Returns a run training on a GPU with a responsive keeper, the given number of seconds later.
fn seconds_later(size: (u16, u16), seconds: i64) -> State {
    let mut state = fixture::on_gpu(size);
    let now = NOW + seconds * 1000;
    update(&mut state, Msg::Tick(now));
    state.facts.heard_ms = Some(now);
    state.facts.recent.back_mut().unwrap().time_ms = now;
    state
}

#[test]
fn readings_of_a_silent_probe_are_not_shown_as_live() {
    let now = draw_text(&seconds_later((80, 24), 1));
    assert!(line_with(&now, "VRAM").contains("18.2 / 24.0 GiB") && !now.contains("the monitor is silent"), "{now}");
    for size in [(80, 24), (120, 40)] {
        let shown = draw_text(&seconds_later(size, 6));
        for word in ["VRAM", "heat", "RAM"] {
            assert!(!line_with(&shown, word).is_empty(), "{word} in {shown}");
        }
        assert!(line_with(&shown, "VRAM").contains("18.2 / 24.0 GiB"), "{shown}");
        assert!(shown.contains("7 s") && shown.contains("old: the monitor is silent"), "{shown}");
    }
}

#[test]
fn a_card_that_no_longer_answers_keeps_its_last_figures_with_their_age() {
    let mut state = seconds_later((80, 24), 0);
    for second in 1..=20 {
        let mut reading = fixture::reading(true, 0);
        reading.gpu = Err("NVML has not answered for 5 s".to_owned().into());
        let row = ReadingRow { time_ms: NOW + second * 1000, reading };
        update(&mut state, Msg::Keeper(Update::Reading(Box::new(row))));
    }
    update(&mut state, Msg::Tick(NOW + 20_000));
    state.facts.heard_ms = Some(NOW + 20_000);
    let shown = draw_text(&state);
    assert!(line_with(&shown, "VRAM").contains("21 s") && shown.contains("GPU not responding"), "{shown}");
    assert!(!line_with(&shown, "CPU").contains("21 s"), "what is new has no age: {shown}");
}

#[test]
fn a_silent_keeper_shows_in_the_header_and_the_speed_ages() {
    let mut state = fixture::on_gpu((120, 40));
    update(&mut state, Msg::Tick(NOW + 35_000));
    let shown = draw_text(&state);
    assert!(shown.contains("○ training, 35 s ago"), "{shown}");
    assert!(shown.contains("35 s old") && !shown.contains(" left"), "{shown}");
}
