//! Keys while the palette is open.

use super::actions::{close_box, perform_action};
use super::message::Effect;
use crate::cockpit::search::matching_actions;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Mode;
use crossterm::event::KeyCode;

/// Maximum length of the search text in characters.
const SEARCH: usize = 60;

/// Handles a key while the palette is open.
pub fn press_key(state: &mut State, code: KeyCode, chosen: usize) -> Vec<Effect> {
    let last = matching_actions(&state.screen.search).len().saturating_sub(1);
    match code {
        KeyCode::Up | KeyCode::BackTab => choose_match(state, chosen.saturating_sub(1)),
        KeyCode::Down | KeyCode::Tab => choose_match(state, (chosen + 1).min(last)),
        KeyCode::PageUp => choose_match(state, chosen.saturating_sub(8)),
        KeyCode::PageDown => choose_match(state, (chosen + 8).min(last)),
        KeyCode::Esc => close_box(state),
        KeyCode::Enter => perform_match(state, chosen),
        KeyCode::Backspace => {
            state.screen.search.pop();
            choose_match(state, 0)
        }
        KeyCode::Char(letter) if state.screen.search.chars().count() < SEARCH => {
            state.screen.search.push(letter);
            choose_match(state, 0)
        }
        _ => Vec::new(),
    }
}

fn choose_match(state: &mut State, chosen: usize) -> Vec<Effect> {
    state.screen.mode = Mode::Palette { chosen };
    vec![Effect::Redraw]
}

/// Performs the action at this position in the list.
pub fn perform_match(state: &mut State, chosen: usize) -> Vec<Effect> {
    let entry = matching_actions(&state.screen.search).get(chosen).copied();
    state.screen.mode = Mode::Normal;
    entry.map_or_else(|| vec![Effect::Redraw], |entry| perform_action(state, entry.action))
}
